"""The types that all packages share: frozen records, closed enums, and the named tuples of spec 1.

Each may be a part of a checkpoint, so modules and fields are a storage format; `CHECKPOINT_TYPES` lists the types.
"""

from collections.abc import Iterable, Iterator
from enum import Enum, StrEnum, auto
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

JsonMap = dict[str, Any]  # a JSON object: string keys, JSON values

CONTENT_BYTES: Final = 64_000  # of a file are searched for a secret; the key of a service account has 2,400


class Record(BaseModel):
    """A frozen value that refuses unknown fields. Its `repr` omits default values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        fields = type(self).model_fields
        for name, value in super().__repr_args__():
            if name not in fields or value != fields[name].get_default(call_default_factory=True):
                yield name, value

    __str__ = BaseModel.__repr__


# --- Replies


class FinishReason(StrEnum):
    """Why the model ended its reply."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"


class RawCall(Record):
    """A native tool call as it was streamed, with the exact argument text."""

    call_id: str
    tool: str
    arguments: str


class ModelReply(Record):
    """One complete reply.

    `preloaded`: the machine wrote it. `reasoning` is never displayed. `provider` is what the endpoint requires again,
    unchanged: content blocks, signatures, encrypted items. `adapted` names parameters that the endpoint refused;
    `without_tools`: native tools were one of them. `allowed_tokens` is the token limit of a reply that was cut, 0
    without a limit. `message_id` is that of the message for callbacks, None without callbacks.
    """

    text: str = ""
    calls: tuple[RawCall, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    refusal: str = ""
    reasoning: str = ""
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of input_tokens: read from the provider's cache
    reasoning_tokens: int = 0  # of output_tokens: thought and not said
    cache_write_tokens: int = 0  # of input_tokens: written into the provider's cache
    seconds: float = 0.0
    preloaded: bool = False
    provider: JsonMap = Field(default_factory=dict)
    adapted: tuple[str, ...] = ()
    without_tools: bool = False
    allowed_tokens: int = 0
    message_id: str | None = None


class ProviderErrorKind(StrEnum):
    """The kind of a failed request. The first five may be temporary."""

    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    SERVER_ERROR = "server_error"
    INCOMPLETE_STREAM = "incomplete_stream"
    AUTHENTICATION = "authentication"
    BAD_REQUEST = "bad_request"
    CONTEXT_OVERFLOW = "context_overflow"
    MODEL_UNAVAILABLE = "model_unavailable"
    CONTENT_FILTER = "content_filter"


class ProviderFailure(Record):
    """A request without a usable reply, or that was not `sent`. `retry_after_s` is the endpoint's own value."""

    kind: ProviderErrorKind
    message: str
    retry_after_s: float | None = None
    received_characters: int = 0
    sent: bool = True


class Protocol(StrEnum):
    """How calls are sent: as `tool:` lines of the text, or as the endpoint's native tool calls."""

    TEXT = "text"
    NATIVE = "native"


class EditForm(StrEnum):
    """How the model writes edits: old and new string, fenced blocks with the new text, or a patch."""

    REPLACE = "replace"
    BLOCKS = "blocks"
    PATCH = "patch"


class Profile(Record):
    """How a turn talks to its model. It is decided at the start; with `steps_down` again if edits miss.

    `small`: some billion parameters. `reasoning`: it thinks before it answers. `family` is of older checkpoints.
    """

    protocol: Protocol = Protocol.TEXT
    edit_form: EditForm = EditForm.REPLACE
    embedded: bool = False
    family: str = ""
    small: bool = False
    steps_down: bool = False
    reasoning: bool = False


# --- Calls of a reply (spec 1, section 1)


class ExtractionErrorType(Enum):
    """Each way in which a reply can fail to be a call. The first six are spec 1's, the rest are ours."""

    MISSING_TOOL_PREFIX = auto()
    MISSING_OPENING_PAREN = auto()
    MISSING_CLOSING_PAREN = auto()
    INVALID_JSON_SYNTAX = auto()
    EMPTY_TOOL_NAME = auto()
    UNKNOWN_TOOL_NAME = auto()
    INVALID_ARGUMENTS = auto()
    OVERSIZED_ARGUMENTS = auto()
    INVALID_ANSWER = auto()
    EMPTY_REPLY = auto()
    TRUNCATED_REPLY = auto()
    REFUSED_REPLY = auto()
    FILTERED_REPLY = auto()
    UNFOUNDED_CLAIM = auto()
    THOUGHT_ONLY_REPLY = auto()
    TOO_MANY_CALLS = auto()


SCHEMA_ERRORS = frozenset({ExtractionErrorType.INVALID_ARGUMENTS, ExtractionErrorType.INVALID_ANSWER})
"""Well-formed calls whose arguments or final value do not fit their schema: spec 3's two repair attempts."""


class ExtractionError(NamedTuple):
    """A part of a reply that is not a valid call. `line_number` counts from 1; 0 means no line."""

    error_type: ExtractionErrorType
    line_number: int
    line_content: str
    details: str


class ToolInvocation(NamedTuple):
    """One well-formed call, read from line `line_number` (0 for a native call)."""

    tool_name: str
    args: dict[str, Any]
    line_number: int


class ToolCall(Record):
    """A call that fits its schema; `raw_arguments` is its exact text. An `implied` one is not written in the reply."""

    call_id: str
    tool: str
    arguments: JsonMap
    raw_arguments: str
    line_number: int = 0
    implied: bool = False
    format: str = ""  # the name of a foreign call format


class CallError(Record):
    """A malformed call at its place in the reply. `tool` is "" if no name could be read."""

    call_id: str
    tool: str
    raw_arguments: str
    error: ExtractionError


class Correction(Record):
    """An unusable reply and its prompt. Schema repairs (spec 3) and unfounded answers (`claim`) count separately."""

    reply: str
    prompt: str
    schema_repair: bool = False
    claim: bool = False


class Reading(StrEnum):
    """The reading of a reply by `parse`."""

    CALLS = "calls"
    MALFORMED = "malformed"
    ANSWER = "answer"


class Answer(Record):
    """The final answer, with a value if the user gave a schema; `quotes` is the format of a quoted call."""

    text: str
    value: Any = None
    quotes: str = ""

    @classmethod
    def given(cls, arguments: JsonMap) -> Self:
        """Return the answer of a `final_answer` call."""
        return cls(text=str(arguments.get("answer", "")), value=arguments.get("value"))


# --- Results of calls (spec 2, section 5)


class ToolErrorCode(StrEnum):
    """Why a call has no result. The first four are spec 2's."""

    NOT_FOUND = "not_found"
    INVALID_ARGUMENT = "invalid_argument"
    PERMISSION_DENIED = "permission_denied"
    IO_ERROR = "io_error"
    UNKNOWN_TOOL = "unknown_tool"
    UNAVAILABLE = "unavailable"
    RATE_LIMITED = "rate_limited"
    CONFLICT = "conflict"
    UNCHANGED = "unchanged"
    OUTCOME_UNKNOWN = "outcome_unknown"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOOP_OVERRIDE = "loop_override"
    CHECK_FAILED = "check_failed"
    APPROVAL_REQUIRED = "approval_required"
    RESOURCE_LIMIT = "resource_limit"
    HOOK_FAILED = "hook_failed"
    CHILD_FAILED = "child_failed"


class ToolError(Record):
    """A failure that the model can act on, unless it is `fatal`. `suggestions` are complete values, best first."""

    code: ToolErrorCode
    message: str
    suggestions: tuple[str, ...] = ()
    fatal: bool = False

    def as_map(self) -> JsonMap:
        """Spec 2's inner envelope, as JSON-ready values."""
        return {"code": self.code.value, "message": self.message, "suggestions": list(self.suggestions)}


class ToolResult(Record):
    """Spec 2's envelope: either `data` or an `error`."""

    ok: bool
    data: JsonMap = Field(default_factory=dict)
    error: ToolError | None = None

    def as_map(self) -> JsonMap:
        """`{"ok": true, "data": {...}}` or `{"ok": false, "error": {...}}`."""
        if self.error is not None:
            return {"ok": False, "error": self.error.as_map()}
        return {"ok": True, "data": self.data}

    @classmethod
    def success(cls, **data: Any) -> "ToolResult":
        """A result with these fields, which must be JSON values."""
        return cls(ok=True, data=data)

    @classmethod
    def failure(cls, code: ToolErrorCode, message: str, suggestions: tuple[str, ...] = ()) -> "ToolResult":
        """A typed failure."""
        return cls(ok=False, error=ToolError(code=code, message=message, suggestions=suggestions))


class ChangeKind(StrEnum):
    """The kind of a file change."""

    CREATED = "created"
    EDITED = "edited"
    DELETED = "deleted"


class FileChange(Record):
    """One file change. Hashes are SHA-256 of the bytes, "" for no file; `diff` is unified and bounded."""

    path: str
    kind: ChangeKind
    sha256_before: str
    sha256_after: str
    diff: str


def net_changes(changes: Iterable[FileChange]) -> dict[str, tuple[str, str]]:
    """Return the files that differ from before these changes, in order of the first change, with both hashes."""
    net: dict[str, tuple[str, str]] = {}
    for change in changes:
        net[change.path] = (net.get(change.path, (change.sha256_before, ""))[0], change.sha256_after)

    return {path: hashes for path, hashes in net.items() if hashes[0] != hashes[1]}


class CallResult(Record):
    """The result of one call. `ms` is wall time in milliseconds; 0 `attempts`: it never ran.

    For LangChain tools: the data is the `text` of the message, `blocks` are its content unless that is one text.
    """

    call_id: str
    tool: str
    result: ToolResult
    changes: tuple[FileChange, ...] = ()
    ms: int = 0
    attempts: int = 0
    blocks: tuple[JsonMap, ...] | None = None
    artifact: Any = None


class PlanStatus(StrEnum):
    """The status of a step of the plan."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    DONE = "done"


class PlanStep(Record):
    """One step of the plan."""

    title: str = Field(min_length=1, max_length=200)
    status: PlanStatus = PlanStatus.PENDING


class Plan(Record):
    """Spec 3's plan JSON: the steps in order."""

    steps: tuple[PlanStep, ...] = Field(default=(), max_length=50)


class Effect(StrEnum):
    """The effect of a tool: none, reads or changes the workspace, runs programs, or uses the network."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"


CHANGING = frozenset({Effect.WRITE, Effect.EXECUTE})  # effects that may change the workspace


class ToolSpec(Record):
    """The description of a tool without its function, for guard, parse, prompt and loop control.

    `parameters` is the JSON schema of the arguments, `path_fields` those that name paths; a `terminal` call ends a run.
    A tool with `edit_forms` is offered only in these, and not in those of `seldom_in` if few tools are offered; one
    that is not `offered` is for the machine alone.
    """

    name: str
    description: str
    parameters: JsonMap
    effect: Effect
    path_fields: tuple[str, ...] = ()
    terminal: bool = False
    edit_forms: tuple[EditForm, ...] = ()
    seldom_in: tuple[EditForm, ...] = ()
    offered: bool = True


class VerdictKind(StrEnum):
    """The kinds of guard's verdicts."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Verdict(Record):
    """Guard's decision about one call. `rule` names the rule; `error` is what the model sees of a denial.

    `blocked` is the text of `format_guardrail_violations`, `refused` who refused the call, such as "you refused".
    A person allowed only the changes `pins` (path, hash of the file, mark; None: any) and the `hunks` (none: all), did
    not allow the hunks `declined`, changed the arguments `edited`, and gave an `answer` to a question ("": none).
    """

    kind: VerdictKind
    rule: str = ""
    error: ToolError | None = None
    path: str = ""
    blocked: str = ""
    refused: str = ""
    pins: tuple[tuple[str, str, str], ...] | None = None
    edited: tuple[str, ...] = ()
    answer: str | None = None
    hunks: tuple[int, ...] = ()
    declined: str = ""


class OverrideConstraint(Record):
    """Spec 3's typed override: calls with this signature are denied until a file changes or the turn ends.

    `repeats` counts the calls of the loop and those since. `obeyed`: the model has done something else since.
    """

    signature: str
    tool: str
    target: str
    repeats: int
    obeyed: bool = False


class LoopVerdict(StrEnum):
    """The verdict of loop control on a step."""

    FRESH = "fresh"
    OVERRIDE = "override"
    PERSISTED = "persisted"
    ANSWERED = "answered"
    BROKEN = "broken"
    GAVE_UP = "gave_up"


class Verification(Record):
    """The evidence for a turn's changes as a whole, by the checks after the last change.

    passed: `ran` names the checks with counts ("pytest test_cart.py: 2 tests"), `lines` the changed lines that they ran
    ("cart.py:3-7"). indistinct: only tests that the session has changed pass, also before its first change. none,
    contradicted: `reason` says why nothing was run, or what failed. Of the passing tests, `failed_before` show the
    difference, `new_code` could not run before, `indistinct` prove nothing. `diagnostics`: what linters newly say.
    """

    kind: Literal["passed", "indistinct", "none", "contradicted"] = "none"
    ran: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    reason: str = ""
    failed_before: tuple[str, ...] = ()
    new_code: tuple[str, ...] = ()
    indistinct: tuple[str, ...] = ()
    skipped: int = 0
    skip_reason: str = ""
    diagnostics: tuple[str, ...] = ()


MarkKind = Literal[
    "not_named", "deleted", "tests_deleted", "tests_weakened", "tests_ignored", "runs_later", "link", "large", "unread"
]


class Mark(Record):
    """A fact about a changed or unread file; `detail` is how tests are weakened, a size, or a link's target."""

    kind: MarkKind
    path: str
    detail: str = ""


class LoopRecord(Record):
    """The state of loop control: for each step, oldest first, the signatures of its calls.

    `outcomes` are hashes of results by signature, `failed_tries` consecutive steps with failed edits or checks,
    `missed` the files of edits that missed, `verified` the result of the checks, `refused` calls as text.
    """

    recent: tuple[tuple[str, ...], ...] = ()
    outcomes: tuple[tuple[str, str], ...] = ()
    overrides: tuple[OverrideConstraint, ...] = ()
    verdict: LoopVerdict = LoopVerdict.FRESH
    failed_tries: int = 0
    missed: tuple[str, ...] = ()
    verified: Verification | None = None
    refused: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()


class OutcomeKind(StrEnum):
    """The three terminals. Each has its own process exit code (`mendgraph.graph.cli`)."""

    FINISHED = "FINISHED"
    BUDGET_STOP = "BUDGET_STOP"
    SYSTEM_ERROR = "SYSTEM_ERROR"


_LOW: Final = " The defaults of Python, batches, servers and the embedded model are small."


class StopReason(StrEnum):
    """Why a run ended, with how to continue. A limit ends in BUDGET_STOP.

    `from_outside`: the model did not cause it, but time, a person, the endpoint, the machine or other runs.
    """

    how_to_go_on: str
    is_limit: bool
    from_outside: bool

    def __new__(cls, value: str, how_to_go_on: str = "", is_limit: bool = False, from_outside: bool = False) -> Self:
        """A member whose value is `value` alone."""
        member = str.__new__(cls, value)
        member._value_, member.how_to_go_on, member.is_limit = value, how_to_go_on, is_limit
        member.from_outside = from_outside

        return member

    MAX_CALLS_PER_SESSION = "max_calls_per_session", "Raise it: `mendgraph resume --max-calls N`.", True
    MAX_CALLS_PER_TURN = "max_calls_per_turn", f"Send another message, or `mendgraph resume --max-calls N`.{_LOW}", True
    MAX_INPUT_TOKENS = "max_input_tokens", f"Raise it: `mendgraph resume --max-input-tokens N`.{_LOW}", True
    MAX_OUTPUT_TOKENS = "max_output_tokens", f"Raise it: `mendgraph resume --max-output-tokens N`.{_LOW}", True
    MAX_STEPS = "max_steps", "Send another message, or `mendgraph resume --max-steps N`.", True
    WALL_CLOCK = "wall_clock", "Send another message, or `mendgraph resume --max-seconds S`.", True, True
    MAX_COST = "max_cost", "Raise it: `mendgraph resume --max-cost-usd USD`.", True
    ANSWERED = "answered", "Send another message to continue."
    HEALING_EXHAUSTED = "healing_exhausted", "Try again, or use a stronger model: `mendgraph resume --model NAME`."
    SCHEMA_REPAIR_EXHAUSTED = "schema_repair_exhausted", "Relax the schema, or `mendgraph resume --model NAME`."
    LOOP_PERSISTED = "loop_persisted", "Rephrase the task, or use a stronger model: `mendgraph resume --model NAME`."
    PROVIDER_FAILED = "provider_failed", "Fix what the message names, then `mendgraph resume`.", False, True
    CONTEXT_OVERFLOW = "context_overflow", "Use a larger context window: `mendgraph resume --model NAME`.", False, True
    EMPTY_REPLY = "empty_reply", "Try again, or another model: `mendgraph resume --model NAME`."
    REFUSED = "refused", "Rephrase the task, or use another model: `mendgraph resume --model NAME`."
    CANCELLED = "cancelled", "Continue with `mendgraph resume`, or send another message.", True, True
    INVALID_REQUEST = "invalid_request", "Fix what the message names, then send the task again.", False, True
    WORKSPACE_FAILED = "workspace_failed", "Free disk space or repair the disk, then send the task again.", False, True
    WORKSPACE_CHANGED = "workspace_changed", "Review the named files, then `mendgraph resume`.", False, True
    WORKSPACE_BUSY = "workspace_busy", "Wait for the other run to end, or stop it, then try again.", False, True
    CHECKS_FAILED = "checks_failed", "Review what fails, then add detail to the task, or use a stronger model."
    EDITS_FAILED = "edits_failed", "Rephrase the task, name the file, or use a stronger model."
    NOT_CHECKED = "not_checked", "Review the changes, or name a check and send the task again (--check 'make test')."
    NOTHING_CHANGED = "nothing_changed", "Describe what to change and where, or use a stronger model."
    HOOK_FAILED = "hook_failed", "Fix the hook that the message names, then send the task again.", False, True
    STORE_FAILED = "store_failed", "Fix what the message names; `mendgraph runs` lists the run.", False, True
    HISTORY_PRUNED = "history_pruned", "Restore the deleted checkpoints, or start a new thread.", False, True
    DAY_LIMIT = "day_limit", "Continue tomorrow (UTC), or `mendgraph resume` with a higher limit.", True, True
    ACCOUNT_LIMIT = "account_limit", "Raise it, or use another account: `mendgraph resume --account NAME`.", True, True


class StopCause(Record):
    """Why a node ends the run. A person may raise the setting `limit`, to `required` at least; "" is no such limit."""

    reason: StopReason
    message: str
    diagnostics: tuple[str, ...] = ()
    limit: str = ""
    required: float = 0.0


class Outcome(Record):
    """How a run ended; set exactly once in a turn, by `stop/`. `answer` is "" and `value` None unless FINISHED.

    `message` is for people: the changed files with `verified` ("Changed cart.py; 2 tests pass."), or else the answer
    or why the run ended. `refused` are calls that were not allowed, with reasons. `quotes` is the format of a quoted
    call. `restored` are files of failed work, which `mendgraph apply` changes again.
    """

    kind: OutcomeKind
    reason: StopReason
    message: str
    diagnostics: tuple[str, ...] = ()
    answer: str = ""
    value: Any = None
    changed_files: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    refused: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    verified: Verification = Verification()
    usage: JsonMap = Field(default_factory=dict, repr=False)
    how_to_go_on: str = ""
    quotes: str = ""


LONGEST_QUOTE = 200  # characters of a path that an error message repeats


def quoted(path: str) -> str:
    """Return the path in quotes on one line, escaped and cut."""
    return repr(path if len(path) <= LONGEST_QUOTE else f"{path[:LONGEST_QUOTE]}...")


def invalid(message: str, *suggestions: str) -> ToolError:
    """Return an INVALID_ARGUMENT error."""
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)
