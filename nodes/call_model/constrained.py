"""The JSON schema that a retry is decoded under: one call of one offered tool, and nothing else.

Servers turn such a schema into a grammar for their sampler, or check the reply against it. None of them knows all of
JSON schema, and some read a keyword that they do not know as an error. So a tool's schema is loosened to the keywords
that all of them know: what it allows stays allowed, and what gets through is caught by the check of the arguments.
The reply, `{"name": ..., "arguments": {...}}`, is read by `nodes.language.dialects`.

A model under a schema has to call something, whether it means to or not, so what it can call is what cannot do harm.
"""

from collections.abc import Sequence
from re import findall
from typing import Any, Final

from nodes.records import Effect, JsonMap, ToolSpec

MOST_REPETITIONS: Final = 50
"""A bound on lengths beyond this is omitted: a grammar spells each repetition out, and servers refuse large ones."""

DEEPEST: Final = 16
"""Levels of a tool's schema that are kept; below, any value will do."""

_NOTES: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)
"""Keywords that say nothing about what a value may be."""

_BOUNDS: Final = frozenset(
    {"pattern", "format", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems"}
    | {"minProperties", "maxProperties"}
)
"""Keywords that only narrow, and that servers read differently or not at all."""

_LENGTHS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_KEPT: Final = frozenset({"type", "enum", "const", "required", "minimum", "maximum"})
_PLAIN_OBJECT: Final[JsonMap] = {"type": "object"}
_ANY_VALUE: Final[JsonMap] = {"type": ["object", "array", "string", "number", "boolean", "null"]}
"""Spelt out: llama.cpp reads an empty schema as an object."""


_EDITS: Final = frozenset({"edit_file", "multi_edit", "edit_blocks", "apply_patch"})
"""Tools that change text where it is as the call says, or create a file."""


def meant_tools(specs: Sequence[ToolSpec], failed_reply: str) -> list[ToolSpec]:
    """The tools that a retry of this reply may call: the first that it names, and those that only look.

    Where it names none: those that look, change text in place, or end the task. Source: a 1.5B model had called a tool
    `rename_function`, which does not exist; asked again under the schema of all tools, it deleted the file, and
    without that tool it made a plan.
    """
    names = {spec.name for spec in specs}
    first = next((word for word in findall(r"[\w.-]+", failed_reply) if word in names), None)
    if first is not None:
        return [spec for spec in specs if spec.name == first or spec.effect is Effect.READ]
    return [spec for spec in specs if spec.effect is Effect.READ or spec.name in _EDITS or spec.terminal]


def calls_schema(specs: Sequence[ToolSpec]) -> JsonMap | None:
    """The schema of a reply that is one call of one of these tools; None where there is no tool to call.

    The root says that it is an object, which endpoints of OpenAI's kind require beside the alternatives.
    """
    calls = [_call_schema(spec) for spec in specs]
    return {"type": "object", "anyOf": calls} if calls else None


def _call_schema(spec: ToolSpec) -> JsonMap:
    arguments = _loosened(spec.parameters, 0)
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": [spec.name]},
            "arguments": arguments if arguments.get("type") == "object" else _PLAIN_OBJECT,
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _loosened(schema: Any, depth: int) -> JsonMap:
    """A schema in known keywords that allows at least the same; any value where a keyword cannot be omitted."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return _ANY_VALUE
    loose: JsonMap = {}
    for key, value in schema.items():
        if key in _NOTES or key in _BOUNDS:
            continue
        if key in _KEPT:
            loose[key] = value
        elif key in _LENGTHS:
            if isinstance(value, int) and value <= MOST_REPETITIONS:
                loose[key] = value
        elif key == "properties" and isinstance(value, dict):
            loose[key] = {name: _loosened(each, depth + 1) for name, each in value.items()}
        elif key == "items":
            loose[key] = _loosened(value, depth + 1)
        elif key in ("anyOf", "oneOf") and isinstance(value, list) and value:
            loose["anyOf"] = [_loosened(each, depth + 1) for each in value]
        elif key == "additionalProperties":
            loose[key] = value if isinstance(value, bool) else _loosened(value, depth + 1)
        else:
            return _ANY_VALUE
    return loose if loose.keys() & {"type", "enum", "const", "anyOf"} else _ANY_VALUE
