"""What `mendgraph` exports, one fact per line: parameters, results, fields, members of enums."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any, get_args

from pydantic import BaseModel
from typing_extensions import is_typeddict

import mendgraph
from tests.contract.type_names import fields_of, type_definition, type_name, value_text

_USE_BY_SYNTAX = frozenset({"__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__call__"})
"""The special methods for `with`, `for` and calls."""

_NOT_PUBLIC = frozenset({"AgentState", "Checks", "Commands"})
"""Types in annotations of public names that are no contract: the machine's own state, and services of a tool."""

_PREFIXES: Mapping[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
    inspect.Parameter.KEYWORD_ONLY: "*, ",
}
"""What stands before a parameter of this kind, as in a signature."""


def exported_facts() -> list[str]:
    facts = []
    for name in sorted(mendgraph.__all__):
        public = getattr(mendgraph, name)
        if isinstance(public, type):
            facts += [_kind_fact(public), *_constructor_facts(public), *_member_facts(public)]
        elif inspect.isfunction(public):
            facts += _callable_facts(name, public)
        elif isinstance(public, tuple):
            facts += [f"{name}[{index}] = {value_text(item)}" for index, item in enumerate(public)]
        else:
            facts.append(f"{name} = {type_definition(public)}")
    return facts


def record_facts() -> list[str]:
    """The same of records and enums that are not exported, but that exported names hold, take or return."""
    exported = {getattr(mendgraph, name) for name in mendgraph.__all__ if isinstance(getattr(mendgraph, name), type)}
    records: set[type[Any]] = set()
    waiting = [record for public in map(mendgraph.__getattr__, mendgraph.__all__) for record in _records_of(public)]
    while waiting:
        record = waiting.pop()
        if record not in records | exported:
            records.add(record)
            waiting += _records_of(record)

    facts = []
    for record in sorted(records, key=lambda kind: kind.__qualname__):
        facts += [_kind_fact(record), *_field_facts(record)]
    return facts


# --- Functions


def _callable_facts(name: str, function: Any, note: str = "") -> list[str]:
    signature = inspect.signature(function)
    facts = [f"{name}({_parameter_text(parameter)})" for parameter in signature.parameters.values()]
    if inspect.iscoroutinefunction(function):
        note = "coroutine"
    returned = "" if signature.return_annotation is signature.empty else type_name(signature.return_annotation)
    return [*facts, f"{name}(...) -> {returned}{f'  # {note}' if note else ''}"]


def _parameter_text(parameter: inspect.Parameter) -> str:
    text = _PREFIXES.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {type_name(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {value_text(parameter.default)}"
    return f"{text}, /" if parameter.kind is parameter.POSITIONAL_ONLY else text


# --- Classes


def _kind_fact(kind: type[Any]) -> str:
    """What sort of class it is, and what a user can rely on because of that."""
    if issubclass(kind, BaseModel):
        config = {name: value for name, value in kind.model_config.items() if name in {"frozen", "extra"}}
        texts = [f"{name}={value_text(value)}" for name, value in sorted(config.items())]
        return f"class {kind.__qualname__}: {', '.join(['pydantic model', *texts])}"
    if issubclass(kind, Enum):
        return f"class {kind.__qualname__}: {', '.join(base.__name__ for base in kind.__bases__)}"
    if is_dataclass(kind):
        frozen = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return f"class {kind.__qualname__}: dataclass, frozen={frozen}"
    if is_typeddict(kind):
        return f"class {kind.__qualname__}: TypedDict"
    if hasattr(kind, "_fields"):
        return f"class {kind.__qualname__}: NamedTuple"
    bases = [base.__name__ for base in kind.__mro__[1:-1] if not base.__module__.startswith("mendgraph.")]
    return f"class {kind.__qualname__}: {', '.join(bases[:1] or ['class'])}"


def _constructor_facts(kind: type[Any]) -> list[str]:
    """The parameters of a class whose fields do not say them."""
    if _is_record(kind) or _is_plain_exception(kind):
        return []
    parameters = inspect.signature(kind).parameters.values()
    return [f"{kind.__qualname__}({_parameter_text(parameter)})" for parameter in parameters]


def _field_facts(kind: type[Any]) -> list[str]:
    return [f"{kind.__qualname__}.{text}" for text in _field_texts(kind)]


def _member_facts(kind: type[Any]) -> list[str]:
    if issubclass(kind, Enum):
        return _field_facts(kind)

    facts = [] if kind is mendgraph.AgentContext else _field_facts(kind)  # its fields are a section of their own

    for name, member in _own_members(kind):
        place = f"{kind.__qualname__}.{name}"
        if isinstance(member, (property, cached_property)):
            facts.append(f"{place} -> {_property_type(member)}  # property")
        elif isinstance(member, classmethod):
            facts += _callable_facts(place, getattr(kind, name), "class method")
        elif inspect.isfunction(member) and (owner := _foreign_owner(kind, name)):
            facts.append(f"{place}(...)  # as {owner} has it")
        elif inspect.isfunction(member):
            facts += _callable_facts(place, member)[1:]
    return facts


def _foreign_owner(kind: type[Any], name: str) -> str:
    """The class of another package that defines the method, which a user finds there; "" where there is none."""
    for base in kind.__mro__:
        if name in vars(base) and not base.__module__.startswith("mendgraph."):
            return base.__qualname__
    return ""


def _own_members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The public attributes that the classes of mendgraph define, by name; a subclass goes first."""
    members: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("mendgraph."):
            members |= vars(base)
    for name, member in sorted(members.items()):
        if name in _USE_BY_SYNTAX or not name.startswith("_"):
            yield name, member


def _property_type(member: Any) -> str:
    function: Any = member.fget if isinstance(member, property) else member.func
    return type_name(inspect.signature(function).return_annotation)


def _is_plain_exception(kind: type[Any]) -> bool:
    """Whether it takes what every exception takes, of which Python knows no signature."""
    return issubclass(kind, BaseException) and not inspect.isfunction(kind.__init__)


def _is_record(kind: type[Any]) -> bool:
    return issubclass(kind, (BaseModel, Enum)) or is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_fields")


def _field_texts(kind: type[Any]) -> Iterator[str]:
    """The fields of a record, or the members of an enum, in the order in which they are declared."""
    if issubclass(kind, Enum):
        yield from (f"{member.name} = {value_text(member.value)}" for member in kind)
    elif _is_record(kind):
        for name, text, default in fields_of(kind):
            yield f"{name}: {text}{'' if default is MISSING else f' = {value_text(default)}'}"


# --- The records that they hold, take and return


def _records_of(public: Any) -> set[type[Any]]:
    """The records of mendgraph in the parameters and results of a function, or in the fields of a class."""
    records = {kind for annotation in _annotations_of(public) for kind in _classes_in(annotation)}
    return {kind for kind in records if kind.__name__ not in _NOT_PUBLIC}


def _annotations_of(public: Any) -> list[Any]:
    if isinstance(public, type) and issubclass(public, Enum):
        return []
    if isinstance(public, type) and _is_plain_exception(public):
        return []
    if isinstance(public, type) and _is_record(public):
        return [*public.__annotations__.values()]
    if inspect.isfunction(public) or isinstance(public, type):
        signature = inspect.signature(public)
        return [signature.return_annotation, *(parameter.annotation for parameter in signature.parameters.values())]
    return [public]


def _classes_in(annotation: Any) -> Iterator[type[Any]]:
    if isinstance(annotation, type) and annotation.__module__.startswith("mendgraph.") and _is_record(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _classes_in(argument)
