"""What `--json` and `--json-lines` write, as types and as JSON Schema (2020-12) that is derived from them. Pure.

Within one version of the schema keys are added, and none is taken away or given another meaning: readers pass over
keys that they do not know.
"""

from typing import Any, Final, Literal, NotRequired, TypeAlias, get_args

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from graph.events import Compacted, Ended, Event, Paid
from graph.terminal.answer_objects import ANSWERS, LISTED
from graph.terminal.command_objects import COMMAND_LINES, COMMAND_OBJECTS
from graph.terminal.ending import SCHEMA
from graph.terminal.json_lines import event_name
from nodes.records import ExtractionError, FileChange, JsonMap, Outcome, Plan

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
