from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage

from nodes.call_model.wire import describe_tool, message_of, native_tool, on_the_wire
from nodes.records import (
    Effect,
    ToolSpec,
)
from tests.nodes.call_model.prompting import NATIVE, READ, TEXT, assistant, built


def test_arguments_are_shown_as_they_are() -> None:
    call = AIMessage("", tool_calls=[{"name": "f", "args": {"a": "ü", "b": 1}, "id": "x", "type": "tool_call"}])
    assert built(TEXT, [call]).messages[1] == assistant('tool: f({"a":"ü","b":1})')
    [sent] = built(NATIVE, [call]).messages[1]["tool_calls"]
    assert sent["function"]["arguments"] == '{"a":"ü","b":1}'


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string"}, "string"),
        ({}, "any"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string|null"),
        ({"type": "array", "items": {"type": "integer"}}, "[integer]"),
        ({"type": "array"}, "[any]"),
        ({"type": "object"}, "object"),
        (
            {
                "type": "array",
                "items": {"type": "object", "properties": {"title": {}, "status": {"enum": ["open", 1], "type": "x"}}},
            },
            '[{"title": any, "status": "open"|1}]',
        ),
    ],
)
def test_a_tool_is_one_line(schema: dict[str, Any], shown: str) -> None:
    parameters = {"properties": {"value": schema}, "required": ["value"]}
    spec = ToolSpec(name="f", description="Does it.", parameters=parameters, effect=Effect.NONE)
    assert describe_tool(spec) == f'- f({{"value": {shown}}}): Does it.'


def test_a_tool_without_arguments_is_one_line_too() -> None:
    assert describe_tool(ToolSpec(name="f", description="D.", parameters={}, effect=Effect.NONE)) == "- f({}): D."


def test_a_tool_as_the_endpoint_takes_it() -> None:
    function = {"name": "read_file", "description": "Read a file.", "parameters": READ.parameters}
    assert native_tool(READ) == {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("message", "role"), [(SystemMessage("x"), "system"), (HumanMessage("x"), "user"), (AIMessage("x"), "assistant")]
)
@pytest.mark.parametrize("native", [True, False])
def test_plain_messages_keep_their_role(message: AnyMessage, role: str, native: bool) -> None:
    assert on_the_wire(message, native=native) == message_of(role, "x") == {"role": role, "content": "x"}
