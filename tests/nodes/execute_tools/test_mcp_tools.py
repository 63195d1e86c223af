import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files.failures import plain_text
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.mcp_tools import (
    LONGEST_ERROR,
    LONGEST_SCHEMA,
    MOST_TOOLS,
    bounded_schema,
    call_result,
    load_mcp_tools,
    load_mcp_tools_sync,
)
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult, ToolSpec
from tests.nodes.execute_tools.network.mcp_doubles import ECHO, http_server, program, running

REAL = """
from mcp.server.fastmcp import FastMCP, Image
from mcp.types import ToolAnnotations

server = FastMCP("calc", log_level="ERROR")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def add(a: int, b: int = 2) -> int:
    "Add two numbers."
    return a + b


@server.tool(structured_output=False)
def show() -> list[str | Image]:
    "Show them."
    return ["shown", Image(data=b"12345", format="png")]


@server.tool()
def fail() -> str:
    "Fail."
    raise ValueError("no number")


server.run()
"""


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(Workspace(str(tmp_path), lambda *_: None), timeout_s=20)


def loaded(connections: dict[str, dict[str, object]], **options: Any) -> tuple[Tool, ...]:
    found = load_mcp_tools_sync(connections, **options)
    assert not isinstance(found, ToolError), found.message
    return found


def invalid(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def failed(code: ToolErrorCode, message: str) -> ToolResult:
    return ToolResult(ok=False, error=ToolError(code=code, message=message))


def test_the_tools_of_a_real_server_are_tools_of_ours(tmp_path: Path, context: ToolContext) -> None:
    (tmp_path / "calc.py").write_text(REAL, encoding="utf-8")
    connection: dict[str, object] = {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(tmp_path / "calc.py")],
    }
    add, show, fail = loaded({"calc": connection})
    assert add.spec == ToolSpec(
        name="calc__add",
        description="Add two numbers.",
        parameters={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
            "required": ["a"],
            "additionalProperties": False,
        },
        effect=Effect.EXECUTE,
    )
    assert (add.asynchronous, add.self_timed, add.remote, add.cacheable) == (True, True, True, False)
    assert add.validate({"a": "x"}) == ["a: input should be a valid integer"]

    async def all_three() -> list[Any]:
        return list(await asyncio.gather(add.a(context, a=1, b=2), show.a(context), fail.a(context)))

    assert asyncio.run(all_three()) == [
        ToolResult(ok=True, data={"structured": {"result": 3}}),
        ToolResult(
            ok=True,
            data={"text": "shown", "attachments": [{"type": "image", "mime_type": "image/png", "bytes": 5}]},
        ),
        failed(ToolErrorCode.IO_ERROR, "calc__fail failed: Error executing tool fail: no number"),
    ]


def test_a_server_over_http_has_tools_too(context: ToolContext) -> None:
    with http_server() as url:
        [echo] = loaded({"web": {"transport": "http", "url": url}})
        assert echo.s(context, a=[1]) == ToolResult(ok=True, data={"text": '{"a": [1]}'})


def test_a_call_passes_on_its_arguments_and_nothing_else(tmp_path: Path, context: ToolContext) -> None:
    [echo] = loaded({"double": program(tmp_path)})
    said = '{"name": "echo", "arguments": {"a": {"model_dump": 1}}}'
    assert echo.s(context, a={"model_dump": 1}) == ToolResult(ok=True, data={"text": said})


def test_effects_are_what_the_user_says(tmp_path: Path) -> None:
    two = program(tmp_path, "", ECHO, {**ECHO, "name": "other"})
    connections = {"a": two, "b": program(tmp_path)}
    effects = {"a": Effect.READ, "a__other": Effect.NETWORK}
    assert {each.name: each.effect for each in loaded(connections, effects=effects)} == {
        "a__echo": Effect.READ,
        "a__other": Effect.NETWORK,
        "b__echo": Effect.EXECUTE,
    }


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        (
            {"a__ecko": Effect.READ},
            "The effects name 'a__ecko', which is no MCP tool or server. Did you mean a or a__echo?",
        ),
        ({"xyz": Effect.READ}, "The effects name 'xyz', which is no MCP tool or server. There are: a, a__echo."),
        ({"a": "read"}, "The effect of 'a' has to be an Effect, such as Effect.READ."),
    ],
)
def test_effects_of_nothing_are_refused(tmp_path: Path, effects: Any, message: str) -> None:
    assert load_mcp_tools_sync({"a": program(tmp_path)}, effects=effects) == invalid(message)


