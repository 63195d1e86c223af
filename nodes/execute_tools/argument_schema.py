"""How the arguments of a tool look to a model: a plain JSON schema, and plain sentences for errors."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import unquote

import orjson
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError as SchemaViolation
from jsonschema.validators import extend
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from referencing import Registry

from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import JsonMap

MOST_ERRORS = 10
"""More sentences than this do not help anybody to repair a call."""

MOST_NODES = 5_000
"""Places of a schema after its references are written out: what refers to itself twice doubles with each level."""

DEEPEST = 32
"""Levels of a schema."""

_OPEN: Final = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")
"""Keywords whose value may stay a plain true or false."""

_MAPS: Final = ("properties", "patternProperties", "dependentSchemas")
"""Keywords whose value has a name for each schema."""

_DATA: Final = ("default", "const", "enum", "examples", "required", "dependentRequired")
"""Keywords whose value is no schema."""

_SILENT: Final = frozenset({
    "title", "$defs", "definitions", "$schema", "$id", "$anchor", "$comment", "$vocabulary",
    "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor",
})  # fmt: skip
"""Keywords that say nothing once references are written out."""

_NOTES: Final = frozenset({"description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Keywords beside a reference that take the place of those of what is referred to."""


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


class UnusableSchemaError(ValueError):
    """A JSON schema that no tool can have; its text says why."""


def argument_schema(model: type[BaseModel]) -> JsonMap:
    """The JSON schema of the arguments, without titles and references, closed unless the model allows extras."""
    schema = plain_schema(model.model_json_schema(by_alias=False))
    schema.pop("description", None)
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", model.model_config.get("extra") == "allow")
    return schema


def plain_schema(schema: Mapping[str, Any]) -> JsonMap:
    """A copy without titles, and with what a reference names in its place; a recursive one is cut.

    Raises:
        UnusableSchemaError: a reference leads out of the schema or nowhere, or the schema is too large or too deep.
    """
    plain = _Plain(schema).at(schema, (), 0)
    return plain if isinstance(plain, dict) else {}


