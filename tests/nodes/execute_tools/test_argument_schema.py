from typing import Any

import pytest
from hypothesis import given, strategies
from jsonschema import Draft202012Validator
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from mendgraph.nodes.execute_tools.argument_schema import (
    MOST_NODES,
    SchemaArguments,
    UnusableSchemaError,
    argument_schema,
    describe_errors,
    plain_schema,
    values_without_json_form,
)
from mendgraph.nodes.records import JsonMap


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


SEARCH: JsonMap = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Search",
    "type": "object",
    "properties": {
        "query": {"title": "Query", "type": "string", "minLength": 1, "maxLength": 9},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
        "kind": {"enum": ["file", "line"], "default": "nonsense"},
        "near": {"$ref": "#/$defs/Place"},
        "since": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "where": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Place"}]},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 1, "default": ["a"]},
    },
    "required": ["query"],
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {"line": {"type": "integer", "exclusiveMinimum": 0}},
            "required": ["line"],
            "additionalProperties": False,
        }
    },
}
DEFAULTS = {"limit": 10, "since": None, "tags": ["a"]}


def of(**properties: Any) -> SchemaArguments:
    return SchemaArguments({"type": "object", "properties": properties})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"query": "a"}, {"query": "a", **DEFAULTS}),
        ({"query": "a", "limit": 3, "tags": ["b"]}, {"query": "a", "limit": 3, "since": None, "tags": ["b"]}),
        ({"query": "a", "near": {"line": 1}}, {"query": "a", "near": {"line": 1}, **DEFAULTS}),
        ({}, ["query: field required"]),
        ({"query": 1}, ["query: input should be a valid string"]),
        ({"query": ""}, ["query: string should have at least 1 characters"]),
        ({"query": "0123456789"}, ["query: string should have at most 9 characters"]),
        ({"query": "a", "limit": 0}, ["limit: input should be greater than or equal to 1"]),
        ({"query": "a", "limit": 51}, ["limit: input should be less than or equal to 50"]),
        ({"query": "a", "limit": True}, ["limit: input should be a valid integer"]),
        ({"query": "a", "kind": "word"}, ["kind: input should be 'file', 'line'"]),
        ({"query": "a", "near": {"line": 0}}, ["near.line: input should be greater than 0"]),
        ({"query": "a", "near": {}}, ["near.line: field required"]),
        ({"query": "a", "near": {"line": 1, "row": 1}}, ["near.row: unknown argument"]),
        ({"query": "a", "since": "x"}, ["since: input should be a valid integer or null"]),
        ({"query": "a", "where": 7}, ["where: input should be a valid string or object"]),
        ({"query": "a", "where": {"line": "x"}}, ["where.line: input should be a valid integer"]),
        ({"query": "a", "where": {}}, ["where.line: field required"]),
        ({"query": "a", "tags": ["b", 1]}, ["tags.1: input should be a valid string"]),
        ({"query": "a", "tags": ["b", "b"]}, ["tags: items should be unique"]),
        ({"query": "a", "tags": []}, ["tags: list should have at least 1 items"]),
        ({"query": "a", "limt": 1}, ["limt: unknown argument, did you mean 'limit'?"]),
        (
            {"query": "a", "zzzz": 1},
            ["zzzz: unknown argument (known: query, limit, kind, near, since, where, tags)"],
        ),
        ({"query": "\ud800"}, ["query: str is not valid UTF-8: surrogates not allowed"]),
        (
            {"limit": "x", "q": 1},
            [
                "query: field required",
                "q: unknown argument, did you mean 'query'?",
                "limit: input should be a valid integer",
            ],
        ),
    ],
)
def test_arguments_become_complete_or_sentences(arguments: JsonMap, expected: JsonMap | list[str]) -> None:
    found = SchemaArguments(SEARCH).checked(arguments)
    assert (sorted(found) if isinstance(found, list) else found) == (
        sorted(expected) if isinstance(expected, list) else expected
    )


