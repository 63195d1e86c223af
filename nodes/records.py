"""The types that all packages share: frozen records and closed enums.

Everything here may be in a checkpoint, so each type is plain data: frozen pydantic models, the named tuples that users'
own tests spell out, enums. Modules and fields are a storage format; `CHECKPOINT_TYPES` lists the types.
"""

import errno
from collections.abc import Iterable, Iterator
from enum import Enum, StrEnum, auto
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

JsonMap = dict[str, Any]
"""A JSON object: string keys, JSON values."""

CONTENT_BYTES: Final = 64_000
"""Of the beginning of a file by which it is judged whether it holds a secret. A service account's key has 2,400."""


class Record(BaseModel):
    """A frozen value, equal by content and strict about unknown fields. Its `repr` names what is no default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        fields = type(self).model_fields
        for name, value in super().__repr_args__():
            if name not in fields or value != fields[name].get_default(call_default_factory=True):
                yield name, value

    __str__ = BaseModel.__repr__


# --- What a model said


class FinishReason(StrEnum):
    """Why the model ended its reply, in the endpoint's own words reduced to what we act on."""

    STOP, TOOL_CALLS, LENGTH, CONTENT_FILTER, REFUSAL = "stop", "tool_calls", "length", "content_filter", "refusal"


class RawCall(Record):
    """A native tool call as it was streamed: the argument text is kept to the letter."""

    call_id: str
    tool: str
    arguments: str


class ModelReply(Record):
    """One complete reply.

    `preloaded` marks one that the machine wrote itself. `reasoning` is what is known of the model's thoughts, which
    nobody is shown; `provider` is what the endpoint wants to see again of the message, as it came: content blocks,
    signatures, encrypted items. `adapted` names what the endpoint refused of the request before it took it, and
    `without_tools` says that native tools were among that. `allowed_tokens` is told of a reply that was cut at its
    token limit: the limit that its request had, 0 where it had none. `message_id` is that of the message as which it
    was streamed to callbacks, None where nobody listened: the history has it under the same one.
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
    """What went wrong between us and the endpoint. The first five may pass."""

    RATE_LIMITED, TIMEOUT, CONNECTION, SERVER_ERROR = "rate_limited", "timeout", "connection", "server_error"
    INCOMPLETE_STREAM, AUTHENTICATION, BAD_REQUEST = "incomplete_stream", "authentication", "bad_request"
    CONTEXT_OVERFLOW, MODEL_UNAVAILABLE = "context_overflow", "model_unavailable"
    CONTENT_FILTER = "content_filter"


class ProviderFailure(Record):
    """The endpoint gave no usable reply, or was not asked (`sent`). `retry_after_s` is its own wish, in seconds."""

    kind: ProviderErrorKind
    message: str
    retry_after_s: float | None = None
    received_characters: int = 0
    sent: bool = True


class Protocol(StrEnum):
    """How calls travel: as `tool:` lines in the text, or as the endpoint's native tool calls."""

    TEXT, NATIVE = "text", "native"


class EditForm(StrEnum):
    """How the model is asked to write edits: old and new string, fenced blocks with the new text, or a patch."""

    REPLACE, BLOCKS, PATCH = "replace", "blocks", "patch"


class Profile(Record):
    """How this turn talks to its model: decided at its start, and once more where `steps_down` and edits miss.

    `small` is a model of some billion parameters, which repeats what it sees, and `reasoning` one that thinks before it
    answers. `family` stands in checkpoints of earlier versions.
    """

    protocol: Protocol = Protocol.TEXT
    edit_form: EditForm = EditForm.REPLACE
    embedded: bool = False
    family: str = ""
    small: bool = False
    steps_down: bool = False
    reasoning: bool = False


# --- What a reply means (spec 1, section 1)


class ExtractionErrorType(Enum):
    """Each way in which a reply can fail to be a call. The first six are spec 1's, the rest are ours."""

    MISSING_TOOL_PREFIX, MISSING_OPENING_PAREN, MISSING_CLOSING_PAREN = auto(), auto(), auto()
    INVALID_JSON_SYNTAX, EMPTY_TOOL_NAME, UNKNOWN_TOOL_NAME, INVALID_ARGUMENTS = auto(), auto(), auto(), auto()
    OVERSIZED_ARGUMENTS, INVALID_ANSWER, EMPTY_REPLY, TRUNCATED_REPLY = auto(), auto(), auto(), auto()
    REFUSED_REPLY, FILTERED_REPLY, UNFOUNDED_CLAIM, THOUGHT_ONLY_REPLY = auto(), auto(), auto(), auto()
    TOO_MANY_CALLS = auto()


