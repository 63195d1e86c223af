import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from nodes.call_model.constrained import calls_schema, meant_tools
from nodes.call_model.offered_tools import offered_tools
from nodes.execute_tools.tools import default_tools
from nodes.language.dialects import read_dialect
from nodes.records import EditForm, Effect, JsonMap, ToolInvocation, ToolSpec
from tests.nodes.call_model.prompting import READ

SPECS = offered_tools(
    [tool.spec for tool in default_tools()], EditForm.REPLACE, read_only=False, answer_schema=None, few=False
)
"""What a model is told of that may answer under a schema."""
ANY_VALUE = {"type": ["object", "array", "string", "number", "boolean", "null"]}
KNOWN = frozenset(
    {"type", "enum", "const", "required", "minimum", "maximum", "properties", "items", "anyOf", "additionalProperties"}
    | {"minLength", "maxLength", "minItems", "maxItems"}
)
"""What the converters of servers have in common."""


def tool(parameters: JsonMap, name: str = "f", effect: Effect = Effect.WRITE) -> ToolSpec:
    return ToolSpec(name=name, description="D.", parameters=parameters, effect=effect)


def call_of(name: str, arguments: JsonMap) -> JsonMap:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [name]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def loosened(parameters: JsonMap) -> Any:
    """What becomes of the schema of one argument."""
    schema = calls_schema([tool({"type": "object", "properties": {"x": parameters}})])
    assert schema is not None
    return schema["anyOf"][0]["properties"]["arguments"]["properties"]["x"]


def accepts(schema: JsonMap, value: object) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


def test_a_reply_is_one_call_of_one_of_the_tools() -> None:
    other = tool({"type": "object", "properties": {}, "additionalProperties": False}, "list_all")
    assert calls_schema([READ, other]) == {
        "type": "object",
        "anyOf": [
            call_of("read_file", READ.parameters),
            call_of("list_all", {"type": "object", "properties": {}, "additionalProperties": False}),
        ],
    }


def test_without_tools_there_is_nothing_to_call() -> None:
    assert calls_schema([]) is None


@pytest.mark.parametrize(
    ("schema", "loose"),
    [
        ({"type": "string", "description": "D.", "default": "", "title": "T"}, {"type": "string"}),
        ({"type": "integer", "minimum": 1, "maximum": 500}, {"type": "integer", "minimum": 1, "maximum": 500}),
        ({"type": "string", "minLength": 1, "maxLength": 50}, {"type": "string", "minLength": 1, "maxLength": 50}),
        ({"type": "string", "minLength": 1, "maxLength": 51}, {"type": "string", "minLength": 1}),
        ({"type": "string", "pattern": "^a", "format": "date"}, {"type": "string"}),
        ({"type": "number", "exclusiveMinimum": 0, "multipleOf": 2}, {"type": "number"}),
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}),
        ({"const": None}, {"const": None}),
        (
            {"type": "array", "items": {"type": "string", "title": "T"}, "minItems": 1, "maxItems": 1000},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
        ),
        (
            {"oneOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}], "default": None},
            {"anyOf": [{"type": "number"}, {"type": "null"}]},
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string", "title": "T"}},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({}, ANY_VALUE),
        ({"default": None, "description": "D."}, ANY_VALUE),
        ({"minimum": 1}, ANY_VALUE),
        (True, ANY_VALUE),
        ({"$ref": "#/$defs/A"}, ANY_VALUE),
        ({"type": "object", "patternProperties": {"^a": {}}}, ANY_VALUE),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, ANY_VALUE),
        ({"type": "string", "not": {"const": "a"}}, ANY_VALUE),
        ({"allOf": [{"type": "string"}]}, ANY_VALUE),
        ({"anyOf": []}, ANY_VALUE),
        ({"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items": ANY_VALUE}),
    ],
)
def test_each_keyword(schema: Any, loose: JsonMap) -> None:
    assert loosened(schema) == loose


