"""JSON schemas of foreign tools, reduced to what every endpoint accepts."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from mendgraph.nodes.records import JsonMap

LARGEST_SCHEMA: Final = 131_072
"""The most bytes of JSON in a tool's schema, about 33,000 tokens in each request."""

MOST_NODES: Final = 20_000
"""The most nodes of a schema after its references are expanded: two self-references double it at each level."""

_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS: Final = frozenset({"not", "if", "then", "else", "contains", "propertyNames", "additionalProperties"})
_DATA: Final = frozenset({"default", "const", "enum", "examples", "required", "dependentRequired"})
"""Keywords whose value is not a schema."""

_SILENT: Final = frozenset({
    "title", "$defs", "definitions", "$schema", "$id", "$anchor", "$comment", "$vocabulary",
    "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor",
})  # fmt: skip
"""Keywords without meaning after references are expanded."""


def shown_schema(schema: Mapping[str, Any]) -> JsonMap:
    """Return the schema of a foreign tool as the prompt shows it.

    Raises:
        ValueError: it does not describe an object, is nested too deep, or is too large.
        TypeError: a value has no JSON form that every endpoint accepts.
    """
    try:
        plain = plain_schema(usable_schema(schema))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error

    if plain["type"] != "object":
        raise ValueError("its type has to be 'object'")

    return bounded_schema(plain)


def usable_schema(schema: Mapping[str, Any]) -> JsonMap:
    """Return a copy for an object, without keywords whose value has the wrong type.

    A list of `items` becomes one schema with `anyOf`. A `required` among the properties is moved up.
    """
    usable = _usable(dict(schema))
    properties = schema.get("properties")
    misplaced = None

    if isinstance(properties, dict):
        misplaced = properties.get("required")

    if isinstance(misplaced, list):
        usable.setdefault("required", [name for name in misplaced if isinstance(name, str)])

    kind = schema.get("type")
    if not isinstance(kind, str):
        kind = "object"

    return {"properties": {}, **usable, "type": kind}


def _usable(node: Any) -> JsonMap:
    """Return the usable part of a node; false allows nothing, and whatever is not a schema allows anything."""
    if node is False:
        return {"not": {}}
    if not isinstance(node, dict):
        return {}

    usable: JsonMap = {}

    for key, value in node.items():
        if key in _MAPS:
            if isinstance(value, dict):
                usable[key] = _usable_map(value)
        elif key == "items":
            usable[key] = {"anyOf": list(map(_usable, value))} if isinstance(value, list) else _usable(value)
        elif key in _LISTS:
            if isinstance(value, list) and value:
                usable[key] = list(map(_usable, value))
        elif key in _SCHEMAS:
            usable[key] = value if isinstance(value, bool) else _usable(value)
        elif _is_of_its_kind(key, value):
            usable[key] = value

    return usable


def _usable_map(schemas: Mapping[str, Any]) -> JsonMap:
    return {name: _usable(schema) for name, schema in schemas.items() if not isinstance(schema, list)}


def _is_of_its_kind(key: str, value: Any) -> bool:
    if key == "enum":
        return isinstance(value, list)
    if key == "required":
        return _is_list_of_texts(value)
    if key == "type":
        return isinstance(value, str) or _is_list_of_texts(value)

    return True


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def plain_schema(schema: Mapping[str, Any]) -> JsonMap:
    """Return a copy without titles, with references expanded.

    Recursive, foreign and broken references, and nodes beyond `MOST_NODES`, allow anything.

    Raises:
        RecursionError: the schema is nested too deep.
    """
    nodes_left = MOST_NODES

    def plain(node: Any, seen: tuple[str, ...]) -> Any:
        nonlocal nodes_left
        nodes_left -= 1
        if isinstance(node, list):
            return [plain(item, seen) for item in node]
        if not isinstance(node, dict):
            return node
        if nodes_left < 0:
            return {}

        if "$ref" in node:
            reference = str(node["$ref"])
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            target = _referred(schema, reference)

            if reference in seen:
                return {}

            return plain({**target, **siblings}, (*seen, reference))

        return {key: part(key, value, seen) for key, value in node.items() if key not in _SILENT}

    def part(key: str, value: Any, seen: tuple[str, ...]) -> Any:
        if key in _DATA:
            return value

        if key in _MAPS and isinstance(value, dict):  # true allows anything, false nothing
            schemas: JsonMap = {}
            for name, subschema in value.items():
                if isinstance(subschema, bool):
                    schemas[name] = {} if subschema else {"not": {}}
                else:
                    schemas[name] = plain(subschema, seen)

            return schemas

        return plain(value, seen)

    plain_copy: JsonMap = plain(schema, ())
    return plain_copy


def _referred(schema: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
    """Return the target of a reference like `#/$defs/Name`, or an empty schema. Source: RFC 6901."""
    target: Any = schema
    first, *names = unquote(reference).split("/")

    for name in names:
        if isinstance(target, dict):
            target = target.get(name.replace("~1", "/").replace("~0", "~"))
        else:
            target = None

    if first == "#" and isinstance(target, dict):
        return target

    return {}


def bounded_schema(schema: JsonMap) -> JsonMap:
    """Return the schema itself.

    Raises:
        ValueError: it has more than `LARGEST_SCHEMA` bytes.
        TypeError: a value has no JSON form, such as an integer beyond 64 bits.
    """
    size = len(orjson.dumps(schema))
    if size > LARGEST_SCHEMA:
        raise ValueError(f"it has {size} bytes; the maximum is {LARGEST_SCHEMA}")

    return schema


_SELF_EVIDENT: Final = ("minimum", "exclusiveMinimum", "minLength", "maxLength", "maxItems")
"""Bounds that no model exceeds: they are checked, but not worth their tokens in each prompt."""


def shorten(schema: JsonMap) -> None:
    """Remove such bounds, defaults like false, 0 and null, and null as a value, from a schema."""
    for argument in schema.get("properties", {}).values():
        match argument.get("anyOf"):
            case [kind, {"type": "null"}] if argument.get("default", "") is None:
                del argument["anyOf"]
                argument.update(kind)

        for bound in _SELF_EVIDENT:
            argument.pop(bound, None)

        if not argument.get("default"):
            argument.pop("default", None)