SCHEMA_ERRORS = frozenset({ExtractionErrorType.INVALID_ARGUMENTS, ExtractionErrorType.INVALID_ANSWER})
"""Well-formed calls whose arguments or final value do not fit their schema: spec 3's two repair attempts."""


class ExtractionError(NamedTuple):
    """One part of a reply that could not become a call. `line_number` counts from 1; 0 means no line."""

    error_type: ExtractionErrorType
    line_number: int
    line_content: str
    details: str


class ToolInvocation(NamedTuple):
    """One well-formed call, as it was read from line `line_number` (0 for a native call)."""

    tool_name: str
    args: dict[str, Any]
    line_number: int


class ToolCall(Record):
    """A call that fits its schema; `raw_arguments` is its exact text. An `implied` one stands nowhere in the reply."""

    call_id: str
    tool: str
    arguments: JsonMap
    raw_arguments: str
    line_number: int = 0
    implied: bool = False
    format: str = ""  # in which it was written, where that is another one than the protocol's


class CallError(Record):
    """A malformed call at its place in the reply. `tool` is "" where no name could be read."""

    call_id: str
    tool: str
    raw_arguments: str
    error: ExtractionError


class Correction(Record):
    """One failed reply and what was said to the model about it, shown to it until the turn has healed.

    `schema_repair` marks spec 3's schema repairs, `claim` answers that were met with the facts: each is counted apart.
    """

    reply: str
    prompt: str
    schema_repair: bool = False
    claim: bool = False


class Reading(StrEnum):
    """What `parse` made of a reply."""

    CALLS, MALFORMED, ANSWER = "calls", "malformed", "answer"


class Answer(Record):
    """The final answer, with a value where the user gave a schema for one; `quotes` is the format of a quoted call."""

    text: str
    value: Any = None
    quotes: str = ""

    @classmethod
    def given(cls, arguments: JsonMap) -> Self:
        """The answer that a call of final_answer gives."""
        return cls(text=str(arguments.get("answer", "")), value=arguments.get("value"))


# --- What a tool gave back (spec 2, section 5)


class ToolErrorCode(StrEnum):
    """Why a call has no result. The first four are spec 2's."""

    NOT_FOUND, INVALID_ARGUMENT, PERMISSION_DENIED = "not_found", "invalid_argument", "permission_denied"
    IO_ERROR, UNKNOWN_TOOL, UNAVAILABLE, RATE_LIMITED = "io_error", "unknown_tool", "unavailable", "rate_limited"
    CONFLICT, UNCHANGED, OUTCOME_UNKNOWN, TIMEOUT = "conflict", "unchanged", "outcome_unknown", "timeout"
    CANCELLED, LOOP_OVERRIDE, CHECK_FAILED = "cancelled", "loop_override", "check_failed"
    APPROVAL_REQUIRED, RESOURCE_LIMIT, HOOK_FAILED = "approval_required", "resource_limit", "hook_failed"
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
    """Spec 2's envelope: exactly one of `data` and `error` has something to say."""

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
    """What happened to a file."""

    CREATED, EDITED, DELETED = "created", "edited", "deleted"


class FileChange(Record):
    """One file effect. Hashes are SHA-256 of the bytes, "" where there was no file; `diff` is unified and bounded."""

    path: str
    kind: ChangeKind
    sha256_before: str
    sha256_after: str
    diff: str


def net_changes(changes: Iterable[FileChange]) -> dict[str, tuple[str, str]]:
    """The files that are not as they were before these changes, in the order of their first one, with both hashes."""
    net: dict[str, tuple[str, str]] = {}
    for change in changes:
        net[change.path] = (net.get(change.path, (change.sha256_before, ""))[0], change.sha256_after)

    return {path: hashes for path, hashes in net.items() if hashes[0] != hashes[1]}


