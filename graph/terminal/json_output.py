"""What `--json` and `--json-lines` write, and its JSON Schema. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, Literal, NotRequired, TypeAlias, get_args

from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from graph.batch.orders import TaskResult
from graph.events import Compacted, Ended, Event, Paid
from graph.terminal.output_lines import SCHEMA
from nodes.execute_tools.redact import redact
from nodes.records import ExtractionError, FileChange, JsonMap, Outcome, Plan


class DiffOfFile(TypedDict):
    """What became of a file: a unified diff, or the `problem` for which there is none.

    `changed_since`: somebody else has changed it after the run, which is in the diff as well.
    """

    path: str
    diff: str
    problem: str
    changed_since: bool


class DiffObject(TypedDict):
    """The answer to `/diff`: what the run has changed and nobody has taken back."""

    diff: list[DiffOfFile]


class RestoredFileObject(TypedDict):
    """A file that was restored, and what had become of it."""

    path: str
    kind: Literal["created", "edited", "deleted"]


class LeftFileObject(TypedDict):
    """A file that was left as it is, and why."""

    path: str
    why: str


class RestoredObject(TypedDict):
    """What was taken back; `cut_off` are tools of which nobody knows what they changed."""

    restored: list[RestoredFileObject]
    left: list[LeftFileObject]
    removed_directories: list[str]
    cut_off: list[str]
    steps: list[int]


class UndoObject(TypedDict):
    """The answer to `/undo`."""

    undo: RestoredObject


class PlanObject(TypedDict):
    """The answer to `/plan`."""

    plan: Plan


class ModelWords(TypedDict):
    """A model: null where the endpoint is to name it; `base_url` is "" for the usual one."""

    model: str | None
    base_url: str
    embedded: bool


class ModelObject(TypedDict):
    """The answer to `/model`: which one answers, from the next turn on where it was changed."""

    model: ModelWords


class CommandWords(TypedDict):
    """A command of a chat, how it is written, and what it does."""

    name: str
    usage: str
    help: str


class HelpObject(TypedDict):
    """The answer to `/help`."""

    help: list[CommandWords]


class ExitWords(TypedDict):
    """The thread that can be talked on with."""

    thread_id: str


class ExitObject(TypedDict):
    """The answer to `/exit`: the chat is over."""

    exit: ExitWords


class DiffLine(DiffObject):
    """The answer to `/diff` among JSON lines."""

    event: Literal["diff"]


class UndoLine(UndoObject):
    """The answer to `/undo` among JSON lines."""

    event: Literal["undo"]


class PlanLine(PlanObject):
    """The answer to `/plan` among JSON lines."""

    event: Literal["plan"]


class ModelLine(ModelObject):
    """The answer to `/model` among JSON lines."""

    event: Literal["model"]


class HelpLine(HelpObject):
    """The answer to `/help` among JSON lines."""

    event: Literal["help"]


class ExitLine(ExitObject):
    """The answer to `/exit` among JSON lines."""

    event: Literal["exit"]


COMMAND_OBJECTS: Final[tuple[Any, ...]] = (DiffObject, UndoObject, PlanObject, ModelObject, HelpObject, ExitObject)
COMMAND_LINES: Final[tuple[Any, ...]] = (DiffLine, UndoLine, PlanLine, ModelLine, HelpLine, ExitLine)


class RunObject(TypedDict):
    """A run of this folder: `state` is where it stands now, `kind` and `reason` how its last turn ended, if it has."""

    run_id: str
    state: str
    can_go_on: bool
    task: str
    created: str
    updated: str
    turns: int
    request: str
    kind: str
    reason: str
    message: str
    answer: str
    files: list[str]
    context: dict[str, Any]
    durability: str
    parent: str
    forked_at: int | None


class CallOfStep(TypedDict):
    """A call, and what it was aimed at."""

    tool: str
    target: str


class StepObject(TypedDict):
    """A step of a run."""

    step: int
    turn: int
    kind: str
    calls: list[CallOfStep]
    changed: list[str]
    can_fork: bool


class ShownRun(RunObject):
    """The answer to `runs show`."""

    steps: list[StepObject]


class PrunedRuns(TypedDict):
    """The answer to `runs prune`."""

    removed: list[str]
    freed_bytes: int


class ForkedRun(RestoredObject):
    """The answer to `fork`: the new run, and what was taken back of the other one."""

    run_id: str
    parent: str
    at: int
    resume: str


class WrittenReport(TypedDict):
    """The answer to `report`."""

    run_id: str
    path: str
    bytes: int


class ModelOfDay(TypedDict):
    """What one model has used on one day; `unsettled` calls have no end yet."""

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cache_write_tokens: int
    cost_usd: float
    unpriced_calls: int
    unsettled: int
    seconds: float


class DayObject(TypedDict):
    """A day (UTC) and its models."""

    day: str
    models: list[ModelOfDay]


class AccountObject(TypedDict):
    """What an account has ever used; `unsettled` calls have no end yet, `account` is "" for runs that name none."""

    account: str
    calls: int
    tokens: int
    cost_usd: float
    unpriced: int
    unsettled: int
    first_day: str
    last_day: str


class CheckObject(TypedDict):
    """One finding of `doctor`; `remedy` is "" where there is nothing to do."""

    name: str
    status: Literal["ok", "warning", "problem", "off"]
    found: str
    remedy: str


class DoctorObject(TypedDict):
    """The answer to `doctor`; `ok`: nothing is a problem."""

    ok: bool
    checks: list[CheckObject]


class BundleObject(TypedDict):
    """The answer to `doctor --bundle`: the file, what lies in it, and commands that reproduce the matter."""

    path: str
    files: dict[str, str]
    reproduce: list[str]


class SettingObject(TypedDict):
    """A setting and who set it; `line` is 0 where that is no file."""

    value: Any
    origin: str
    line: int


class SettingsObject(TypedDict):
    """The answer to `config`."""

    settings: dict[str, SettingObject]
    files: list[str]


class CheckedFile(TypedDict):
    """A file without problems, and what it sets."""

    file: str
    settings: list[str]


class CheckedFiles(TypedDict):
    """The answer to `config check`."""

    files: list[CheckedFile]


class TrustObject(TypedDict):
    """The answer to `config trust`; `sha256` is "" where the file is not trusted any more."""

    trusted: bool
    sha256: str


class WeightsObject(TypedDict):
    """The answer to `model status`; `usable`: the weights are whole, and the extra `local` is there to run them."""

    state: Literal["ready", "absent", "partial", "damaged"]
    path: str
    bytes_present: int
    bytes_expected: int
    extra_installed: bool
    usable: bool


class PulledObject(TypedDict):
    """The answer to `model pull`; `source` is "cache" where nothing had to be fetched."""

    path: str
    size_bytes: int
    source: str


class AddressObject(TypedDict):
    """What `model serve` says once it serves."""

    base_url: str


class WrittenCassetteObject(TypedDict):
    """The answer to `cassette from-run`: what was written, and how the test is started."""

    run_id: str
    name: str
    paths: list[str]
    exchanges: int
    files: int
    end: str
    command: str


class LintFindingObject(TypedDict):
    """Something to mend in a cassette; lines count from 1. A `note` is nothing to mend: something was not looked at."""

    path: str
    line: int
    what: str
    remedy: str
    note: bool


class ReplayObject(TypedDict):
    """What `cassette serve` says at its end: requests that it refused, and how many exchanges nobody asked for."""

    misses: list[str]
    unplayed: int


class BatchObject(TypedDict):
    """The summary of a `batch`, after the results of its tasks (`TaskResult`), each on a line of its own.

    `end` says whether each task has its result, or what ended it before. `stopped` tasks met a limit; `unpriced` ones
    have made calls without a known price. `total` and `left` are null where nobody knows how many tasks there are.
    """

    batch: str
    folder: str
    end: Literal["complete", "limit", "cancelled", "failed"]
    message: str
    total: int | None
    left: int | None
    finished: int
    stopped: int
    failed: int
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cache_write_tokens: int
    cost_usd: float
    unpriced: int


ANSWERS: Final[tuple[Any, ...]] = (
    ShownRun,
    RestoredObject,
    ForkedRun,
    PrunedRuns,
    WrittenReport,
    DoctorObject,
    BundleObject,
    SettingsObject,
    CheckedFiles,
    TrustObject,
    WeightsObject,
    PulledObject,
    AddressObject,
    WrittenCassetteObject,
    ReplayObject,
    TaskResult,
    BatchObject,
)
LISTED: Final[tuple[Any, ...]] = (RunObject, DayObject, AccountObject, LintFindingObject)
"""Answers that are an array of these: `runs`, `usage`, `usage --accounts` and `cassette lint`."""


_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")
_RECORDS: Final = frozenset({"arguments", "payload"})
"""Maps with names that others chose: what stands under a secret's name goes."""


