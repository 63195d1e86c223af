"""What `--json` and `--json-lines` write of a run, and the JSON Schemas of it. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, Union, cast, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter, create_model
from typing_extensions import TypedDict

from mendgraph.graph.configuration.loading import Problem
from mendgraph.graph.runs.events import Compacted, Ended, Event, OfChild, Paid
from mendgraph.nodes.execute_tools.secrets.redact import redact
from mendgraph.nodes.language.text_protocol import ArgumentProblem, decode_arguments
from mendgraph.nodes.records import ExtractionError, FileChange, JsonMap, Outcome, Plan

if TYPE_CHECKING:
    from mendgraph.graph.runs.run import RunResult

SCHEMA: Final = 1
"""The version of objects for programs. Within a version keys are added; none is removed or changes its meaning."""

_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")
_RECORDS: Final = frozenset({"arguments", "payload", "raw_input"})
"""Maps whose names come from a model or a tool: a value under a secret's name is removed."""
_RAW_ARGUMENTS: Final = "raw_arguments"
"""The same as a JSON text."""


def result_object(result: "RunResult", account: JsonMap, log: str | None, resume: str | None) -> JsonMap:
    """Return the object of `--json`, a `ResultObject`.

    `account` are the turn's model calls, compactions and refused calls.
    """
    value: JsonMap = {
        "schema": SCHEMA,
        "outcome": result.outcome.model_dump(mode="json"),
        "changes": [change.model_dump(mode="json") for change in result.changes],
        "plan": result.plan.model_dump(mode="json"),
        "usage": result.outcome.usage,
        **account,
        "thread_id": result.thread_id,
        "log": log,
    }
    if resume:
        value["resume"] = resume

    return value


def event_as_map(event: Event, scrub: Callable[[str], str]) -> JsonMap:
    """Return an event as JSON values without secrets: its name, such as `tool_started`, then its fields."""
    values = {"event": _event_name(type(event).__name__), **plain_values(event, scrub)}
    if isinstance(event, OfChild):
        values["inner"] = event_as_map(event.inner, scrub)

    return values


def _event_name(class_name: str) -> str:
    return _WORD.sub("_", class_name).lower()


def plain_values(value: Any, scrub: Callable[[str], str], name: str = "") -> Any:
    """Return a value as JSON values without secrets; `name` is the field that holds it."""
    if isinstance(value, Enum):
        value = value.value

    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        if name == _RAW_ARGUMENTS:
            value = _without_named_secrets(value)

        return scrub(value)

    named = _fields_of(value)
    if named is not None:
        if name in _RECORDS:
            named = redact(named)

        return {scrub(str(key)): plain_values(item, scrub, str(key)) for key, item in named.items()}

    if isinstance(value, list | tuple | set | frozenset):
        return [plain_values(item, scrub) for item in value]

    return f"<{type(value).__name__}>"


def _without_named_secrets(text: str) -> str:
    """Return the JSON object without values under a secret's name; text that is no object stays."""
    arguments = decode_arguments(text)
    if isinstance(arguments, ArgumentProblem):
        return text

    masked = redact(arguments)
    if masked == arguments:
        return text

    return json.dumps(masked, ensure_ascii=False)


