import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment.mcp_tools import MOST_TOOLS, load_mcp_tools, load_mcp_tools_sync
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext
from nodes.records import Effect, ToolError, ToolErrorCode, ToolResult, ToolSpec
from tests.nodes.execute_tools.environment.mcp_doubles import ECHO, http_server, program, running

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
    assert echo.s(replace(context, timeout_s=0.5), a=1) == late.error
    assert echo.s(replace(context, seconds_left=0.5), a=1) == late.error
    assert time.monotonic() - begun < 5
    assert running(tmp_path) == []


def test_without_servers_there_are_no_tools() -> None:
    assert load_mcp_tools_sync({}) == ()


def test_inside_an_event_loop_the_sync_way_says_what_to_await() -> None:
    async def inside() -> object:
        return load_mcp_tools_sync({})

    message = "An event loop is running here: use `await load_mcp_tools(...)` instead of load_mcp_tools_sync."
    assert asyncio.run(inside()) == invalid(message)
    assert asyncio.run(load_mcp_tools({})) == ()


def test_the_registry_takes_them_beside_others(tmp_path: Path) -> None:
    registry = ActionRegistry(loaded({"s": program(tmp_path)}))
    assert registry.validate("s__echo", {"b": 1}) == ["b: unknown argument (known: a)"]
