"""The conditions for an answer: a changed file, passed checks, a value that matches a schema."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from mendgraph.nodes.records import Answer

NOTHING_CHANGED: Final = "No file was changed, and this run has to change one. Make the change now."
MOST_CHECKED: Final = 100  # files that one call of run_checks looks at


class TurnFacts(NamedTuple):
    """Facts about the turn when its answer arrives.

    `changed` are the changed files; `change_required` says that an answer needs one; `checked` says that a tool for
    checks exists.
    """

    changed: tuple[str, ...] = ()
    change_required: bool = False
    checked: bool = False


def paths_to_check(facts: TurnFacts, changing: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """Return the files to check before the answer; `changing` are those that this reply changes.

    None if nothing is to be checked: there is no tool for it, or nothing was changed.
    """
    paths = tuple(dict.fromkeys((*facts.changed, *changing)))[:MOST_CHECKED]
    return (paths or None) if facts.checked else None


MAX_PROBLEMS = 5


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Return why this is not a valid JSON schema; None if it is."""
    if not schema:
        return None
    if isinstance(problem := _misfits(schema, None), str):
        return problem

    try:
        orjson.dumps(schema)
    except TypeError as error:
        return f"response_format cannot be kept with the run: {error}"

    return None


class ResponseFormat(NamedTuple):
    """The required form of an answer's value: a JSON schema, and the Python type that builds it, if any."""

    json_schema: dict[str, Any]
    adapter: TypeAdapter[Any] | None = None

    def build(self, value: Any) -> Any:
        """Build an instance of the type; raises ValidationError, or what the user's validator raises."""
        if self.adapter is None:
            return value
        return self.adapter.validate_json(json.dumps(value))


def read_format(given: Any) -> ResponseFormat:
    """The format that a pydantic model, a dataclass, a TypedDict, another type or a JSON schema stands for.

    LangChain's `ToolStrategy`, `ProviderStrategy` and `AutoStrategy` stand for the `schema` that they hold.

    Raises:
        TypeError: it is none of these.
        ValueError: it is a JSON schema with a mistake.
    """
    given = given if isinstance(given, type | Mapping) else getattr(given, "schema", given)
    if isinstance(given, Mapping):
        form = ResponseFormat(dict(given))
    else:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(given)
            form = ResponseFormat(adapter.json_schema(), adapter)
        except (PydanticUserError, NameError) as error:
            kinds = "a pydantic model, a dataclass, a TypedDict or a JSON schema"
            raise TypeError(f"response_format: use {kinds}. {str(error).splitlines()[0]}") from None

    if problem := schema_problem(form.json_schema):
        raise ValueError(problem)

    return form


def answer_problems(answer: Answer, schema: dict[str, Any] | None, built: ResponseFormat | None = None) -> list[str]:
    """Return the problems of an answer, at most `MAX_PROBLEMS`; empty if it is valid or no schema is set.

    If there is a Python type, it validates the value, including validators that a schema cannot express.
    """
    if schema is None:
        return []

    problems: list[str] | str

    if built is not None and built.adapter is not None:
        problems = _problems_of_type(answer.value, built)
    elif isinstance(problems := _misfits(schema, answer.value), str):
        return [problems]

    if problems and answer.value is None:
        return ["end with the tool final_answer, and put the value that was asked for into its argument `value`"]

    return problems[:MAX_PROBLEMS]


def _problems_of_type(value: Any, built: ResponseFormat) -> list[str]:
    try:
        built.build(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        return [f"{'.'.join(map(str, ('value', *detail['loc'])))}: {detail['msg']}" for detail in details]
    except Exception as error:  # noqa: BLE001 - a user's validator may fail in any way, and the run goes on
        return [f"value: {type(error).__name__}: {error}"]

    return []


def _misfits(schema: dict[str, Any], value: Any) -> list[str] | str:
    """Return how a value violates the schema, or why the schema cannot be used."""
    from jsonschema import Draft202012Validator, SchemaError  # they take time, and few runs have a schema
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        Draft202012Validator.check_schema(schema)
        problems = Draft202012Validator(schema, registry=Registry()).iter_errors(value)
        errors = sorted(problems, key=lambda error: error.json_path)
    except SchemaError as error:
        return f"response_format is not a JSON schema: {error.message}"
    except (Unresolvable, RecursionError) as error:  # a reference leads nowhere, or to itself
        return f"response_format cannot be followed: {error}"

    return [f"value{error.json_path.removeprefix('$')}: {error.message}" for error in errors]
