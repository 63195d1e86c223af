"""An action of spec 4 as a tool of the engine, and what became of it."""

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PosixPath, PurePath, PurePosixPath
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from pydantic import BaseModel

from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolResult

UNKNOWN: Final = "<unknown>"
"""Stands for the name of what has none. Source: spec 4."""


class Action(Protocol):
    """What an environment runs. It may declare its `effect`; without one it counts as changing the world."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def execute(self) -> Callable[..., Any]:
        """The method that does it. Whatever it raises becomes an error of the result."""


@dataclass
class ExecResult:
    """What became of an action. `ms` is wall time in milliseconds, `retries` the attempts after the first.

    `data` is the very object that the action gave back: nothing is clipped or copied for a caller in Python. Only where
    a secret can be seen in it, it is a copy made of JSON values without secrets. `args` are always such a copy: those
    that the action was given, or those of the caller where it failed. `error` and `error_type` (the name of the
    exception, or the code of a tool's typed error) are None where it went well, `data` is None where it did not.
    """

    ok: bool
    action: str
    args: JsonMap
    data: Any | None = None
    error: str | None = None
    ms: int = 0
    retries: int = 0
    error_type: str | None = None

    def to_dict(self) -> JsonMap:
        """All fields by name, in this order."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class ActionError(RuntimeError):
    """An action came to no value: it was refused, or failed by a typed error. `kind` is the result's `error_type`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class OwnTimeout(NamedTuple):
    """A TimeoutError that the action itself raised; the other one is that of whoever waits for it."""

    error: TimeoutError


class SeenArguments(BaseModel):
    """What the engine sees of the arguments: their text as JSON. The action gets the arguments themselves."""

    text: str = ""


def name_of(action: Action) -> str:
    """What the action is called. What has no name cannot be allowed, counted or found in a log.

    Raises:
        TypeError: it has none.
    """
    name = getattr(action, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError("an action needs a name: a text that is not empty")
    return str.__str__(name)


def attempt_of(action: Action, arguments: Mapping[str, Any]) -> Tool:
    """One attempt at the action with these arguments, which gives its value as it is, or an OwnTimeout."""

    def run(_: ToolContext, __: SeenArguments) -> Any:
        try:
            return _awaited(action.execute(**arguments))
        except TimeoutError as error:
            return OwnTimeout(error)

    async def arun(_: ToolContext, __: SeenArguments) -> Any:
        try:
            return await action.execute(**arguments)
        except TimeoutError as error:
            return OwnTimeout(error)

    body = arun if inspect.iscoroutinefunction(getattr(action, "execute", None)) else run
    return Tool(action.name, action.name, SeenArguments, Effect.NONE, body)


def value_of(returned: Any) -> Any:
    """What a caller in Python is given of what an action gave back: the data of a tool's result, or a ToolError."""
    result = returned.result if isinstance(returned, ToolOutput) else returned
    if isinstance(result, ToolResult):
        return result.data if result.error is None else result.error
    return result


def seen(value: Any, status: int | None) -> ToolOutput:
    """What the engine is told of such a value: whether it is a failure, and the HTTP status where it has one."""
    if isinstance(value, ToolError):
        return ToolOutput.failed(value)
    return ToolOutput.ok() if status is None else ToolOutput.ok(status=status)


def _awaited(value: Any) -> Any:
    """What a coroutine comes to, where a function that is none gave one back."""
    if not inspect.iscoroutine(value):
        return value
    try:
        return asyncio.run(value)
    finally:
        value.close()


_PATH_FIELDS: Final = ("file_name", "filename", "path", "target", "directory")
_READING: Final = frozenset({"read_file", "search_in_file", "file_info"})
_LISTING: Final = frozenset({"list_files", "list_directory", "glob_files", "search_files"})
_TEXT_WRITING: Final = frozenset({"write_file", "append_file"})
_WRITING: Final = _TEXT_WRITING | {"edit_file", "multi_edit", "delete_file", "move_file", "create_file"}

GOING_OUT: Final = frozenset({"http_get", "http_post", "fetch_url"})
"""Actions whose `url` is judged. Source: spec 4."""


def path_fields(action: str) -> tuple[str, ...]:
    """The arguments that name files, where this is a file action."""
    return _PATH_FIELDS if action in _READING | _LISTING | _WRITING else ()


def lists(action: str) -> bool:
    """Whether what this action names are folders, which are of no kind."""
    return action in _LISTING


def names_a_folder(action: str, field: str) -> bool:
    """Whether this argument may be a folder instead of a file: the kind of the file is then that of what is moved."""
    return action == "move_file" and field in {"target", "directory"}


def effect_of(action: str) -> Effect:
    """What an action of this name does; one that is not known counts as changing the world."""
    if action in _READING | _LISTING:
        return Effect.READ
    return Effect.NETWORK if action in {"http_get", "fetch_url"} else Effect.WRITE


def is_writer(action: str) -> bool:
    """Whether an action of this name is known to change something."""
    return action in _WRITING or action == "http_post"


def named_arguments(arguments: object) -> dict[str, Any]:
    """A copy of the arguments of a call, which has each of them by its name.

    Raises:
        TypeError: it is no mapping, or one of its keys is no text.
    """
    if not isinstance(arguments, Mapping):
        raise TypeError(f"the arguments of an action are a mapping, not {type(arguments).__name__}")
    found = dict(arguments)
    if wrong := next((type(key).__name__ for key in found if not isinstance(key, str)), ""):
        raise TypeError(f"the names of arguments are texts, not {wrong}")
    return found


def check_content(action: str, arguments: JsonMap) -> None:
    """Writers must supply content.

    Raises:
        ValueError: they do not.
    """
    if action in _TEXT_WRITING and not isinstance(arguments.get("content"), str):
        raise ValueError("Missing or invalid 'content' for write/append operation.")


LONGEST_INTEGER: Final = 14_000
"""Bits of an integer that are written out; Python refuses to write more than 4,300 digits."""

_SAID_BY_TEXT: Final = (PurePath, date, time, timedelta, Decimal, UUID)
_MANY: Final = (list, tuple, set, frozenset)
_PLAIN: Final = frozenset({
    type(None), bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID, PosixPath,
    PurePosixPath,
})  # fmt: skip


def json_like(value: Any, hidden: Collection[str] = ()) -> Any:
    """A copy of strings, numbers, lists and maps with text keys; paths, dates and bytes are texts, records are maps.

    Anything else is its `repr`, or its type where it has none; so is a value that contains itself, or is nested too
    deep. A number whose digits hold one of the `hidden` texts is a text, so that it can be taken out. Integers may be
    of any size, and texts may hold lone surrogates. Only KeyboardInterrupt is raised.
    """
    try:
        return _copied(value, hidden)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a value may fight back in any way
        return in_words(value)


def in_words(value: Any) -> str:
    """The value's `repr`, or its type where that fails. Only KeyboardInterrupt is raised."""
    try:
        return str.__str__(repr(value))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a value may fight back in any way
        return f"<{type(value).__name__}>"


def is_plain(value: Any) -> bool:
    """Whether the value is all that `json_like` shows of it: nothing in it is of a type that could hide more.

    What contains itself, or is nested too deep, is not.
    """
    try:
        return _is_plain(value)
    except RecursionError:
        return False


def freed(value: Any, redactor: Redactor) -> Any:
    """The value itself if no secret can be seen in it, else a copy made of JSON values with marks.

    Of a map or list that cannot be looked through there is the `repr`. Only KeyboardInterrupt is raised.
    """
    told = json_like(value, redactor.forms)
    safe = redactor.content(told)
    hidden = isinstance(told, str) and isinstance(value, (Mapping, *_MANY))
    return value if safe == told and not hidden else safe


def shown(record: JsonMap, redactor: Redactor) -> JsonMap:
    """A copy for people, made of JSON values; what cannot be looked through costs no more than its own field."""
    safe: JsonMap = {}
    for key, value in record.items():
        plain = redactor.value({key: json_like(value, redactor.forms)})
        safe |= plain if isinstance(plain, dict) else {redactor.text(key): plain}
    return safe


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    if type(value) is dict:
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    return type(value) in _MANY and all(_is_plain(each) for each in value)


def _copied(value: Any, hidden: Collection[str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _copied(value.value, hidden)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return _number(value, hidden)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, _SAID_BY_TEXT):
        return str(value)
    if isinstance(value, Mapping):
        return _map(value, hidden)
    if isinstance(value, _MANY):
        return [_part(each, hidden) for each in value]
    return _record(value, hidden)


def _part(value: Any, hidden: Collection[str]) -> Any:
    """The same of what stands inside of another value, where only that one may say that it is nested too deep."""
    try:
        return _copied(value, hidden)
    except (KeyboardInterrupt, RecursionError):
        raise
    except BaseException:  # noqa: BLE001 - a value may fight back in any way
        return in_words(value)


def _number(value: float, hidden: Collection[str]) -> int | float | str:
    if isinstance(value, float):
        plain: int | float = float.__float__(value)
    else:
        plain = int.__int__(value)
        if plain.bit_length() > LONGEST_INTEGER:
            return f"<int of {plain.bit_length()} bits>"
    return str(plain) if any(text in str(plain) for text in hidden) else plain


def _map(value: Mapping[Any, Any], hidden: Collection[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, each in value.items():
        name = str(_part(key, hidden))
        while name in found:  # 1 and "1" are two keys
            name += "_"
        found[name] = _part(each, hidden)
    return found


def _record(value: Any, hidden: Collection[str]) -> Any:
    if isinstance(value, BaseModel):
        return _map(value.model_dump(), hidden)
    if is_dataclass(value) and not isinstance(value, type):
        return _map({each.name: getattr(value, each.name) for each in fields(value)}, hidden)
    return in_words(value)
