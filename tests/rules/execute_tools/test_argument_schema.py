from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, Field, ValidationError

from mendgraph.nodes.execute_tools.registry import argument_schema, describe_errors, values_without_json_form
from mendgraph.nodes.execute_tools.tool_schemas import MOST_NODES, plain_schema, shown_schema
from mendgraph.nodes.records import JsonMap
from tests.row_tables import rows


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


def errors(model: type[BaseModel], arguments: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(arguments, extra="forbid")
    return describe_errors(caught.value, [*model.model_fields])


def test_recursive_model_is_expanded_only_to_a_bound() -> None:
    schema = argument_schema(Tree)
    assert "$ref" not in str(schema)


@rows(
    ({}, ["path: field required"]),
    ({"path": 1}, ["path: input should be a valid string"]),
    ({"path": "a", "limit": "x"}, ["limit: input should be a valid integer, unable to parse string as an integer"]),
    ({"path": "a", "limit": 0}, ["limit: input should be greater than or equal to 1"]),
    ({"path": "a", "limits": 3}, ["limits: unknown argument, did you mean 'limit'?"]),
    ({"path": "a", "zzzz": 3}, ["zzzz: unknown argument (known: path, limit, steps)"]),
    ({"path": "a", "filename": "b"}, ["filename: unknown argument (known: path, limit, steps)"]),
    ({"path": "a", "steps": [{}]}, ["steps.0.title: field required"]),
    ({"path": "a", "steps": [{"title": "t", "x": 1}]}, ["steps.0.x: unknown argument"]),
)
def test_validation_error_is_one_sentence(arguments: dict[str, Any], sentences: list[str]) -> None:
    assert errors(Arguments, arguments) == sentences


@rows(
    ({"a": "x", "b": [1, None, {"c": 2.5}]}, []),
    ({"a": "\ud83d"}, ["a: str is not valid UTF-8: surrogates not allowed"]),
    ({"a": ["x", {"b": "\ud83d"}], "c": 1}, ["a: str is not valid UTF-8: surrogates not allowed"]),
    ({"a": 2**64}, ["a: integer exceeds 64-bit range"]),
)
def test_value_without_a_json_form_is_an_error(arguments: dict[str, Any], sentences: list[str]) -> None:
    assert values_without_json_form(arguments) == sentences


DEFINED: JsonMap = {
    "$defs": {
        "Word": {"title": "Word", "type": "string", "description": "a word"},
        "a/b~c": {"type": "integer"},
        "Self": {"type": "array", "items": {"$ref": "#/$defs/Self"}},
    }
}


@rows(
        ({"title": "T", "$id": "x", "type": "string"}, {"type": "string"}),
        ({"properties": {"title": {"title": "T"}, "$ref": {}}}, {"properties": {"title": {}, "$ref": {}}}),
        ({"$ref": "#/$defs/Word", "description": "mine"}, {"type": "string", "description": "mine"}),
        ({"$ref": "#/$defs/a~1b~0c"}, {"type": "integer"}),
        ({"anyOf": [{"$ref": "#/%24defs/Word"}]}, {"anyOf": [{"type": "string", "description": "a word"}]}),
        ({"$ref": "#/$defs/Self"}, {"type": "array", "items": {}}),
        ({"properties": {"a": True, "b": False}}, {"properties": {"a": {}, "b": {"not": {}}}}),
        ({"default": {"title": "T", "$ref": "x"}}, {"default": {"title": "T", "$ref": "x"}}),)  # fmt: skip
def test_schema_is_simplified(schema: JsonMap, plain: JsonMap) -> None:
    assert plain_schema({**schema, **DEFINED}) == plain


@rows("https://example.com/a.json", "#anchor", 7, "#/$defs/Gone", "#/list/2")
def test_unresolvable_reference_allows_anything(reference: object) -> None:
    schema = {"properties": {"a": {"$ref": reference}}, "list": [{}, {}], **DEFINED}
    assert plain_schema(schema)["properties"] == {"a": {}}


def test_exponentially_growing_schema_is_cut() -> None:
    laughs: JsonMap = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(40)}
    plain = plain_schema({"$ref": "#/$defs/l0", "$defs": {**laughs, "l40": {}}})
    assert str(plain).count("{") < MOST_NODES


def test_too_deeply_nested_schema_is_refused() -> None:
    deep: JsonMap = {}
    for _ in range(3_000):
        deep = {"items": deep}
    with pytest.raises(ValueError, match="nested too deep"):
        shown_schema({"properties": {"a": deep}})
