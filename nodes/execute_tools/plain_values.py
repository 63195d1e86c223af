"""Any Python value as JSON would have it, so that it can be looked through, shown and told apart. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PosixPath, PurePath, PurePosixPath
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

from nodes.execute_tools.secrets.redact import Redactor
from nodes.records import JsonMap

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