def describe_errors(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One sentence for each mistake: where it is and what is wanted there."""
    names = tuple(model.model_fields)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [_sentence(each["type"], each["loc"], each["msg"], names) for each in found[:MOST_ERRORS]]


def unknown_argument(location: tuple[int | str, ...], names: tuple[str, ...]) -> str:
    """The sentence about an argument that is none of `names`."""
    return f"{'.'.join(map(str, location))}: unknown argument{_remedy(location, names)}"


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
        return unknown_argument(location, names)
    return f"{where}: {message[:1].lower()}{message[1:]}"


def _remedy(location: tuple[int | str, ...], names: tuple[str, ...]) -> str:
    if len(location) != 1:
        return ""
    meant = closest_names(str(location[0]), names, limit=1)
    return f", did you mean {meant[0]!r}?" if meant else f" (known: {', '.join(names) or 'none'})"


class _Plain:
    """One schema on its way to being plain."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MOST_NODES

    def at(self, node: Any, seen: tuple[str, ...], depth: int) -> Any:
        """The plain form of what stands at one place. `seen` are the references that lead here."""
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            raise UnusableSchemaError(
                f"written out it has more than {MOST_NODES} places, or more than {DEEPEST} levels"
            )
        if isinstance(node, list):
            return [self.at(each, seen, depth + 1) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return self._referred(node, seen, depth)
        return {key: self._value(key, value, seen, depth + 1) for key, value in node.items() if key not in _SILENT}

    def _value(self, key: str, value: Any, seen: tuple[str, ...], depth: int) -> Any:
        if key in _DATA:
            return value
        if key in _MAPS and isinstance(value, dict):
            return {name: self._schema(each, seen, depth) for name, each in value.items()}
        if key in {"allOf", "anyOf", "oneOf", "prefixItems"} and isinstance(value, list):
            return [self._schema(each, seen, depth) for each in value]
        return self.at(value, seen, depth) if key in _OPEN or not isinstance(value, bool) else _spelt(key, value)

    def _schema(self, node: Any, seen: tuple[str, ...], depth: int) -> Any:
        """The same where a schema stands: true and false become maps, which is what readers expect."""
        plain = self.at(node, seen, depth)
        return _SPELT[plain] if isinstance(plain, bool) else plain

    def _referred(self, node: dict[str, Any], seen: tuple[str, ...], depth: int) -> Any:
        reference = node["$ref"]
        target = self._target(reference)
        rest = {key: value for key, value in node.items() if key != "$ref"}
        if reference in seen:
            kind = target.get("type") if isinstance(target, dict) else None
            return {"type": kind} if kind else {}
        seen = (*seen, reference)
        if not isinstance(target, dict):
            return self._schema(target, seen, depth)
        if rest.keys() & target.keys() <= _NOTES:
            return self.at({**target, **rest}, seen, depth)
        return self.at({**rest, "allOf": [*rest.get("allOf", []), target]}, seen, depth)

    def _target(self, reference: Any) -> Any:
        """What a reference of the form `#/$defs/Name` names (RFC 6901)."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise UnusableSchemaError(f"its reference {str(reference)[:100]!r} leads out of it; use '#/$defs/...'")
        found: Any = self._root
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise UnusableSchemaError(f"its reference {reference[:100]!r} leads nowhere")
        return found


_SPELT: Final[dict[bool, JsonMap]] = {True: {}, False: {"not": {}}}
_SCHEMAS: Final = ("items", "contains", "propertyNames", "not", "if", "then", "else")


def _spelt(key: str, value: bool) -> Any:
    return _SPELT[value] if key in _SCHEMAS else value


LONGEST_LIST = 200
"""Characters of a list of allowed values that a sentence repeats."""

_UNSAID: Final = frozenset({
    "additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "if",
    "dependentSchemas",
})  # fmt: skip
"""Keywords by which a schema says itself which names it takes."""

_BOUNDS: Final = {
    "minimum": "input should be greater than or equal to {}",
    "maximum": "input should be less than or equal to {}",
    "exclusiveMinimum": "input should be greater than {}",
    "exclusiveMaximum": "input should be less than {}",
    "multipleOf": "input should be a multiple of {}",
    "minLength": "string should have at least {} characters",
    "maxLength": "string should have at most {} characters",
    "minItems": "list should have at least {} items",
    "maxItems": "list should have at most {} items",
    "minProperties": "object should have at least {} fields",
    "maxProperties": "object should have at most {} fields",
}
"""pydantic's words, as in the errors of other tools."""


class OpenArguments(BaseModel):
    """Takes any names: the model of a tool whose schema is checked beside it. The values are its `model_extra`."""

    model_config = ConfigDict(frozen=True, extra="allow")


class SchemaArguments:
    """The arguments that one JSON schema (Draft 2020-12) describes.

    `parameters` is the schema as a model is shown it. A schema that names properties and says nothing of others is
    closed, so that a misspelt name is an error and not a silence.

    Raises:
        UnusableSchemaError: it is no JSON schema, describes no object, or refers to something outside of it.
    """

    def __init__(self, schema: JsonMap) -> None:
        plain = plain_schema(schema)
        if plain.setdefault("type", "object") != "object":
            raise UnusableSchemaError("its type has to be 'object', with a property for each argument")
        if plain.setdefault("properties", {}) and not _UNSAID & plain.keys():
            plain["additionalProperties"] = False
        try:
            # No formats are checked: the regular expressions in it need not be Python's.
            Draft202012Validator.check_schema(plain, format_checker=FormatChecker(formats=()))
        except SchemaError as error:
            raise UnusableSchemaError(f"at {error.json_path}: {error.message[:LONGEST_LIST]}") from error
        self.parameters = plain
        kind = _Lenient if _has_patterns(plain) else Draft202012Validator
        self._validator = kind(plain, registry=Registry())
        self._defaults = {
            name: each["default"]
            for name, each in plain["properties"].items()
            if "default" in each and self._validator.evolve(schema=each).is_valid(each["default"])
        }

    def checked(self, arguments: JsonMap) -> JsonMap | list[str]:
        """The arguments with the defaults of absent ones, or one short sentence for each thing that is wrong."""
        absent = {name: deepcopy(value) for name, value in self._defaults.items() if name not in arguments}
        complete = {**arguments, **absent}
        errors = sorted(self._validator.iter_errors(complete), key=lambda error: error.json_path)
        sentences = dict.fromkeys(sentence for error in errors for sentence in _sentences(error))
        return list(sentences)[:MOST_ERRORS] or values_without_json_form(complete) or complete


def _sentences(error: SchemaViolation, ahead: tuple[int | str, ...] = ()) -> list[str]:
    """What is wrong and where, without repeating what was given."""
    location = (*ahead, *error.relative_path)
    value: Any = error.validator_value
    given: Any = error.instance
    if error.validator == "required":
        return [f"{_dotted((*location, name))}: field required" for name in value if name not in given]
    if error.validator == "additionalProperties" and value is False:
        known = tuple(_keywords(error).get("properties", {}))
        return [unknown_argument((*location, name), known) for name in given if name not in known]
    kinds = _wanted_kinds(error)
    if error.validator in {"anyOf", "oneOf"} and error.context and not kinds:
        # The form that was meant is the one of which most fits.
        return _sentences(max(error.context, key=lambda each: (len(each.path), each.validator != "type")), location)
    return [f"{_dotted(location) or 'arguments'}: {_wanted(error, kinds)}"]


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))


