"""How the arguments of a tool look to a model: a plain JSON schema, and plain sentences for errors."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import unquote

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import JsonMap

MOST_ERRORS = 10  # more sentences than this do not help anybody to repair a call
MOST_NODES = 5_000
"""Places of a schema after its references are written out: what refers to itself twice doubles with each level."""

_MAPS: Final = ("properties", "patternProperties", "dependentSchemas")
"""Keywords whose value has a name for each schema."""

_DATA: Final = ("default", "const", "enum", "examples", "required", "dependentRequired")
"""Keywords whose value is no schema."""

_SILENT: Final = frozenset({
    "title", "$defs", "definitions", "$schema", "$id", "$anchor", "$comment", "$vocabulary",
    "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor",
})  # fmt: skip
"""Keywords that say nothing once references are written out."""

PATH_NAMES: Final = ("path", "filename", "file_name")
"""Models call the path of a file by all three. Source: specs 1 and 4."""
_NAMES = AliasChoices(*PATH_NAMES)
_SELF_EVIDENT: Final = ("minimum", "minLength", "maxLength", "maxItems")
"""Bounds that no model crosses in earnest: they are checked, but not worth their tokens in each prompt."""


def _shorten(schema: JsonMap) -> None:
    """Take from a schema what tells a model nothing: such bounds, and defaults like false, 0 and null."""
    for argument in schema.get("properties", {}).values():
        silent = [*_SELF_EVIDENT, *(["default"] if not argument.get("default") else [])]
        for key in silent:
            argument.pop(key, None)


class ToolArguments(BaseModel):
    """The arguments of one call: frozen, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_shorten)


FilePath: TypeAlias = Annotated[
    str, Field(validation_alias=_NAMES, description="Workspace-relative path under the project root.")
]
FolderPath: TypeAlias = Annotated[
    str, Field(validation_alias=_NAMES, description="Directory under the project root (use `.` for root).")
]
"""Both descriptions are spec 2's, section "Tool Schema Updates"."""


def argument_schema(model: type[BaseModel]) -> JsonMap:
    """The JSON schema of the arguments, without titles and references, closed unless the model allows extras."""
    schema = plain_schema(model.model_json_schema(by_alias=False))
    schema.pop("description", None)
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", model.model_config.get("extra") == "allow")
    return schema


def plain_schema(schema: Mapping[str, Any]) -> JsonMap:
    """A copy without titles, and with what a reference names in its place; where it refers to itself, it is cut.

    Raises:
        ValueError: a reference leads out of the schema or nowhere, or the schema is too large or too deep.
    """
    left = MOST_NODES

    def plain(node: Any, seen: tuple[str, ...]) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"written out it has more than {MOST_NODES} places")
        if isinstance(node, list):
            return [plain(each, seen) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            reference = node["$ref"]
            rest = {key: value for key, value in node.items() if key != "$ref"}
            target = _referred(schema, reference)
            return {} if reference in seen else plain({**target, **rest}, (*seen, reference))
        return {key: part(key, value, seen) for key, value in node.items() if key not in _SILENT}

    def part(key: str, value: Any, seen: tuple[str, ...]) -> Any:
        if key in _DATA:
            return value
        if key in _MAPS and isinstance(value, dict):  # true allows anything, false nothing
            named = {
                name: {} if each is True else {"not": {}} if each is False else each for name, each in value.items()
            }
            return {name: plain(each, seen) for name, each in named.items()}
        return plain(value, seen)

    try:
        found: JsonMap = plain(schema, ())
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return found


def _referred(schema: Mapping[str, Any], reference: Any) -> Mapping[str, Any]:
    """What a reference of the form `#/$defs/Name` names (RFC 6901)."""
    found: Any = schema
    first, *names = unquote(str(reference)).split("/")
    for name in names:
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if first != "#" or not isinstance(found, dict):
        raise ValueError(f"its reference {str(reference)[:100]!r} leads out of it or nowhere; use '#/$defs/'")
    return found


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
            found.append(f"{name}: {_lowered(str(error))}")
    return found


def _sentence(kind: str, location: Sequence[int | str], message: str, names: Sequence[str]) -> str:
    where = ".".join(map(str, location)) or "arguments"
    if kind == "missing":
        return f"{where}: field required"
    if kind != "extra_forbidden":
        return f"{where}: {_lowered(message)}"
    if len(location) != 1:
        return f"{where}: unknown argument"
    meant = closest_names(str(location[0]), names, limit=1)
    remedy = f", did you mean {meant[0]!r}?" if meant else f" (known: {', '.join(names) or 'none'})"
    return f"{where}: unknown argument{remedy}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


class OpenArguments(BaseModel):
    """Takes any names: the model of a tool whose server checks its arguments. The values are its `model_extra`."""

    model_config = ConfigDict(frozen=True, extra="allow")
