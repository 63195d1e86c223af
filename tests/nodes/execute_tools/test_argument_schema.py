from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from nodes.execute_tools.argument_schema import (
    MOST_ERRORS,
    argument_schema,
    describe_errors,
    values_without_json_form,
)


class Step(BaseModel):
    """One step."""

    title: str
    done: bool = False


class Arguments(BaseModel):
    """Noise."""

    path: str = Field(validation_alias=AliasChoices("path", "filename"), description="A file.")
    limit: int = Field(default=500, ge=1)
    steps: tuple[Step, ...] = ()


class Tree(BaseModel):
    children: list["Tree"] = []


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def errors(model: type[BaseModel], arguments: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(arguments, extra="forbid")
    return describe_errors(caught.value, model)


def test_the_schema_is_plain_and_closed() -> None:
    assert argument_schema(Arguments) == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "A file."},
            "limit": {"type": "integer", "default": 500, "minimum": 1},
            "steps": {
                "type": "array",
                "default": [],
                "items": {
                    "type": "object",
                    "description": "One step.",
                    "properties": {"title": {"type": "string"}, "done": {"type": "boolean", "default": False}},
                    "required": ["title"],
                },
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    }


def test_a_model_that_allows_extras_has_an_open_schema() -> None:
    assert argument_schema(Anything) == {"type": "object", "properties": {}, "additionalProperties": True}


def test_a_recursive_model_is_cut() -> None:
    schema = argument_schema(Tree)
    Draft202012Validator.check_schema(schema)
    assert "$ref" not in str(schema)


@pytest.mark.parametrize(
    ("arguments", "sentences"),
    [
        ({}, ["path: field required"]),
        ({"path": 1}, ["path: input should be a valid string"]),
        (
            {"path": "a", "limit": "x"},
            ["limit: input should be a valid integer, unable to parse string as an integer"],
        ),
        ({"path": "a", "limit": 0}, ["limit: input should be greater than or equal to 1"]),
        ({"path": "a", "limits": 3}, ["limits: unknown argument, did you mean 'limit'?"]),
        ({"path": "a", "zzzz": 3}, ["zzzz: unknown argument (known: path, limit, steps)"]),
        ({"path": "a", "filename": "b"}, ["filename: unknown argument (known: path, limit, steps)"]),
        ({"path": "a", "steps": [{}]}, ["steps.0.title: field required"]),
        ({"path": "a", "steps": [{"title": "t", "x": 1}]}, ["steps.0.x: unknown argument"]),
    ],
)
def test_each_mistake_is_one_sentence(arguments: dict[str, Any], sentences: list[str]) -> None:
    assert errors(Arguments, arguments) == sentences


def test_mistakes_without_a_place_and_without_end() -> None:
    assert describe_errors(_not_a_map(), Arguments) == [
        "arguments: input should be a valid dictionary or instance of Arguments"
    ]
    assert len(errors(Arguments, {f"a{number}": 1 for number in range(100)})) == MOST_ERRORS


def _not_a_map() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Arguments.model_validate([])
    return caught.value


@pytest.mark.parametrize(
    ("arguments", "sentences"),
    [
        ({"a": "x", "b": [1, None, {"c": 2.5}]}, []),
        ({"a": "\ud83d"}, ["a: str is not valid UTF-8: surrogates not allowed"]),
        ({"a": ["x", {"b": "\ud83d"}], "c": 1}, ["a: str is not valid UTF-8: surrogates not allowed"]),
        ({"a": 2**64}, ["a: integer exceeds 64-bit range"]),
    ],
)
def test_what_no_file_can_hold_is_a_mistake(arguments: dict[str, Any], sentences: list[str]) -> None:
    assert values_without_json_form(arguments) == sentences
