"""Types and values as text that is the same in every version of Python.

Python itself spells them differently: `Optional[int]`, `int | None` and `typing.Union[int, None]` are one type.
"""

import math
from collections.abc import Iterator, Mapping, Set as AbstractSet
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import EllipsisType, FunctionType, NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, NotRequired, Required, Union, Unpack, get_args, get_origin

import annotated_types
from langchain_core.messages import AnyMessage
from pydantic import BaseModel

import mendgraph

_ALIASES: tuple[tuple[str, Any], ...] = (
    ("Event", mendgraph.Event),
    ("Approve", mendgraph.Approve),
    ("AnyMessage", AnyMessage),
)
"""Long types that have a name of their own."""

_BOUNDS: tuple[tuple[type[Any], str], ...] = (
    (annotated_types.Ge, "ge"),
    (annotated_types.Gt, "gt"),
    (annotated_types.Le, "le"),
    (annotated_types.Lt, "lt"),
    (annotated_types.MinLen, "min_length"),
    (annotated_types.MaxLen, "max_length"),
)


def type_name(annotation: Any) -> str:
    """An annotation as text. What the source writes as a string stays as it is written."""
    for name, alias in _ALIASES:
        if annotation == alias:
            return name
    return type_definition(annotation)


def type_definition(annotation: Any) -> str:
    if annotation is None or annotation is NoneType:
        return "None"
    if isinstance(annotation, EllipsisType):
        return "..."
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    if isinstance(annotation, list):
        return f"[{', '.join(map(type_name, annotation))}]"

    origin = get_origin(annotation)
    if origin is not None:
        return _generic_name(origin, get_args(annotation))

    for attribute in ("__qualname__", "__name__", "_name"):
        name = getattr(annotation, attribute, None)
        if isinstance(name, str):
            return name
    raise TypeError(f"no name is known for the type {annotation!r}")


def _generic_name(origin: Any, arguments: tuple[Any, ...]) -> str:
    if origin in {Union, UnionType}:
        return " | ".join(map(type_name, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(value_text, arguments))}]"
    if origin is Annotated:
        bounds = bounds_of(arguments[1:])
        return type_name(arguments[0]) + (f" ({bounds})" if bounds else "")
    if origin in {Required, NotRequired}:
        return type_name(arguments[0])
    if origin is Unpack:
        return f"Unpack[{type_name(arguments[0])}]"
    return f"{type_definition(origin)}[{', '.join(map(type_name, arguments))}]"


def bounds_of(metadata: Any) -> str:
    """The bounds in the metadata of an annotation: `ge=0, le=2`."""
    texts = []
    for item in metadata:
        texts += [f"{name}={value_text(getattr(item, name))}" for kind, name in _BOUNDS if isinstance(item, kind)]
        pattern = getattr(item, "pattern", None)
        if pattern is not None:
            texts.append(f"pattern={pattern!r}")
    return ", ".join(texts)


def value_text(value: Any) -> str:
    """A default as text; a public constant is called by its name.

    Raises TypeError for a value whose text would hold an address or another thing that changes.
    """
    if value is mendgraph.DEFAULT_GUARDRAIL_RULES:
        return "DEFAULT_GUARDRAIL_RULES"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if value is None or isinstance(value, (str, int, float, bytes)):
        return repr(value)
    if isinstance(value, (type, FunctionType)):
        return value.__qualname__
    if isinstance(value, (BaseModel, tuple)) or is_dataclass(value):
        return _record_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, AbstractSet):
        return f"{{{', '.join(sorted(map(value_text, value)))}}}" if value else f"{type(value).__name__}()"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{value_text(key)}: {value_text(item)}' for key, item in value.items())}}}"
    raise TypeError(f"no stable text is known for the value {value!r}")


def _record_text(value: Any) -> str:
    """A record with the fields that differ from their defaults; a plain tuple."""
    if type(value) is tuple:
        return f"({', '.join(map(value_text, value))}{',' if len(value) == 1 else ''})"
    texts = [
        f"{name}={value_text(getattr(value, name))}"
        for name, _, default in fields_of(type(value))
        if getattr(value, name) != default
    ]
    return f"{type(value).__name__}({', '.join(texts)})"


def fields_of(kind: type[Any]) -> Iterator[tuple[str, str, Any]]:
    """The fields of a record as they are declared: name, type as text, and default, which is MISSING without one."""
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            bounds = bounds_of(field.metadata)
            default = MISSING if field.is_required() else field.get_default(call_default_factory=True)
            yield name, type_name(field.annotation) + (f" ({bounds})" if bounds else ""), default

    elif is_dataclass(kind):
        for item in fields(kind):
            factory = item.default_factory
            yield item.name, type_name(item.type), item.default if factory is MISSING else factory()

    else:
        defaults = getattr(kind, "_field_defaults", {})
        required = getattr(kind, "__required_keys__", kind.__annotations__)
        for name, annotation in kind.__annotations__.items():
            optional = "" if name in required else "  # may be missing"
            yield name, type_name(annotation) + optional, defaults.get(name, MISSING)
