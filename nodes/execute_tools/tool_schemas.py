"""Schemas of tools that others have written, made usable: what no endpoint would take is left out. Pure."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from mendgraph.nodes.records import JsonMap

_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS: Final = frozenset({"not", "if", "then", "else", "contains", "propertyNames", "additionalProperties"})
_NAMES: Final = frozenset({"required", "enum"})


def usable_schema(schema: Mapping[str, Any]) -> JsonMap:
    """A copy in which each keyword has a value of its kind, for an object.

    A tuple of `items` becomes one schema for any of them, `required` that stands among the properties moves up, and a
    reference that leads nowhere allows anything. Nothing is raised but RecursionError.
    """
    made = _usable(dict(schema), schema)
    properties = schema.get("properties")
    misplaced = properties.get("required") if isinstance(properties, dict) else None
    if isinstance(misplaced, list):
        made.setdefault("required", [name for name in misplaced if isinstance(name, str)])
    types = schema.get("type")
    other = isinstance(types, str) and types != "object"
    return {"properties": {}, **made, "type": types if other else "object"}


def _usable(node: Any, whole: Mapping[str, Any]) -> JsonMap:
    """A schema, or what allows anything in place of something else; false allows nothing."""
    if not isinstance(node, dict):
        return {"not": {}} if node is False else {}

    made: JsonMap = {}
    for key, value in node.items():
        if key in _MAPS:
            if isinstance(value, dict):
                made[key] = {name: _usable(each, whole) for name, each in value.items() if not isinstance(each, list)}
        elif key == "items":
            several = isinstance(value, list)
            made[key] = {"anyOf": [_usable(each, whole) for each in value]} if several else _usable(value, whole)
        elif key in _LISTS:
            if isinstance(value, list) and value:
                made[key] = [_usable(each, whole) for each in value]
        elif key in _SCHEMAS:
            made[key] = value if isinstance(value, bool) else _usable(value, whole)
        elif _is_of_its_kind(key, value, whole):
            made[key] = value
    return made


def _is_of_its_kind(key: str, value: Any, whole: Mapping[str, Any]) -> bool:
    if key in _NAMES:
        return isinstance(value, list) and (key == "enum" or all(isinstance(each, str) for each in value))
    if key == "type":
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    return key != "$ref" or _leads_somewhere(value, whole)


def _leads_somewhere(reference: Any, whole: Mapping[str, Any]) -> bool:
    """Whether a reference of the form `#/$defs/Name` names a schema of this one. Source: RFC 6901."""
    target: Any = whole
    first, *names = unquote(str(reference)).split("/")
    for name in names:
        target = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
    return first == "#" and isinstance(target, dict)