def _keywords(error: SchemaViolation) -> JsonMap:
    return error.schema if isinstance(error.schema, dict) else {}


def _wanted(error: SchemaViolation, kinds: list[str]) -> str:
    name = str(error.validator)
    value: Any = error.validator_value
    if kinds:
        return f"input should be a valid {' or '.join(kinds)}"
    if name in _BOUNDS:
        return _BOUNDS[name].format(value)
    if name in {"enum", "const"}:
        allowed = ", ".join(map(repr, value if name == "enum" else [value]))
        return f"input should be {allowed[:LONGEST_LIST]}"
    return "items should be unique" if name == "uniqueItems" else f"input does not fit {name!r} of the schema"


def _wanted_kinds(error: SchemaViolation) -> list[str]:
    """The types that would fit, where the type alone is what is wrong."""
    if error.validator == "type":
        found: Any = error.validator_value
        return [found] if isinstance(found, str) else list(found)
    branches = error.context if error.validator in {"anyOf", "oneOf"} else None
    if not branches or any(each.validator != "type" or each.relative_path for each in branches):
        return []
    return list(dict.fromkeys(kind for each in branches for kind in _wanted_kinds(each)))


def _has_patterns(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_has_patterns, node))
    if not isinstance(node, dict):
        return False
    return "pattern" in node or "patternProperties" in node or any(map(_has_patterns, node.values()))


def _unchecked(*_: Any) -> None:
    """A keyword whose answer would need a regular expression, or turns a missing answer into a refusal."""


def _closed(validator: Any, closed: Any, instance: Any, schema: JsonMap) -> Any:
    found = None if "patternProperties" in schema else Draft202012Validator.VALIDATORS["additionalProperties"]
    return found(validator, closed, instance, schema) if found else None


_NEEDS_PATTERNS: Final = (
    "pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "not", "if", "contains",
)  # fmt: skip
_Lenient: Final = extend(  # type: ignore[no-untyped-call]  # jsonschema's stubs leave it untyped
    Draft202012Validator,
    {
        **dict.fromkeys(_NEEDS_PATTERNS, _unchecked),
        "oneOf": Draft202012Validator.VALIDATORS["anyOf"],
        "additionalProperties": _closed,
    },
)
"""Never refuses what a schema with regular expressions allows; what only they forbid, it lets pass."""
