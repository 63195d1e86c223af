"""Arguments that a JSON schema describes instead of a pydantic model, as those of MCP tools are. Pure.

The schema is not ours to trust: nothing is fetched, references are written out and bounded, and no regular expression
in it is run (they are ECMA's, and one can take longer than the run). Whoever wrote the schema checks those.
"""

from copy import deepcopy
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from pydantic import BaseModel, ConfigDict
from referencing import Registry

from nodes.execute_tools.argument_schema import (
    MOST_ERRORS,
    UnusableSchemaError,
    plain_schema,
    unknown_argument,
    values_without_json_form,
)
from nodes.records import JsonMap

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


def _sentences(error: ValidationError, ahead: tuple[int | str, ...] = ()) -> list[str]:
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


def _keywords(error: ValidationError) -> JsonMap:
    return error.schema if isinstance(error.schema, dict) else {}


def _wanted(error: ValidationError, kinds: list[str]) -> str:
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


def _wanted_kinds(error: ValidationError) -> list[str]:
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