def test_a_default_is_a_copy() -> None:
    schema = of(tags={"type": "array", "default": []})
    first = schema.checked({})
    assert isinstance(first, dict)
    first["tags"].append("x")
    assert schema.checked({}) == {"tags": []}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({}, None),
        ({"properties": {"a": {}}}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, True),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, {"type": "string"}),
        ({"properties": {"a": {}}, "patternProperties": {"b": {}}}, None),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}, None),
    ],
)
def test_a_schema_that_says_nothing_of_other_names_is_closed(schema: JsonMap, closed: object) -> None:
    made = SchemaArguments(schema)
    assert made.parameters.get("additionalProperties") == closed
    assert isinstance(made.checked({"b": "x"}), list) is (closed is False)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array"}, "its type has to be 'object'"),
        ({"properties": {"a": {"type": "strin"}}}, r"at \$\.properties\.a\.type: 'strin' is not valid under any"),
        ({"properties": []}, r"at \$\.properties: \[\] is not of type 'object'"),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "leads out of it"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "leads out of it"),
        ({"properties": {"a": {"$ref": "#/$defs/Gone"}}}, "leads nowhere"),
    ],
)
def test_a_broken_schema_is_refused_with_the_reason(schema: JsonMap, reason: str) -> None:
    with pytest.raises(UnusableSchemaError, match=reason):
        SchemaArguments(schema)


SLOW = "(a+)+$"
"""Takes Python's `re` longer than anybody lives for the text below."""


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": SLOW}}},
        {"properties": {"a": {"type": "string"}}, "patternProperties": {SLOW: {"type": "integer"}}},
        {"properties": {"a": {"pattern": r"^\p{Lu}"}}},
        {"properties": {"a": {"not": {"pattern": "a"}}}},
        {"properties": {"a": {"oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}}},
        {"properties": {"a": {}}, "if": {"properties": {"a": {"pattern": "b"}}}, "then": {"minProperties": 9}},
        {"properties": {}, "patternProperties": {r"^\p{L}": {}}, "additionalProperties": False},
        {"properties": {}, "patternProperties": {r"^\p{L}": {}}, "unevaluatedProperties": False},
        {"properties": {"a": {"format": "date", "type": "string"}}},
    ],
)  # fmt: skip
def test_regular_expressions_are_not_run_and_refuse_nothing(schema: JsonMap) -> None:
    arguments = {"a": "a" * 40 + "!"}
    assert SchemaArguments(schema).checked(arguments) == arguments


def test_beside_a_regular_expression_the_rest_is_checked() -> None:
    schema = of(a={"type": "string", "pattern": "x"}, b={"oneOf": [{"type": "string"}, {"type": "null"}]})
    assert schema.checked({"a": 1, "b": 2, "c": 3}) == [
        "c: unknown argument (known: a, b)",
        "a: input should be a valid string",
        "b: input should be a valid string or null",
    ]


def test_without_regular_expressions_the_whole_draft_is_checked() -> None:
    schema = of(a={"not": {"const": 1}}, b={"oneOf": [{"minimum": 1}, {"maximum": 5}]})
    assert schema.checked({"a": 1, "b": 3}) == [
        "a: input does not fit 'not' of the schema",
        "b: input does not fit 'oneOf' of the schema",
    ]


VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers(-9, 9) | strategies.text("ab", max_size=3),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text("ab"), inner),
    max_leaves=6,
)


@given(strategies.dictionaries(strategies.sampled_from(list(SEARCH["properties"])), VALUES, max_size=4))
def test_any_arguments_come_to_arguments_or_short_sentences(arguments: JsonMap) -> None:
    found = SchemaArguments(SEARCH).checked(arguments)
    if isinstance(found, dict):
        assert arguments.items() <= found.items() if not arguments else {**found, **arguments} == found
    else:
        assert found
        assert all(len(each) < 300 for each in found)
