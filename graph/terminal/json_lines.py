"""The events of a run as JSON lines, for programs: what `--json-lines` writes. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel

from graph.events import Event
from nodes.execute_tools.secrets.redact import redact
from nodes.records import JsonMap

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