class CallResult(Record):
    """What one call came to, in the place of the call. `ms` is wall time in milliseconds; 0 attempts: it never ran.

    Of a tool of LangChain's the data is the `text` of its message. `blocks` are the message's content, none where that
    is one text, and `artifact` is what it holds for programs; for all other tools `blocks` is None.
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
    """Where one step of the plan stands."""

    PENDING, IN_PROGRESS, DONE = "pending", "in_progress", "done"


class PlanStep(Record):
    """One step of the plan."""

    title: str = Field(min_length=1, max_length=200)
    status: PlanStatus = PlanStatus.PENDING


class Plan(Record):
    """Spec 3's plan JSON: what is done and what is left, in order."""

    steps: tuple[PlanStep, ...] = Field(default=(), max_length=50)


class Effect(StrEnum):
    """What a tool does to the world: nothing, looks at the workspace, changes files, runs programs, or goes out."""

    NONE, READ, WRITE, EXECUTE, NETWORK = "none", "read", "write", "execute", "network"


CHANGING = frozenset({Effect.WRITE, Effect.EXECUTE})
"""Effects after which the workspace may be another one."""


class ToolSpec(Record):
    """What guard, parse, prompt and loop control know of a tool; the function itself stays in `execute_tools`.

    `parameters` is the JSON schema of the arguments, `path_fields` those that name paths; a `terminal` call ends a run.
    A tool with `edit_forms` is offered in these only, and not in those of `seldom_in` where few tools are; one that is
    not `offered` is the machine's own.
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
    """Guard's three answers."""

    ALLOW, DENY, ASK = "allow", "deny", "ask"


class Verdict(Record):
    """Guard's answer about one call. `rule` names what decided; `error` is what the model sees when denied.

    `blocked` is what a person sees of a change that file rules deny, as `format_guardrail_violations` writes it, and
    `refused` is what a person reads of a call that was not allowed, before its name: "you refused".
    `pins` are the only changes that a person allowed, (path, hash of the file then, mark), and None allows any;
    `edited` are the arguments that the person changed.
    """

    kind: VerdictKind
    rule: str = ""
    error: ToolError | None = None
    path: str = ""
    blocked: str = ""
    refused: str = ""
    pins: tuple[tuple[str, str, str], ...] | None = None
    edited: tuple[str, ...] = ()


class OverrideConstraint(Record):
    """Spec 3's typed override: calls with this signature are denied until a file changes or the turn ends.

    `repeats` counts the calls that made it a loop and those since. It is `obeyed` once the model does something else.
    """

    signature: str
    tool: str
    target: str
    repeats: int
    obeyed: bool = False


class LoopVerdict(StrEnum):
    """Is this progress?"""

    FRESH, OVERRIDE, PERSISTED = "fresh", "override", "persisted"
    ANSWERED, BROKEN, GAVE_UP = "answered", "broken", "gave_up"


class Verification(Record):
    """What is known of a turn's changes as a whole. Checks that ran before a later change say nothing of it.

    passed: `ran` names what was run, with counts ("pytest tests/test_cart.py: 2 tests"), and `lines` the changed lines
    that it executed ("cart.py:3-7"), empty where that is not known. indistinct: it passes, but only tests that the
    session has changed do so, and they pass on the files before its first change as well. none: `reason` says why
    nothing could be run, "" where no file was changed. contradicted: it says what failed. Of the passing tests,
    `failed_before` show the difference, `new_code` could not run before, and `indistinct` verify nothing. `skip_reason`
    is what most of the `skipped` tests say.
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


class Mark(Record):
    """What a person should know of a changed file; `detail` is how tests are weakened, a size, where a link leads."""

    kind: Literal[
        "not_named", "deleted", "tests_deleted", "tests_weakened", "tests_ignored", "runs_later", "link", "large"
    ]
    path: str
    detail: str = ""


class LoopRecord(Record):
    """Loop control's memory: for each step, oldest first, the signatures of its calls.

    `outcomes` hash results by signature, `failed_tries` are steps in a row whose edits or checks failed, `missed` files
    of edits that missed, `verified` what the checks since the last change came to, `refused` calls in words.
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


# --- How a run ends


class OutcomeKind(StrEnum):
    """The three terminals. Each has its own process exit code (`mendgraph.graph.cli`)."""

    FINISHED, BUDGET_STOP, SYSTEM_ERROR = "FINISHED", "BUDGET_STOP", "SYSTEM_ERROR"


_LOW: Final = " The default is small; --unattended has larger ones."


