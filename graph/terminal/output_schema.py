"""The JSON Schema (2020-12) of what `--json` and `--json-lines` write, made from the records that are written. Pure.

Within one version of the schema keys are added, and none is taken away or given another meaning: readers pass over
keys that they do not know.
"""

from types import GenericAlias
from typing import Any, Final, Literal, NotRequired, cast, get_args, get_type_hints

from pydantic import TypeAdapter, create_model
from typing_extensions import TypedDict

from mendgraph.graph.cassettes.from_run import WrittenCassette
from mendgraph.graph.configuration.settings_file import Problem
from mendgraph.graph.doctor.findings import Finding
from mendgraph.graph.fleet.batch.batch_folder import BatchResult, Tally
from mendgraph.graph.fleet.batch.tasks import TaskResult
from mendgraph.graph.runs.events import Compacted, Ended, Event, Paid
from mendgraph.graph.runs.runs import RunDiff
from mendgraph.graph.spending.store import AccountSpent, ModelDay
from mendgraph.graph.terminal.output_lines import SCHEMA, event_name
from mendgraph.nodes.call_model.embedded.pull import Pulled
from mendgraph.nodes.execute_tools.journal.restoring import LeftFile, RestoredFile
from mendgraph.nodes.records import ExtractionError, FileChange, JsonMap, Outcome, Plan

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DEFINITIONS: Final = "$defs"


def _object(_name: str, _about: str, _base: Any = None, **fields: Any) -> Any:
    """The type of an object with these keys, all of which it has."""
    required = {name: (kind, ...) for name, kind in fields.items()}
    return cast("Any", create_model)(_name, __doc__=_about, __base__=_base, **required)