def named(name: str) -> dict[str, Any]:
    return {**ECHO, "name": name}


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [("my server", "read/file", "my_server__read_file"), ("a", "é" * 99, "a__" + "_" * 61), ("é\n", "b", "____b")],
)
def test_names_become_valid(tmp_path: Path, server: str, tool: str, name: str) -> None:
    assert [each.name for each in loaded({server: program(tmp_path, "", named(tool))})] == [name]


def test_names_that_become_the_same_are_refused(tmp_path: Path) -> None:
    found = load_mcp_tools_sync({"s": program(tmp_path, "", named("a.b"), named("a/b"))})
    message = "Two MCP tools would both be called 's__a_b': 'a.b' of 's' and 'a/b' of 's'. Rename a server."
    assert found == invalid(message)


def test_a_hostile_description_is_bounded_and_plain(tmp_path: Path) -> None:
    tools = [
        {**ECHO, "description": "a\u202eb \x1b " + "x" * 100_000},
        {"name": "mute", "inputSchema": {}, "title": "Says\nnothing"},
        {"name": "bare", "inputSchema": {}},
    ]
    found = loaded({"s": program(tmp_path, "", *tools)})
    assert [each.description for each in found] == [
        "a\\u202eb \\x1b " + "x" * (1_024 - 17) + "...",
        "Says nothing",
        "A tool of the MCP server 's'.",
    ]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "https://example.com/x.json"}, "its reference 'https://example.com/x.json' leads out of it; use '#"),
        ({"type": "string"}, "its type has to be 'object'"),
        ({"properties": {"a": {"type": 7}}}, "at $.properties.a.type: 7 is not valid under any"),
        ({"properties": {"a\nb": {}}}, "it has the unreadable name 'a b'"),
        ({"properties": {"a": {"enum": ["x" * 70_000]}}}, "it has 70"),
    ],
)
def test_a_hostile_schema_is_refused_by_name(tmp_path: Path, schema: dict[str, Any], reason: str) -> None:
    found = load_mcp_tools_sync({"s": program(tmp_path, "", {"name": "t", "inputSchema": schema})})
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.INVALID_ARGUMENT
    assert found.message.startswith(f"The tool 's__t' has a schema that cannot be used: {reason}")


def test_a_list_without_an_end_is_refused(tmp_path: Path) -> None:
    found = load_mcp_tools_sync({"s": program(tmp_path, "endless", *[named(f"t{n}") for n in range(100)])})
    assert found == invalid(f"The MCP server 's' lists more than {MOST_TOOLS} tools, so it is not used.")


def test_a_server_that_cannot_be_had_is_the_error_of_all(tmp_path: Path) -> None:
    found = load_mcp_tools_sync({"good": program(tmp_path), "bad": program(tmp_path, "dead")})
    assert isinstance(found, ToolError)
    assert found.message.startswith("The MCP server 'bad' failed: it ended")
    assert running(tmp_path) == []


def test_a_call_has_the_time_of_its_context(tmp_path: Path, context: ToolContext) -> None:
    [echo] = loaded({"s": program(tmp_path, "hang")})
    begun = time.monotonic()
    late = failed(ToolErrorCode.TIMEOUT, "The MCP server 's' did not answer within 0.5 s, and was given up.")
    assert echo.s(replace(context, timeout_s=0.5), a=1) == ToolOutput(late)
    assert echo.s(replace(context, seconds_left=0.5), a=1) == ToolOutput(late)
    assert time.monotonic() - begun < 5
    assert running(tmp_path) == []


def test_inside_an_event_loop_the_sync_way_says_what_to_await() -> None:
    async def inside() -> object:
        return load_mcp_tools_sync({})

    message = "An event loop is running here: use `await load_mcp_tools(...)` instead of load_mcp_tools_sync."
    assert asyncio.run(inside()) == invalid(message)
    assert asyncio.run(load_mcp_tools({})) == ()