def event_name(kind: type) -> str:
    """The name of a class of events: `tool_started` of `ToolStarted`."""
    return _WORD.sub("_", kind.__name__).lower()


def event_as_map(event: Event, scrub: Callable[[str], str]) -> JsonMap:
    """One event as JSON values, without secrets: its name, then its fields."""
    return {"event": event_name(type(event)), **_plain(event, scrub)}


def _plain(value: Any, scrub: Callable[[str], str], name: str = "") -> Any:
    """The value as JSON values; records of each kind are maps, and of what is none of these only the type is told."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return scrub(value)
    named = _fields_of(value)
    if named is not None:
        shown = redact(named) if name in _RECORDS else named
        return {scrub(str(key)): _plain(each, scrub, str(key)) for key, each in shown.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, scrub) for each in value]
    return f"<{type(value).__name__}>"


def _fields_of(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else None


DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DEFINITIONS: Final = "$defs"


class RefusedCall(TypedDict):
    """A call that was not allowed: its tool, what it was about ("" where it says nothing of the kind), and why.

    `code` is `permission_denied` (by guard or by a person), `approval_required` (nobody could be asked) or
    `loop_override` (the same action too often).
    """

    tool: str
    target: str
    code: str
    message: str


class ResultObject(TypedDict):
    """How a turn ended. `steps` are its model calls, each try one; `changes` are its file effects, in order.

    `usage` are counters of the turn and of its session. `log` is the path of the run's log; `resume` is the command
    that goes on with it, and is there only where it can go on.
    """

    schema: Literal[1]
    outcome: Outcome
    changes: list[FileChange]
    plan: Plan
    usage: dict[str, float | None]
    steps: list[Paid]
    compactions: list[Compacted]
    refused: list[RefusedCall]
    thread_id: str
    log: str | None
    resume: NotRequired[str]


class SettingsProblem(TypedDict):
    """What is wrong with a file of settings. Line and column count from 1, 0 where it is about the whole."""

    file: str
    message: str
    line: int
    column: int
    field: str


class ErrorWords(TypedDict):
    """What went wrong. `suggestions` are what may have been meant, `problems` those of files of settings."""

    code: str
    message: str
    suggestions: NotRequired[list[str]]
    problems: NotRequired[list[SettingsProblem]]


class ErrorObject(TypedDict):
    """There is no result: the command line is wrong, the run was ended at once, or there is a bug."""

    error: ErrorWords


class UsageObject(TypedDict):
    """What a chat has used so far: the answer to `/usage`."""

    usage: dict[str, float | None]


class EndedLine(TypedDict):
    """The turn is over; the last line of a task."""

    event: Literal["ended"]
    result: ResultObject


class ErrorLine(ErrorObject):
    """There is no result; the last line in place of `ended`."""

    event: Literal["error"]


class UsageLine(UsageObject):
    """The answer to `/usage` in a chat."""

    event: Literal["usage"]


_OBJECTS: Final[tuple[Any, ...]] = (ResultObject, ErrorObject, UsageObject, *COMMAND_OBJECTS)
_LINES: Final[tuple[Any, ...]] = (EndedLine, ErrorLine, UsageLine, *COMMAND_LINES)
_INSIDE_RESULTS: Final[frozenset[type]] = frozenset({Paid, Compacted})
EVENTS: Final[tuple[type, ...]] = tuple(kind for kind in get_args(Event) if kind is not Ended)

Mode: TypeAlias = Literal["validation", "serialization"]
_MODE: Final[Mode] = "serialization"


def object_schema() -> JsonMap:
    """The schema of what `--json` writes: that of a task first, then those of the other commands."""
    title = "What `mendgraph --json` writes: one object on a line, or an array of runs, days, accounts or findings."
    schema = _one_of(title, (*_OBJECTS, *ANSWERS, *LISTED))
    kinds = [_reference(kind) for kind in (*_OBJECTS, *ANSWERS)]
    return {**schema, "anyOf": [*kinds, *({"type": "array", "items": _reference(kind)} for kind in LISTED)]}


def line_schema() -> JsonMap:
    """The schema of each line of `--json-lines`."""
    schema = _one_of("What `mendgraph --json-lines` writes: each line is one of these objects.", (*EVENTS, *_LINES))
    definitions = schema[_DEFINITIONS]
    for kind in EVENTS:
        definition, name = definitions[kind.__name__], event_name(kind)
        definitions[f"{kind.__name__}Line"] = {
            **definition,
            "properties": {"event": {"const": name, "type": "string"}, **definition.get("properties", {})},
            "required": ["event", *definition.get("required", [])],
        }
        if kind not in _INSIDE_RESULTS:
            del definitions[kind.__name__]
    return {**schema, "anyOf": [_reference(f"{kind.__name__}Line") for kind in EVENTS] + list(map(_reference, _LINES))}


def _reference(kind: Any) -> JsonMap:
    return {"$ref": f"#/{_DEFINITIONS}/{kind if isinstance(kind, str) else kind.__name__}"}


def _one_of(title: str, kinds: tuple[Any, ...]) -> JsonMap:
    adapters = [(kind.__name__, _MODE, TypeAdapter(kind)) for kind in kinds]
    definitions = TypeAdapter.json_schemas(adapters)[1][_DEFINITIONS]
    if ExtractionError.__name__ in definitions:
        definitions[ExtractionError.__name__] = _named(definitions[ExtractionError.__name__], ExtractionError._fields)
    return {
        "$schema": DIALECT,
        "title": title,
        "version": SCHEMA,
        "anyOf": [_reference(kind) for kind in kinds],
        _DEFINITIONS: definitions,
    }


def _named(schema: JsonMap, names: tuple[str, ...]) -> JsonMap:
    """The schema of a named tuple as that of a map, which it is among our values."""
    about = {"description": schema["description"]} if "description" in schema else {}
    properties = dict(zip(names, schema["prefixItems"], strict=True))
    return {"title": schema.get("title", ""), **about, "type": "object", "properties": properties, "required": [*names]}
