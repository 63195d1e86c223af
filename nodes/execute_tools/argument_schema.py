"""How a pydantic model of arguments looks to a model: a plain JSON schema, and plain sentences for errors."""

from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from nodes.language.closest import closest_names
from nodes.records import JsonMap

MOST_ERRORS = 10
"""More sentences than this do not help anybody to repair a call."""


def argument_schema(model: type[BaseModel]) -> JsonMap:
    """The JSON schema of the arguments, without titles and references, closed unless the model allows extras."""
    raw = model.model_json_schema(by_alias=False)
    definitions: dict[str, Any] = raw.pop("$defs", {})
    raw.pop("description", None)
    schema: JsonMap = _clean(raw, definitions, ())
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", model.model_config.get("extra") == "allow")
    return schema


def describe_errors(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One sentence for each mistake: where it is and what is wanted there."""
    names = tuple(model.model_fields)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [_sentence(each["type"], each["loc"], each["msg"], names) for each in found[:MOST_ERRORS]]


def values_without_json_form(arguments: JsonMap) -> list[str]:
    """One sentence for each argument that no file or checkpoint can hold: lone surrogates, integers beyond 64 bits."""
    found: list[str] = []
    for name, value in arguments.items():
        try:
            orjson.dumps(value)
        except TypeError as error:
            reason = str(error)
            found.append(f"{name}: {reason[:1].lower()}{reason[1:]}")
    return found


def _sentence(kind: str, location: tuple[int | str, ...], message: str, names: tuple[str, ...]) -> str:
    where = ".".join(str(part) for part in location) or "arguments"
    if kind == "missing":
        return f"{where}: field required"
    if kind == "extra_forbidden":
        return f"{where}: unknown argument{_remedy(location, names)}"
    return f"{where}: {message[:1].lower()}{message[1:]}"


def _remedy(location: tuple[int | str, ...], names: tuple[str, ...]) -> str:
    if len(location) != 1:
        return ""
    meant = closest_names(str(location[0]), names, limit=1)
    return f", did you mean {meant[0]!r}?" if meant else f" (known: {', '.join(names) or 'none'})"


def _clean(node: Any, definitions: dict[str, Any], seen: tuple[str, ...]) -> Any:
    """A schema node without titles, references replaced by what they name; a recursive one is cut to an object."""
    if isinstance(node, list):
        return [_clean(each, definitions, seen) for each in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in seen:
            return {"type": "object"}
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _clean({**definitions[name], **rest}, definitions, (*seen, name))
    return {key: _clean_value(key, value, definitions, seen) for key, value in node.items() if key != "title"}


def _clean_value(key: str, value: Any, definitions: dict[str, Any], seen: tuple[str, ...]) -> Any:
    if key == "properties":
        return {name: _clean(each, definitions, seen) for name, each in value.items()}
    if key in {"default", "const", "enum", "examples"}:
        return value
    return _clean(value, definitions, seen)