class StopReason(StrEnum):
    """Why a run ended; closed. Each says how to go on, and whether it is a limit: then the run ends in BUDGET_STOP.

    `from_outside`: the model has no part in it. Time, a person, the endpoint, the machine or other runs made this end.
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
    DAY_LIMIT = "day_limit", "Continue tomorrow (UTC), or `mendgraph resume --max-tokens-per-day N`.", True, True
    ACCOUNT_LIMIT = "account_limit", "Raise it, or use another account: `mendgraph resume --account NAME`.", True, True


class StopCause(Record):
    """Why a node sends the run to a terminal: the reason, a human sentence, the evidence."""

    reason: StopReason
    message: str
    diagnostics: tuple[str, ...] = ()


class Outcome(Record):
    """How a run ended; set exactly once in a turn, by `stop/`. `answer` is "" and `value` None unless FINISHED.

    `message` is for people. Where files were changed it names them and says what `verified` says: "Changed cart.py; 2
    tests pass." Without a change it is the answer, or why the run ended. `marks` are what else it says of single files,
    `refused` the calls that were not allowed, each with the reason. `quotes` is the format of a call that it shows.
    `restored` are files that are as before the turn, as its work failed: `mendgraph apply` puts its changes back.
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


# --- What the operating system refused, and what was asked for wrongly, as errors that a model and a person can act on

LONGEST_QUOTE = 200
"""Characters of a path that an error message repeats."""

_FAILURES: Final[dict[int, tuple[ToolErrorCode, str]]] = {
    errno.ENOENT: (ToolErrorCode.NOT_FOUND, "there is no such file or directory"),
    errno.EACCES: (ToolErrorCode.PERMISSION_DENIED, "the file permissions do not allow it"),
    errno.EPERM: (ToolErrorCode.PERMISSION_DENIED, "the operating system does not allow it"),
    errno.EROFS: (ToolErrorCode.PERMISSION_DENIED, "the file system is read-only"),
    errno.EISDIR: (ToolErrorCode.INVALID_ARGUMENT, "it is a directory, and a file is needed"),
    errno.ENOTDIR: (ToolErrorCode.INVALID_ARGUMENT, "a part of it is a file where a directory is needed"),
    errno.ENXIO: (ToolErrorCode.INVALID_ARGUMENT, "it is not a regular file (a pipe, socket or device)"),
    errno.ENAMETOOLONG: (ToolErrorCode.INVALID_ARGUMENT, "the name is too long"),
    errno.ELOOP: (ToolErrorCode.INVALID_ARGUMENT, "its symbolic links lead in a circle"),
    errno.EEXIST: (ToolErrorCode.CONFLICT, "it exists already"),
    errno.ESTALE: (ToolErrorCode.CONFLICT, "it changed while it was being opened; try again"),
    errno.ENOSPC: (ToolErrorCode.IO_ERROR, "the disk is full"),
    errno.EDQUOT: (ToolErrorCode.IO_ERROR, "the disk quota is used up"),
    errno.EIO: (ToolErrorCode.IO_ERROR, "the disk reports an error"),
}

_FATAL_FOR_CHANGES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
"""What stands in the way of every change, whatever a model tries next."""

_CHANGING: Final = frozenset({"write", "delete", "move", "move to"})


def os_failure(error: OSError, doing: str, path: str) -> ToolError:
    """The error for `doing` (a verb, such as "read") at `path`, which names the path and the reason."""
    code, reason = _FAILURES.get(error.errno or 0, (ToolErrorCode.IO_ERROR, error.strerror or type(error).__name__))
    fatal = doing in _CHANGING and error.errno in _FATAL_FOR_CHANGES
    return ToolError(code=code, message=f"Cannot {doing} {quoted(path)}: {reason}.", fatal=fatal)


def is_disk_full(error: ToolError) -> bool:
    """Whether `os_failure` told this of a full disk: whoever makes room can try again."""
    full = tuple(f": {_FAILURES[number][1]}." for number in (errno.ENOSPC, errno.EDQUOT))
    return error.message.endswith(full)


def quoted(path: str) -> str:
    """The path between quotes on one line: control and invisible characters escaped, and never long."""
    return repr(path if len(path) <= LONGEST_QUOTE else f"{path[:LONGEST_QUOTE]}...")


def invalid(message: str, *suggestions: str) -> ToolError:
    """An INVALID_ARGUMENT error."""
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)
