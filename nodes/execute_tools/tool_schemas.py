"""Schemas of tools that others have written, made usable: what no endpoint would take is left out. Pure."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from mendgraph.nodes.records import JsonMap

LARGEST_SCHEMA: Final = 131_072
"""Bytes of JSON that a tool's schema has at most as a model is shown it, about 33,000 tokens in each request."""

MOST_NODES: Final = 20_000
"""Places of a schema after its references are written out: what refers to itself twice doubles with each level."""

_DESCRIPTIONS: Final = (200, 0)
"""Characters of each description in a schema that is too large, tried in this order until it fits."""

_PARTS: Final = (16_384, 1_024, 0)
"""Bytes above which an optional part allows anything where that is not enough, tried in this order."""

_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS: Final = frozenset({"not", "if", "then", "else", "contains", "propertyNames", "additionalProperties"})
_DATA: Final = frozenset({"default", "const", "enum", "examples", "required", "dependentRequired"})
"""Keywords whose value is no schema."""

_SILENT: Final = frozenset({
    "title", "$defs", "definitions", "$schema", "$id", "$anchor", "$comment", "$vocabulary",
    "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor",
})  # fmt: skip
"""Keywords that say nothing once references are written out."""


def shown_schema(schema: Mapping[str, Any]) -> JsonMap:
    """The schema of somebody's tool as the prompt shows it: usable, plain and of a bounded size.

    Raises:
        ValueError: it is of no object, nested too deep, or still too large without all that is optional.
        TypeError: a value has no JSON form that every endpoint takes.
    """
    try:
        plain = plain_schema(usable_schema(schema))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error

    if plain["type"] != "object":
        raise ValueError("its type has to be 'object'")

    return fitted_schema(plain)


def usable_schema(schema: Mapping[str, Any]) -> JsonMap:
    """A copy in which each keyword has a value of its kind, for an object.

    A tuple of `items` becomes one schema for any of them, and `required` that stands among the properties moves up.
    Nothing is raised but RecursionError.
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
    """A schema, or what allows anything in place of something else; false allows nothing."""
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
    """A copy without titles, and with what a reference names in its place.

    Anything is allowed where a schema refers to itself, out of itself or nowhere, and beyond `MOST_NODES`.

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
    """What a reference of the form `#/$defs/Name` names, nothing where it leads nowhere. Source: RFC 6901."""
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


def fitted_schema(schema: JsonMap) -> JsonMap:
    """The schema itself where it has at most `LARGEST_SCHEMA` bytes, else with shorter descriptions, else with fewer.

    Where that is not enough, optional arguments, and optional parts of arguments, allow anything: the largest first.

    Raises:
        ValueError: it is too large without all of that.
        TypeError: a value has no JSON form, such as an integer beyond 64 bits.
    """
    fitted = schema
    size = len(orjson.dumps(schema))

    for characters in _DESCRIPTIONS:
        if size > LARGEST_SCHEMA:
            fitted = _with_short_descriptions(fitted, characters)
            size = len(orjson.dumps(fitted))

    for most in _PARTS:
        if size > LARGEST_SCHEMA:
            fitted = _without_large_parts(fitted, most)
            size = len(orjson.dumps(fitted))

    if size > LARGEST_SCHEMA:
        raise ValueError(f"it has {size} bytes without all that is optional, and {LARGEST_SCHEMA} are the most")

    return fitted


def _with_short_descriptions(node: Any, characters: int) -> Any:
    if isinstance(node, list):
        return [_with_short_descriptions(item, characters) for item in node]
    if not isinstance(node, dict):
        return node

    shorter: JsonMap = {}

    for key, value in node.items():
        if key != "description" or not isinstance(value, str):
            shorter[key] = value if key in _DATA else _with_short_descriptions(value, characters)
        elif characters:
            shorter[key] = value[:characters]

    return shorter


def _without_large_parts(node: Any, most: int) -> Any:
    """The schema, in which optional properties of more than `most` bytes allow anything; the inner ones are first."""
    if isinstance(node, list):
        return [_without_large_parts(item, most) for item in node]
    if not isinstance(node, dict):
        return node

    smaller: JsonMap = {}

    for key, value in node.items():
        smaller[key] = value if key in _DATA else _without_large_parts(value, most)

        if key == "properties" and isinstance(value, dict):
            for name in value.keys() - set(node.get("required", ())):
                if len(orjson.dumps(smaller[key][name])) > most:
                    smaller[key][name] = {}

    return smaller
