"""Schemas from servers and users that no endpoint would accept unchanged."""

from io import IOBase
from pathlib import Path
from typing import Any

import orjson
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool
from pydantic import BaseModel, ConfigDict

from mendgraph import AgentContext, run_task
from mendgraph.nodes.execute_tools.tool_schemas import shown_schema, usable_schema
from mendgraph.nodes.language.chat_messages import describe_tool
from mendgraph.nodes.records import Effect, JsonMap, OutcomeKind, ToolSpec
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.doubles.tool_use import message_of, use
from tests.row_tables import rows
from tests.vocabulary import Protocol

TEXT: JsonMap = {"type": "string"}


def with_argument(schema: Any) -> JsonMap:
    return {"type": "object", "properties": {"a": schema}}


INTEGER: JsonMap = {"type": "integer"}
PAIR, EITHER = {"type": "array", "items": [TEXT, INTEGER]}, {"type": "array", "items": {"anyOf": [TEXT, INTEGER]}}
OPTIONAL = {"type": ["string", "null"]}
SCHEMAS: tuple[tuple[JsonMap, JsonMap, str], ...] = (
    (with_argument(PAIR), with_argument(EITHER), "[string|integer]"),
    (with_argument({"type": "array", "items": True}), with_argument({"type": "array", "items": {}}), "[any]"),
    *(
        (with_argument(odd), with_argument({}), "any")
        for odd in (
            *(True, {"enum": None}, {"anyOf": TEXT}, {"type": None}),
            *({"$ref": "#/$defs/None"}, {"$ref": "https://example.test/a.json"}),
        )
    ),
    ({**with_argument({"$ref": "#/$defs/A"}), "$defs": {"A": TEXT}}, with_argument(TEXT), "string"),
    ({**with_argument(TEXT), "required": None}, with_argument(TEXT), "string"),
    ({**with_argument(TEXT), "type": ["object", "null"]}, with_argument(TEXT), "string"),
    (with_argument(OPTIONAL), with_argument(OPTIONAL), "string|null"),
    (with_argument({"anyOf": [TEXT, PAIR]}), with_argument({"anyOf": [TEXT, EITHER]}), "string|[string|integer]"),
    *(
        (with_argument({"type": "object", "additionalProperties": more}), with_argument(usable), "object")
        for more, usable in (
            (False, {"type": "object", "additionalProperties": False}),
            (PAIR, {"type": "object", "additionalProperties": EITHER}),
        )
    ),
    (with_argument({"const": "x"}), with_argument({"const": "x"}), '"x"'),
)


@rows(*SCHEMAS)
def test_schema_is_made_valid_and_can_be_described(schema: JsonMap, usable: JsonMap, description: str) -> None:
    parameters = shown_schema(schema)
    assert parameters == usable
    spec = ToolSpec(name="t", description="It acts.", parameters=parameters, effect=Effect.READ)
    assert describe_tool(spec) == f'- t({{"a"?: {description}}}): It acts.'


@rows(None, [], {})
def test_schema_without_properties_takes_no_arguments(properties: Any) -> None:
    assert usable_schema({"properties": properties}) == {"properties": {}, "type": "object"}


def test_misplaced_required_list_is_honoured() -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "required": ["a", 7]}}
    assert usable_schema(schema) == {**with_argument(TEXT), "required": ["a"]}
    named = {"type": "object", "properties": {"required": {"type": "boolean"}}}
    assert usable_schema(named) == named


def size_of(schema: JsonMap) -> int:
    return len(orjson.dumps(schema))


def test_schema_of_80_kb_is_shown_unchanged() -> None:
    arguments = {f"argument_{n}": {"type": "string", "description": "d" * 100} for n in range(560)}
    schema = {"type": "object", "properties": arguments}
    assert size_of(schema) > 80_000
    assert shown_schema(schema) == schema


ENUM: JsonMap = {"enum": ["x" * 140_000]}
HUGE: JsonMap = {"type": "object", "properties": {"a": ENUM}, "required": ["a"]}


def test_too_large_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes; the maximum is 131072"):
        shown_schema(HUGE)


class Opaque(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    stream: IOBase


UNDESCRIBED: tuple[tuple[Any, str], ...] = (
    (Opaque, "core_schema.IsInstanceSchema"),  # pydantic has no schema of it
    (HUGE, "140"),
    ({"type": "array"}, "'object'"),
)


def test_langchain_tool_with_an_unusable_schema_is_the_only_one_unavailable(tmp_path: Path) -> None:
    odd = [
        StructuredTool(name=f"odd{at}", description="Odd.", args_schema=schema, func=print)
        for at, (schema, _) in enumerate(UNDESCRIBED)
    ]
    plain = StructuredTool(name="plain", description="Plain.", args_schema=with_argument(TEXT), func=lambda a: a)
    calls = use(*((tool.name, {}) for tool in odd), ("plain", {"a": "x"}))
    with ScriptedServer([message_of(calls, Protocol.NATIVE), Say("It is done.")]) as server:
        context = AgentContext(workspace=str(tmp_path), base_url=server.base_url, model="m", evidence=False)
        result = run_task("Use all.", context, tools=[*odd, plain])
    functions = {schema["function"]["name"]: schema["function"] for schema in server.requests[0]["tools"]}
    *refused, answer = [message.text for message in result.messages if isinstance(message, ToolMessage)]
    assert ['"unavailable"' in message for message in refused] == [True] * len(odd)
    assert answer == "x"
    for tool, (_, reason) in zip(odd, UNDESCRIBED, strict=True):
        description = functions[tool.name]["description"]
        assert description.startswith(f"Not available. The tool '{tool.name}' has a schema that cannot be used: ")
        assert reason in description


@pytest.mark.parametrize("protocol", Protocol)
def test_tool_with_an_odd_schema_works_in_both_protocols(protocol: Protocol, tmp_path: Path) -> None:
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
