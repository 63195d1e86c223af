from typing import Any

import pytest
from hypothesis import given, strategies

from nodes.execute_tools.argument_schema import MOST_ERRORS, UnusableSchemaError
from nodes.execute_tools.schema_arguments import OpenArguments, SchemaArguments
from nodes.records import JsonMap

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


def test_a_model_is_shown_a_plain_closed_schema() -> None:
    place = {
        "type": "object",
        "properties": {"line": {"type": "integer", "exclusiveMinimum": 0}},
        "required": ["line"],
        "additionalProperties": False,
    }
    assert SchemaArguments(SEARCH).parameters == {
        "type": "object",
        "properties": {
            **{name: SEARCH["properties"][name] for name in ("limit", "kind", "since", "tags")},
            "query": {"type": "string", "minLength": 1, "maxLength": 9},
            "near": place,
            "where": {"anyOf": [{"type": "string"}, place]},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


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


def test_what_was_given_is_not_repeated_and_sentences_have_an_end() -> None:
    properties = {f"a{number}": {"const": 1} for number in range(100)}
    found = of(**properties).checked(dict.fromkeys(properties, "s3cret" * 1000))
    assert isinstance(found, list)
    assert (len(found), any("s3cret" in each for each in found)) == (MOST_ERRORS, False)
    assert of(a={"enum": ["x" * 10_000]}).checked({"a": 1}) == [f"a: input should be '{'x' * 199}"]


def test_a_default_is_a_copy() -> None:
    schema = of(tags={"type": "array", "default": []})
    first = schema.checked({})
    assert isinstance(first, dict)
    first["tags"].append("x")
    assert schema.checked({}) == {"tags": []}


def test_checked_arguments_are_good_once_more() -> None:
    schema = SchemaArguments(SEARCH)
    once = schema.checked({"query": "a"})
    assert isinstance(once, dict)
    assert schema.checked(once) == once


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


def test_open_arguments_keep_every_name() -> None:
    given = {"model_dump": 1, "copy": 2, "a": [3]}
    assert OpenArguments.model_validate(given).model_extra == given


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
