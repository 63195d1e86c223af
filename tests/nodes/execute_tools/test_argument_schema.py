from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from nodes.execute_tools.argument_schema import (
    DEEPEST,
    MOST_ERRORS,
    MOST_NODES,
    UnusableSchemaError,
    argument_schema,
    describe_errors,
    plain_schema,
    unknown_argument,
    values_without_json_form,
)
from nodes.records import JsonMap


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


DEFINED: JsonMap = {
    "$defs": {
        "Word": {"title": "Word", "type": "string", "description": "a word"},
        "a/b~c": {"type": "integer"},
        "Self": {"type": "array", "items": {"$ref": "#/$defs/Self"}},
        "Loop": {"$ref": "#/$defs/Loop"},
        "All": True,
    }
}


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({"title": "T", "$id": "x", "type": "string"}, {"type": "string"}),
        ({"properties": {"title": {"title": "T"}, "$ref": {}}}, {"properties": {"title": {}, "$ref": {}}}),
        ({"$ref": "#/$defs/Word"}, {"type": "string", "description": "a word"}),
        ({"$ref": "#/$defs/Word", "description": "mine"}, {"type": "string", "description": "mine"}),
        ({"$ref": "#/$defs/Word", "minLength": 1}, {"type": "string", "description": "a word", "minLength": 1}),
        (
            {"$ref": "#/$defs/Word", "type": "null"},
            {"type": "null", "allOf": [{"type": "string", "description": "a word"}]},
        ),
        ({"$ref": "#/$defs/a~1b~0c"}, {"type": "integer"}),
        ({"$ref": "#/%24defs/Word"}, {"type": "string", "description": "a word"}),
        ({"anyOf": [{"$ref": "#/anyOf/1"}, {"type": "null"}]}, {"anyOf": [{"type": "null"}, {"type": "null"}]}),
        ({"$ref": "#/$defs/Self"}, {"type": "array", "items": {"type": "array"}}),
        ({"$ref": "#/$defs/Loop"}, {}),
        (
            {"type": "object", "items": {"$ref": "#"}},
            {"type": "object", "items": {"type": "object", "items": {"type": "object"}}},
        ),
        ({"properties": {"a": True, "b": False}}, {"properties": {"a": {}, "b": {"not": {}}}}),
        ({"items": True, "not": False}, {"items": {}, "not": {"not": {}}}),
        ({"anyOf": [True, {"$ref": "#/$defs/All"}]}, {"anyOf": [{}, {}]}),
        ({"additionalProperties": False, "uniqueItems": True}, {"additionalProperties": False, "uniqueItems": True}),
        ({"default": {"title": "T", "$ref": "x"}}, {"default": {"title": "T", "$ref": "x"}}),
        ({"enum": [{"title": "T"}], "const": {"$ref": 1}}, {"enum": [{"title": "T"}], "const": {"$ref": 1}}),
    ],
)  # fmt: skip
def test_a_schema_becomes_plain(schema: JsonMap, plain: JsonMap) -> None:
    assert plain_schema({**schema, **DEFINED}) == plain


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("https://example.com/a.json", "its reference 'https://example.com/a.json' leads out of it"),
        ("other.json#/$defs/Word", "leads out of it"),
        ("#anchor", "leads out of it"),
        (7, "its reference '7' leads out of it"),
        ("#/$defs/Gone", "its reference '#/\\$defs/Gone' leads nowhere"),
        ("#/$defs/Word/type/x", "leads nowhere"),
        ("#/list/2", "leads nowhere"),
        ("#/list/-1", "leads nowhere"),
    ],
)
def test_a_reference_out_of_the_schema_is_refused(reference: object, reason: str) -> None:
    with pytest.raises(UnusableSchemaError, match=reason):
        plain_schema({"properties": {"a": {"$ref": reference}}, "list": [{}, {}], **DEFINED})


def test_a_schema_that_doubles_at_each_level_is_refused() -> None:
    laughs: JsonMap = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(20)}
    with pytest.raises(UnusableSchemaError, match=f"more than {MOST_NODES} places"):
        plain_schema({"$ref": "#/$defs/l0", "$defs": {**laughs, "l20": {}}})


def test_a_schema_may_be_so_deep_and_no_deeper() -> None:
    def nested(levels: int) -> JsonMap:
        return {"items": nested(levels - 1)} if levels else {}

    assert plain_schema(nested(DEEPEST)) == nested(DEEPEST)
    with pytest.raises(UnusableSchemaError, match=f"more than {DEEPEST} levels"):
        plain_schema(nested(DEEPEST + 1))


def test_the_schema_itself_is_not_changed() -> None:
    schema: JsonMap = {"properties": {"a": {"$ref": "#/$defs/Word"}}, **DEFINED}
    plain_schema(schema)
    assert schema == {"properties": {"a": {"$ref": "#/$defs/Word"}}, **DEFINED}


def test_an_unknown_argument_is_told_of_with_the_remedy() -> None:
    assert unknown_argument(("pth",), ("path",)) == "pth: unknown argument, did you mean 'path'?"
    assert unknown_argument(("a", 0, "b"), ("path",)) == "a.0.b: unknown argument"
