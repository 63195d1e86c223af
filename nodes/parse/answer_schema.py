"""Does a final answer fit the schema that the user gave for it?

References are followed inside the schema only: jsonschema would fetch others, files of this machine included.
"""

from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from nodes.records import Answer

MAX_PROBLEMS = 5

_UNUSABLE = (Unresolvable, RecursionError)
"""Raised while validating, where a reference leads nowhere or to itself."""


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Say why this is not a JSON schema, or None when it is one."""
    try:
        Draft202012Validator.check_schema(schema)
        _validator(schema).is_valid(None)
    except SchemaError as error:
        return f"answer_schema is not a JSON schema: {error.message}"
    except _UNUSABLE as error:
        return f"answer_schema cannot be followed: {error}"
    try:
        orjson.dumps(schema)
    except TypeError as error:
        return f"answer_schema cannot be kept with the run: {error}"
    return None


def answer_problems(answer: Answer, schema: dict[str, Any] | None) -> list[str]:
    """List what is wrong with an answer, at most `MAX_PROBLEMS` entries; nothing where it fits or no schema is set."""
    if schema is None:
        return []
    try:
        errors = sorted(_validator(schema).iter_errors(answer.value), key=lambda error: error.json_path)
    except _UNUSABLE as error:
        return [f"answer_schema cannot be followed: {error}"]
    if errors and answer.value is None:
        return ["end with the tool final_answer, and put the value that was asked for into its argument `value`"]
    return [f"value{error.json_path.removeprefix('$')}: {error.message}" for error in errors[:MAX_PROBLEMS]]


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema, registry=Registry())