def text(said: str) -> JsonMap:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain", "plain"),
        ("  two\n\tlines ", "two lines"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("é", "é"),
        ("0123456789", "0123456789"),
        ("01234567890", "0123456..."),
        ("\x00" * 9, "\\x00\\x0..."),
    ],
)
def test_a_text_becomes_one_plain_line(given_text: str, shown: str) -> None:
    assert plain_text(given_text, 10) == shown


def test_a_property_may_be_called_description() -> None:
    schema = {"properties": {"description": {"type": "string", "enum": ["a\n"]}}}
    assert bounded_schema(schema) == schema


def nested(levels: int) -> JsonMap:
    found: JsonMap = {}
    for _ in range(levels):
        found = {"items": found}
    return found


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a\nb": {}}}, "it has the unreadable name 'a b'"),
        ({"properties": {"\u202e": {}}}, "it has the unreadable name '\\\\u202e'"),
        ({"properties": {"a" * 101: {}}}, f"it has the unreadable name '{'a' * 97}...'"),
        ({"enum": ["x" * LONGEST_SCHEMA]}, f"it has {LONGEST_SCHEMA + 13} bytes, and {LONGEST_SCHEMA} are the most"),
        ({"enum": [2**64]}, "Integer exceeds 64-bit range"),
    ],
)
def test_a_schema_that_no_model_should_see_is_refused(schema: JsonMap, reason: str) -> None:
    assert bounded_schema(schema) == reason


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        ({"content": [text("a"), text("b\u202e")]}, {"text": "a\nb\u202e"}),
        ({"content": []}, {"text": ""}),
        ({}, {"text": ""}),
        ({"content": [text("5")], "structuredContent": {"result": 5}}, {"structured": {"result": 5}}),
        ({"content": [text("five")], "structuredContent": {"result": "five"}}, {"structured": {"result": "five"}}),
        ({"content": [text('{"a": 1}')], "structuredContent": {"a": 1}}, {"structured": {"a": 1}}),
        (
            {"content": [text("a"), text("b")], "structuredContent": {"result": ["a", "b"]}},
            {"structured": {"result": ["a", "b"]}},
        ),
        ({"content": [text("See b.")], "structuredContent": {"a": 1}}, {"text": "See b.", "structured": {"a": 1}}),
        ({"content": [text("x")], "structuredContent": {}}, {"text": "x", "structured": {}}),
        (
            {"content": [{"type": "image", "mimeType": "image/png", "data": "MTIzNDU="}]},
            {"attachments": [{"type": "image", "mime_type": "image/png", "bytes": 5}]},
        ),
        (
            {"content": [{"type": "audio", "mimeType": "audio/wav", "data": "MTIz"}, text("a")]},
            {"text": "a", "attachments": [{"type": "audio", "mime_type": "audio/wav", "bytes": 3}]},
        ),
        (
            {"content": [{"type": "resource_link", "uri": "file:///a\n", "name": "a", "size": 7, "mimeType": None}]},
            {"attachments": [{"type": "resource_link", "uri": "file:///a", "bytes": 7}]},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/plain", "text": "é"}}]},
            {"attachments": [{"type": "resource", "mime_type": "text/plain", "uri": "a:b", "bytes": 2, "text": "é"}]},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a:b", "blob": "MTI="}}]},
            {"attachments": [{"type": "resource", "uri": "a:b", "bytes": 2}]},
        ),
        ({"content": [{"type": "odd", "resource": 1}, {}]}, {"attachments": [{"type": "odd"}, {"type": ""}]}),
    ],
)  # fmt: skip
def test_an_answer_becomes_data(answer: JsonMap, data: JsonMap) -> None:
    assert call_result("s__t", answer) == ToolResult(ok=True, data=data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([text("no such\nfile \x1b")], "s__t failed: no such file \\x1b"),
        ([text("a"), text("b")], "s__t failed: a b"),
        ([{"type": "image"}], "s__t failed: it gave no reason"),
        ([text("x" * 1_000_000)], f"s__t failed: {'x' * (LONGEST_ERROR - 3)}..."),
    ],
)
def test_an_error_is_bounded_and_plain(content: list[Any], message: str) -> None:
    error = ToolError(code=ToolErrorCode.IO_ERROR, message=message)
    assert call_result("s__t", {"content": content, "isError": True}) == ToolResult(ok=False, error=error)
