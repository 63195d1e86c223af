"""Schemas that servers and users write, and that no endpoint would take as they are."""

from io import IOBase
from pathlib import Path
from typing import Any

import orjson
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from pydantic import BaseModel, ConfigDict

from mendgraph import AgentContext, run_task
from mendgraph.nodes.call_model.prompts.prompt import describe_tool
from mendgraph.nodes.execute_tools.tool_schemas import LARGEST_SCHEMA, fitted_schema, shown_schema, usable_schema
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
def test_schema_is_made_usable_and_can_be_described(schema: JsonMap, usable: JsonMap, told: str) -> None:
    shown = shown_schema(schema)
    assert shown == usable
    spec = ToolSpec(name="t", description="It acts.", parameters=shown, effect=Effect.READ)
    assert describe_tool(spec) == f'- t({{"a"?: {told}}}): It acts.'


@pytest.mark.parametrize("properties", [None, [], {}])
def test_schema_without_properties_takes_none(properties: Any) -> None:
    assert usable_schema({"properties": properties}) == {"properties": {}, "type": "object"}


def test_required_arguments_that_stand_among_the_properties_are_required() -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "required": ["a", 7]}}
    assert usable_schema(schema) == {**with_argument(TEXT), "required": ["a"]}
    named = {"type": "object", "properties": {"required": {"type": "boolean"}}}
    assert usable_schema(named) == named


def size_of(schema: JsonMap) -> int:
    return len(orjson.dumps(schema))


def test_schema_of_80_kb_is_shown_as_it_is() -> None:
    arguments = {f"argument_{n}": {"type": "string", "description": "d" * 100} for n in range(560)}
    schema = {"type": "object", "properties": arguments}
    assert size_of(schema) > 80_000
    assert shown_schema(schema) == schema


LARGE: tuple[tuple[str, JsonMap, JsonMap], ...] = (
    (
        "long descriptions",
        {f"a{n}": {**TEXT, "description": "d" * 1_000} for n in range(200)},
        {f"a{n}": {**TEXT, "description": "d" * 200} for n in range(200)},
    ),
    (
        "many descriptions",
        {f"a{n}": {**TEXT, "description": "d" * 99} for n in range(1_200)},
        {"a0": TEXT, "a1199": TEXT},
    ),
    (
        "a large part of an optional argument",
        {"a": {"type": "object", "properties": {"b": {"enum": ["x" * 140_000]}, "c": TEXT}}, "d": TEXT},
        {"a": {"type": "object", "properties": {"b": {}, "c": TEXT}}, "d": TEXT},
    ),
    (
        "an argument called description",
        {"description": {"enum": ["x" * 140_000]}, "a": TEXT},
        {"description": {}, "a": TEXT},
    ),
    ("thousands of arguments", {f"a{n}": {"type": "string"} for n in range(6_000)}, {"a0": {}, "a5999": {}}),
)


@pytest.mark.parametrize(("properties", "shown"), [each[1:] for each in LARGE], ids=[each[0] for each in LARGE])
def test_schema_that_is_too_large_loses_descriptions_first_then_large_optional_parts(
    properties: JsonMap, shown: JsonMap
) -> None:
    fitted = fitted_schema({"type": "object", "properties": properties})
    assert size_of(fitted) <= LARGEST_SCHEMA
    assert fitted["properties"].keys() == properties.keys()
    assert {name: fitted["properties"][name] for name in shown} == shown


def test_required_argument_is_kept_whole_and_refused_where_it_is_too_large() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x" * 140_000]}}, "required": ["a"]}
    with pytest.raises(ValueError, match="bytes without all that is optional, and 131072 are the most"):
        shown_schema(schema)


class Opaque(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    stream: IOBase


HUGE: JsonMap = {"type": "object", "properties": {"a": {"enum": ["x" * 140_000]}}, "required": ["a"]}
UNDESCRIBED: tuple[tuple[Any, str], ...] = (
    (Opaque, "core_schema.IsInstanceSchema"),
    (HUGE, "140"),
    ({"type": "array"}, "'object'"),
)


@pytest.mark.parametrize(("schema", "reason"), UNDESCRIBED, ids=["pydantic has no schema", "too large", "no object"])
def test_tool_of_langchain_that_cannot_be_described_is_alone_unavailable(
    schema: Any, reason: str, tmp_path: Path
) -> None:
    odd = StructuredTool(name="odd", description="Odd.", args_schema=schema, func=print)
    plain = StructuredTool(name="plain", description="Plain.", args_schema=with_argument(TEXT), func=lambda a: a)
    script = [message_of(use(("odd", {}), ("plain", {"a": "x"})), Protocol.NATIVE), Say("It is done.")]
    with ScriptedServer(script) as server:
        context = AgentContext(workspace=str(tmp_path), base_url=server.base_url, model="m", evidence=False)
        result = run_task("Use both.", context, tools=[odd, plain])
    [described] = [each["function"] for each in server.requests[0]["tools"] if each["function"]["name"] == "odd"]
    told = [each.text for each in result.messages if isinstance(each, ToolMessage)]
    assert described["description"].startswith("Not available. The tool 'odd' has a schema that cannot be used: ")
    assert reason in described["description"]
    assert '"unavailable"' in told[0]
    assert told[1] == "x"


@pytest.mark.parametrize("protocol", Protocol)
def test_tool_with_such_a_schema_is_called_in_either_protocol(protocol: Protocol, tmp_path: Path) -> None:
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