@pytest.mark.parametrize(
    "parameters", [{}, {"$ref": "#"}, {"type": "string"}, {"type": "object", "patternProperties": {}}]
)
def test_arguments_are_an_object_in_any_case(parameters: JsonMap) -> None:
    assert calls_schema([tool(parameters)]) == {"type": "object", "anyOf": [call_of("f", {"type": "object"})]}


def test_a_schema_without_end_is_cut() -> None:
    endless: JsonMap = {"type": "object"}
    endless["properties"] = {"x": endless}
    text = json.dumps(calls_schema([tool(endless)]))
    assert text.count('"x"') == 17


def keywords(schema: Any) -> set[str]:
    """Every keyword at every place of a schema."""
    if not isinstance(schema, dict):
        return set()
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    inner += [schema.get("items"), schema.get("additionalProperties")]
    return set(schema).union(*map(keywords, inner))


def test_our_own_tools_need_nothing_else() -> None:
    schema = calls_schema(SPECS)
    assert schema is not None
    assert keywords(schema) <= KNOWN
    assert [each["properties"]["name"]["enum"] for each in schema["anyOf"]] == [[spec.name] for spec in SPECS]


CALL = {"name": "edit_file", "arguments": {"path": "a.py", "old_str": "x\n", "new_str": "y\n"}}


@pytest.mark.parametrize(
    ("reply", "fits"),
    [
        (CALL, True),
        ({**CALL, "name": "rename_function"}, False),
        ({**CALL, "thought": "Hm"}, False),
        ({"name": "edit_file", "arguments": {"path": "a.py", "old_str": "x"}}, False),
        ({"name": "edit_file", "arguments": {**CALL["arguments"], "line": 1}}, False),  # type: ignore[dict-item]
        ({"name": "read_file", "arguments": {"path": "a.py", "limit": "all"}}, False),
        ({"name": "run_command", "arguments": {"argv": []}}, False),
        ("edit_file", False),
    ],
)
def test_what_fits_is_a_call_that_is_read(reply: Any, fits: bool) -> None:
    schema = calls_schema(SPECS)
    assert schema is not None
    assert accepts(schema, reply) is fits
    if fits:
        names = frozenset(spec.name for spec in SPECS)
        assert read_dialect(json.dumps(reply), names) == [ToolInvocation("edit_file", reply["arguments"], 0)]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
SCHEMAS: st.SearchStrategy[JsonMap] = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=2),
            "minimum": st.integers(-3, 3),
            "maxLength": st.integers(0, 99),
            "minItems": st.integers(0, 99),
            "pattern": st.just("a"),
            "uniqueItems": st.booleans(),
            "description": st.text(max_size=3),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES,
            "properties": st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
            "required": st.lists(st.sampled_from("xyz"), unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.dictionaries(st.just("x"), inner, max_size=1),
            "items": inner | st.booleans(),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
def test_what_a_tool_takes_can_be_said(schema: JsonMap, value: object) -> None:
    loose = loosened(schema)
    assert accepts(loose, value) or not accepts(schema, value)
    assert keywords(loose) <= KNOWN


LOOKING = ["read_file", "list_files", "glob_files", "search_files"]
HARMLESS = [*LOOKING, "edit_file", "multi_edit", "final_answer"]


@pytest.mark.parametrize(
    ("reply", "names"),
    [
        ('tool: edit_file({"path": "a.py"', [*LOOKING, "edit_file"]),
        ('tool: edit_file({"new_str": "delete_file(x)"', [*LOOKING, "edit_file"]),
        ('{"name": "delete_file", "arguments": {"path": "a.py"}', [*LOOKING, "delete_file"]),
        ("tool: read_file", LOOKING),
        ('tool: rename_function({"path": "a.py"})', HARMLESS),
        ("tool: my_edit_file()", HARMLESS),
        ("", HARMLESS),
    ],
)
def test_a_retry_may_call_what_was_meant_and_nothing_that_destroys(reply: str, names: list[str]) -> None:
    assert [spec.name for spec in meant_tools(SPECS, reply)] == names