def _list_of(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


_RESTORED: Final = _object(
    "RestoredObject",
    "What was taken back; `cut_off` are tools of which nobody knows what they changed.",
    restored=list[RestoredFile],
    left=list[LeftFile],
    removed_directories=list[str],
    cut_off=list[str],
    steps=list[int],
)
_RUN: Final = _object(
    "RunObject",
    "A run: `state` is where it stands now, `kind` and `reason` how its last turn ended, if it has.",
    **dict.fromkeys(("run_id", "state", "task", "created", "updated", "request"), str),
    **dict.fromkeys(("kind", "reason", "message", "answer", "durability", "parent"), str),
    can_go_on=bool,
    turns=int,
    files=list[str],
    context=dict[str, Any],
    forked_at=int | None,
)
_CALL: Final = _object("CallOfStep", "A call, and what it was aimed at.", tool=str, target=str)
_STEP: Final = _object(
    "StepObject",
    "A step of a run.",
    step=int,
    turn=int,
    kind=str,
    calls=_list_of(_CALL),
    changed=list[str],
    can_fork=bool,
)
_SETTING: Final = _object(
    "SettingObject", "A setting and who set it; `line` is 0 where that is no file.", value=Any, origin=str, line=int
)
_CHECKED: Final = _object("CheckedFile", "A file without problems, and what it sets.", file=str, settings=list[str])
_DAY: Final = _object("DayObject", "A day (UTC) and its models.", day=str, models=list[ModelDay])
_COMMAND: Final = _object("ChatCommand", "A command of a chat, and what it does.", name=str, usage=str, help=str)

_ANSWERS: Final[tuple[Any, ...]] = (
    _object("ShownRun", "The answer to `runs show`.", _RUN, steps=_list_of(_STEP)),
    _RESTORED,
    _object("ForkedRun", "The answer to `fork`.", _RESTORED, run_id=str, parent=str, at=int, resume=str),
    _object("PrunedRuns", "The answer to `runs prune`.", removed=list[str], freed_bytes=int),
    _object("WrittenReport", "The answer to `report`.", run_id=str, path=str, bytes=int),
    _object("DoctorObject", "The answer to `doctor`; `ok`: nothing is a problem.", ok=bool, checks=list[Finding]),
    _object("Written", "The answer to `doctor --bundle`.", path=str, files=dict[str, str], reproduce=list[str]),
    _object("SettingsObject", "The answer to `config`.", settings=GenericAlias(dict, (str, _SETTING)), files=list[str]),
    _object("CheckedFiles", "The answer to `config check`.", files=_list_of(_CHECKED)),
    _object("TrustObject", 'The answer to `config trust`; `sha256` is "" without trust.', trusted=bool, sha256=str),
    _object(
        "WeightsObject",
        "The answer to `model status`; `usable`: the weights are whole, and the extra `local` is there to run them.",
        state=Literal["ready", "absent", "partial", "damaged"],
        path=str,
        bytes_present=int,
        bytes_expected=int,
        extra_installed=bool,
        usable=bool,
    ),
    Pulled,
    _object("AddressObject", "What `model serve` says once it serves.", base_url=str),
    WrittenCassette,
    _object("ReplayObject", "What `cassette serve` says at its end.", misses=list[str], unplayed=int),
    TaskResult,
    _object(
        "BatchObject",
        "The summary of a `batch`, after the results of its tasks (`TaskResult`), each on a line of its own.",
        **{name: kind for name, kind in get_type_hints(BatchResult).items() if name != "tally"},
        **get_type_hints(Tally),
        left=int | None,
    ),
)
_LISTED: Final[tuple[Any, ...]] = (_RUN, _DAY, AccountSpent)
"""Answers that are an array of these: `runs`, `usage` and `usage --accounts`."""


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


class ErrorDetail(TypedDict):
    """What went wrong. `suggestions` are what may have been meant, `problems` those of files of settings."""

    code: str
    message: str
    suggestions: NotRequired[list[str]]
    problems: NotRequired[list[Problem]]


class EndedLine(TypedDict):
    """The turn is over; the last line of a task."""

    event: Literal["ended"]
    result: ResultObject


_CHAT: Final[dict[str, tuple[Any, str]]] = {
    "error": (
        ErrorDetail,
        "There is no result: the command line is wrong, the run was ended at once, or there is a bug.",
    ),
    "usage": (dict[str, float | None], "What a chat has used so far: the answer to `/usage`."),
    "diff": (list[RunDiff], "The answer to `/diff`: what the run has changed and nobody has taken back."),
    "undo": (_RESTORED, "The answer to `/undo`."),
    "plan": (Plan, "The answer to `/plan`."),
    "model": (
        _object(
            "AnsweringModel",
            "A model, null: any.",
            model=str | None,
            base_url=str,
            embedded=bool,
        ),
        "The answer to `/model`: which one answers, from the next turn on where it was changed.",
    ),
    "help": (_list_of(_COMMAND), "The answer to `/help`."),
    "exit": (_object("ThreadReference", "A thread.", thread_id=str), "The answer to `/exit`: the chat is over."),
}
"""What an object with this only key holds, and says. With `--json-lines` the key is the name of its event as well."""

_WHOLE: Final[tuple[type, ...]] = (AccountSpent, Finding, ModelDay, Problem, RunDiff)
"""Records that are written with all their fields, those with a default as well."""

EVENTS: Final[tuple[type, ...]] = tuple(kind for kind in get_args(Event) if kind is not Ended)


def object_schema() -> JsonMap:
    """The schema of what `--json` writes: that of a task first, then those of the other commands."""
    title = "What `mendgraph --json` writes: one object on a line, or an array of runs, days, accounts or findings."
    schemas, definitions = _schemas(ResultObject, *_ANSWERS, *_LISTED)
    one, alone, listed = schemas[:1], schemas[1 : -len(_LISTED)], schemas[-len(_LISTED) :]
    chat, more = _chat_schemas(lines=False)
    arrays = ({"type": "array", "items": each} for each in listed)
    return _schema(title, [*one, *chat, *alone, *arrays], definitions | more)


def line_schema() -> JsonMap:
    """The schema of each line of `--json-lines`."""
    (ended, *events), definitions = _schemas(EndedLine, *EVENTS)
    for kind in EVENTS:
        definition = definitions[kind.__name__]
        definitions[f"{kind.__name__}Line"] = _as_line(definition, event_name(kind))
        if kind not in {Paid, Compacted}:  # which stand in results as well
            del definitions[kind.__name__]
    chat, more = _chat_schemas(lines=True)
    lines = [{"$ref": f"{each['$ref']}Line"} for each in events]
    title = "What `mendgraph --json-lines` writes: each line is one of these objects."
    return _schema(title, [ended, *lines, *chat], definitions | more)


def _as_line(definition: JsonMap, event: str) -> JsonMap:
    return {
        **definition,
        "properties": {"event": {"const": event, "type": "string"}, **definition.get("properties", {})},
        "required": ["event", *definition.get("required", [])],
    }


def _chat_schemas(*, lines: bool) -> tuple[list[JsonMap], JsonMap]:
    held, definitions = _schemas(*(kind for kind, _ in _CHAT.values()))
    references = []
    for (key, (_, about)), schema in zip(_CHAT.items(), held, strict=True):
        name = f"{key.title()}{'Line' if lines else 'Object'}"
        made = {"description": about, "title": name, "type": "object", "properties": {key: schema}, "required": [key]}
        definitions[name] = _as_line(made, key) if lines else made
        references.append({"$ref": f"#/{_DEFINITIONS}/{name}"})
    return references, definitions


def _schema(title: str, kinds: list[JsonMap], definitions: JsonMap) -> JsonMap:
    return {"$schema": DIALECT, "title": title, "version": SCHEMA, "anyOf": kinds, _DEFINITIONS: definitions}


def _schemas(*kinds: Any) -> tuple[list[JsonMap], JsonMap]:
    """The schema of each of these types, and the definitions that they refer to."""
    adapters: list[tuple[int, Literal["serialization"], TypeAdapter[Any]]] = [
        (number, "serialization", TypeAdapter(kind)) for number, kind in enumerate(kinds)
    ]
    schemas, made = TypeAdapter.json_schemas(adapters)
    definitions: JsonMap = made[_DEFINITIONS]
    for kind in (ExtractionError, LeftFile, RestoredFile):  # tuples, which are maps among our values
        if (found := definitions.get(kind.__name__)) is not None:
            properties = dict(zip(kind._fields, found["prefixItems"], strict=True))
            about = {key: found[key] for key in ("title", "description") if key in found}
            named = {"type": "object", "properties": properties, "required": [*properties]}
            definitions[kind.__name__] = {**about, **named}
    for name in (kind.__name__ for kind in _WHOLE):
        if (found := definitions.get(name)) is not None:
            found["required"] = [*found["properties"]]
    return [dict(schemas[number, "serialization"]) for number in range(len(kinds))], definitions
