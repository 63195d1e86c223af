"""Copies of Python values as JSON values. Iterators and other consumable objects are never iterated."""

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from mendgraph.nodes.records import JsonMap

_SPELLED: Final = (PurePath, date, time, Decimal, UUID)
_COLLECTIONS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset)
"""Read with the methods of these types, as the iterator of a subclass may query a database."""


def type_name(value: Any) -> str:
    """Return the type of a value, like <generator>."""
    return f"<{type(value).__name__}>"


def in_words(value: Any) -> str:
    """Return the `repr` of a value, or its type if that fails."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - any method of a value may fail
        return type_name(value)


def json_like(value: Any, other: Callable[[Any], str] = type_name) -> Any:
    """Return a copy of the maps, lists, sets, models and dataclasses of a value, with their plain values.

    Anything else, such as a generator, a file or a recursive value, is replaced by `other(value)`.
    """
    try:
        return _copied(value, other)
    except Exception:  # noqa: BLE001 - any method of a value may fail
        return other(value)


def comparable(arguments: JsonMap) -> JsonMap:
    """Return such a copy of arguments; TypeError if a value cannot be copied."""

    def refuse(value: Any) -> Any:
        raise TypeError(f"a {type(value).__name__} in the arguments cannot be compared with another")

    copy: JsonMap = _copied(arguments, refuse)
    return copy


def without_known(value: Any, redactor: Redactor) -> Any:
    """Return the object itself, or a masked copy if its maps and lists contain a known secret."""
    if not redactor.forms:
        return value

    try:
        return _masked(value, redactor)
    except RecursionError:  # it contains itself
        return MARK


def _copied(value: Any, other: Callable[[Any], Any]) -> Any:
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
        copy = {}
        for key, item in dict.items(value):
            name = key if isinstance(key, str) else str(_copied(key, other))
            copy[name] = _copied(item, other)

        return copy

    for kind in _COLLECTIONS:
        if isinstance(value, kind):
            return [_copied(item, other) for item in kind.__iter__(value)]

    return other(value)


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