def _fields_of(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return cast("Mapping[Any, Any]", value._asdict())

    return None


# --- The schemas, generated from the records


class RefusedCall(TypedDict):
    """A call that was not allowed: its tool, its target ("" for none), and why.

    `code` is `permission_denied` (by guard or by a person), `approval_required` (nobody could be asked) or
    `loop_override` (the same action too often).
    """

    tool: str
    target: str
    code: str
    message: str


class ResultObject(TypedDict):
    """How a turn ended. `steps` are its model calls, one for each try; `changes` are its file effects, in order.

    `usage` are counters of the turn and of its session. `log` is the path of the run's log. `resume` is the command
    that continues the run, and is absent if it cannot continue. An unattended run has its `branch`, the id of its
    `commit` and its `worktree`, each "" if there is none.
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
    branch: NotRequired[str]
    commit: NotRequired[str]
    worktree: NotRequired[str]


class ErrorDetail(TypedDict):
    """What went wrong. `suggestions` are what may have been meant, `problems` those of settings files."""

    code: str
    message: str
    suggestions: NotRequired[list[str]]
    problems: NotRequired[list[Problem]]


_SINGLE_KEY: Final[Mapping[str, tuple[Any, str]]] = {
    "error": (ErrorDetail, "There is no result: the command is wrong, the run was ended at once, or there is a bug."),
    "usage": (dict[str, float | None], "The answer to `/usage`: what a chat has used so far."),
    "diff": (list[JsonMap], "The answer to `/diff`: what the run has changed and nobody has taken back, file by file."),
    "undo": (dict[str, list[Any]], "The answer to `/undo`: what was taken back, and what was left."),
    "plan": (Plan, "The answer to `/plan`."),
    "model": (dict[str, str | bool | None], "The answer to `/model`: the model that answers."),
    "mode": (dict[str, str], "The answer to `/mode`."),
    "compact": (dict[str, list[Compacted]], "The answer to `/compact`: how the conversation was shortened."),
    "permissions": (list[JsonMap], "The answer to `/permissions`: what is allowed in this run and in this folder."),
    "commit": (dict[str, str], "The answer to `/commit`: the id of the commit, empty if there was nothing to commit."),
    "report": (dict[str, str | int], "The answer to `/report`: where the page of the run is."),
    "clear": (dict[str, str], "The answer to `/clear`: the new thread."),
    "help": (list[dict[str, str]], "The answer to `/help`."),
    "exit": (dict[str, str], "The answer to `/exit`: the chat is over."),
}
"""Objects with one key: the type of its value and a description. With `--json-lines` the key also names the event."""


def object_schema() -> JsonMap:
    """Return the JSON Schema of what `--json` writes of a task and in a chat."""
    objects = [_object(f"{key.title()}Object", about, {key: kind}) for key, (kind, about) in _SINGLE_KEY.items()]
    return _schema(
        "What `mendgraph --json` writes of a task, and in a chat: one object a line.", ResultObject, *objects
    )


def line_schema() -> JsonMap:
    """Return the JSON Schema of each line of `--json-lines`."""
    events = [kind for kind in get_args(Event) if kind is not Ended]
    lines = [_line("Ended", "The turn is over; the last line of a task.", {"result": ResultObject})]
    lines += [_line(kind.__name__, kind.__doc__, get_type_hints(kind)) for kind in events]
    lines += [_line(key.title(), about, {key: kind}) for key, (kind, about) in _SINGLE_KEY.items()]
    return _schema("What `mendgraph --json-lines` writes: each line is one of these objects.", *lines)


def _line(name: str, about: str | None, hints: Mapping[str, Any]) -> Any:
    event: Any = Literal[_event_name(name)]
    return _object(f"{name}Line", about, {"event": event, **hints})


def _object(name: str, about: str | None, hints: Mapping[str, Any]) -> Any:
    """Return the type of an object that has all of these keys."""
    required = {key: (kind, ...) for key, kind in hints.items()}
    return cast("Any", create_model)(name, __doc__=about, **required)


def _schema(title: str, *kinds: Any) -> JsonMap:
    union: Any = Union[kinds]  # noqa: UP007
    schema = TypeAdapter[Any](union).json_schema(mode="serialization")

    definition = schema["$defs"].get(ExtractionError.__name__)  # a tuple, which `plain_values` writes as an object
    if definition is not None:
        properties = dict(zip(ExtractionError._fields, definition["prefixItems"], strict=True))
        schema["$defs"][ExtractionError.__name__] = {
            "type": "object",
            "properties": properties,
            "required": [*properties],
        }

    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "version": SCHEMA, **schema}
