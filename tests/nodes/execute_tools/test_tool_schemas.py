"""Schemas that servers and users write, and that no endpoint would take as they are."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from mendgraph import AgentContext, run_task
from mendgraph.nodes.call_model.prompts.prompt import describe_tool
from mendgraph.nodes.execute_tools.registry import plain_schema
from mendgraph.nodes.execute_tools.tool_schemas import usable_schema
from mendgraph.nodes.records import Effect, JsonMap, OutcomeKind, Protocol, ToolSpec
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.doubles.tool_use import message_of, use

TEXT: JsonMap = {"type": "string"}


def with_argument(schema: Any) -> JsonMap:
    return {"type": "object", "properties": {"a": schema}}


SCHEMAS: tuple[tuple[JsonMap, JsonMap, str], ...] = (
    (
        with_argument({"type": "array", "items": [TEXT, {"type": "integer"}]}),
        with_argument({"type": "array", "items": {"anyOf": [TEXT, {"type": "integer"}]}}),
        "[string|integer]",
    ),
    (with_argument({"type": "array", "items": True}), with_argument({"type": "array", "items": {}}), "[any]"),
    (with_argument(True), with_argument({}), "any"),
    (with_argument({"enum": None}), with_argument({}), "any"),
    (with_argument({"anyOf": TEXT}), with_argument({}), "any"),
    (with_argument({"type": None}), with_argument({}), "any"),
    (with_argument({"$ref": "#/$defs/None"}), with_argument({}), "any"),
    (with_argument({"$ref": "https://example.test/a.json"}), with_argument({}), "any"),
    ({**with_argument({"$ref": "#/$defs/A"}), "$defs": {"A": TEXT}}, with_argument(TEXT), "string"),
    ({**with_argument(TEXT), "required": None}, with_argument(TEXT), "string"),
    ({**with_argument(TEXT), "type": ["object", "null"]}, with_argument(TEXT), "string"),
    (with_argument({"type": ["string", "null"]}), with_argument({"type": ["string", "null"]}), "string|null"),
)


@pytest.mark.parametrize(("schema", "usable", "told"), SCHEMAS)
def test_a_schema_is_made_usable_and_can_be_described(schema: JsonMap, usable: JsonMap, told: str) -> None:
    made = plain_schema(usable_schema(schema))
    assert made == usable
    spec = ToolSpec(name="t", description="It acts.", parameters=made, effect=Effect.READ)
    assert describe_tool(spec) == f'- t({{"a"?: {told}}}): It acts.'


@pytest.mark.parametrize("properties", [None, [], {}])
def test_a_schema_without_properties_takes_none(properties: Any) -> None:
    assert usable_schema({"properties": properties}) == {"properties": {}, "type": "object"}


def test_required_arguments_that_stand_among_the_properties_are_required() -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "required": ["a", 7]}}
    assert usable_schema(schema) == {**with_argument(TEXT), "required": ["a"]}
    named = {"type": "object", "properties": {"required": {"type": "boolean"}}}
    assert usable_schema(named) == named


@pytest.mark.parametrize("protocol", Protocol)
def test_a_tool_with_such_a_schema_is_called_in_either_protocol(protocol: Protocol, tmp_path: Path) -> None:
    called: list[Any] = []

    def pick_it(pair: list[str]) -> None:
        called.append(pair)

    schema = {"type": ["object", "null"], "properties": {"pair": {"items": [TEXT]}, "x": {"$ref": "#/no"}}}
    pick = StructuredTool(name="pick", description="Pick.", args_schema=schema, func=pick_it)
    script = [message_of(use(("pick", {"pair": ["a"]})), protocol), Say("It is picked.")]
    with ScriptedServer(script) as server:
        context = AgentContext(
            workspace=str(tmp_path), base_url=server.base_url, model="m", protocol=protocol.value, evidence=False
        )
        outcome = run_task("Pick a.", context, tools=[pick], effects={"pick": Effect.NONE}).outcome
    assert (outcome.kind, called) == (OutcomeKind.FINISHED, [["a"]])
