"""Does a final answer fit the schema that the user gave for it?"""

from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from nodes.records import Answer

MAX_PROBLEMS = 5


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Say why this is not a JSON schema, or None when it is one."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"answer_schema is not a JSON schema: {error.message}"
    return None


def answer_problems(answer: Answer, schema: dict[str, Any] | None) -> list[str]:
    """List what is wrong with an answer, at most `MAX_PROBLEMS` entries; nothing where it fits or no schema is set."""
    if schema is None:
        return []
    if answer.value is None and not _allows_null(schema):
        return ["end with the tool final_answer, and put the value that was asked for into its argument `value`"]
    errors = sorted(Draft202012Validator(schema).iter_errors(answer.value), key=lambda error: error.json_path)
    return [f"value{error.json_path.removeprefix('$')}: {error.message}" for error in errors[:MAX_PROBLEMS]]


def _allows_null(schema: dict[str, Any]) -> bool:
    return bool(Draft202012Validator(schema).is_valid(None))
