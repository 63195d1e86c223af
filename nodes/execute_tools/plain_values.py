"""Copies of any Python values that are made of JSON values. Nothing is iterated that may be used up by it."""

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from math import inf
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from mendgraph.nodes.records import JsonMap

_SPELLED: Final = (PurePath, date, time, Decimal, UUID)
_COLLECTIONS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset)
"""They are read with the methods of these types: the iterator of a user's subclass may query a database."""
_MORE: Final = "..."


def type_name(value: Any) -> str:
    """The type of a value, like <generator>."""
    return f"<{type(value).__name__}>"


def in_words(value: Any) -> str:
    """The `repr` of a value, or its type where it has none."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a value may fight back in any way
        return type_name(value)


def json_like(value: Any, most: float = inf, other: Callable[[Any], str] = type_name) -> Any:
    """A copy of the maps, lists, sets, models and dataclasses that a value is made of, and of the plain values in them.

    Of anything else, such as a generator, a file or a cursor, and of what contains itself, there is what `other` says.
    Behind `most` values it is only counted how many more a list or a map has.
    """
    try:
        return _copied(value, [most], other)
    except Exception:  # noqa: BLE001 - a value may fight back in any way
        return other(value)


def comparable(arguments: JsonMap) -> JsonMap:
    """Such a copy of arguments; TypeError where something in them has no such form."""

    def refuse(value: Any) -> Any:
        raise TypeError(f"a {type(value).__name__} in the arguments cannot be compared with another")

    copy: JsonMap = _copied(arguments, [inf], refuse)
    return copy


def without_known(value: Any, redactor: Redactor) -> Any:
    """The very object, or a copy where one of the redactor's known values stands in a text of its maps and lists."""
    if not redactor.forms:
        return value

    try:
        return _masked(value, redactor)
    except RecursionError:  # it contains itself
        return MARK


def _copied(value: Any, room: list[float], other: Callable[[Any], Any]) -> Any:
    room[0] -= 1
    if isinstance(value, Enum):
        value = value.value

    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, _SPELLED):
        return str(value)

    if isinstance(value, BaseModel):
        value = value.__dict__
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in fields(value)}

    if isinstance(value, dict):
        return _copied_map(dict.items(value), dict.__len__(value), room, other)
    for kind in _COLLECTIONS:
        if isinstance(value, kind):
            return _copied_list(kind.__iter__(value), kind.__len__(value), room, other)

    return other(value)


def _copied_map(
    items: Iterable[tuple[Any, Any]], size: int, room: list[float], other: Callable[[Any], Any]
) -> dict[str, Any]:
    copy = dict[str, Any]()

    for place, (key, value) in enumerate(items):
        if room[0] <= 0:
            copy[_MORE] = f"{size - place} more"
            break

        if not isinstance(key, str):
            key = str(_copied(key, room, other))  # noqa: PLW2901 - the name that JSON has for it

        copy[key] = _copied(value, room, other)

    return copy


def _copied_list(values: Iterable[Any], size: int, room: list[float], other: Callable[[Any], Any]) -> list[Any]:
    copy = list[Any]()

    for place, value in enumerate(values):
        if room[0] <= 0:
            copy.append(f"{_MORE} {size - place} more")
            break

        copy.append(_copied(value, room, other))

    return copy


def _masked(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        if any(form in value for form in redactor.forms):
            return redactor.text(value)
        return value

    if type(value) is dict:
        masked_map = {_masked(key, redactor): _masked(item, redactor) for key, item in value.items()}
        if _same(masked_map.values(), value.values()) and _same(masked_map, value):
            return value
        return masked_map

    if type(value) in {list, tuple}:
        masked_items = [_masked(item, redactor) for item in value]
        if _same(masked_items, value):
            return value
        return type(value)(masked_items)

    return value


def _same(copies: Iterable[Any], originals: Iterable[Any]) -> bool:
    return all(copy is original for copy, original in zip(copies, originals, strict=False))
