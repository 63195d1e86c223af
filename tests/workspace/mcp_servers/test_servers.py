"""Servers of one session: one process for all calls, bounded, and ended with the session."""

import asyncio
import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.mcp_servers import limits, servers, stdio_process
from mendgraph.nodes.execute_tools.mcp_servers.connections import McpServer
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
from mendgraph.nodes.execute_tools.mcp_tools import load_mcp_tools_sync
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext
from mendgraph.nodes.records import ToolError, ToolErrorCode, ToolResult
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.doubles.mcp_servers import http_server, program, running_processes
from tests.extent import slow


def load_echo(connection: dict[str, object]) -> Tool:
    tools = load_mcp_tools_sync({"s": connection})
    assert not isinstance(tools, ToolError), tools.message
    return tools[0]


def context_of(folder: Path, running_servers: McpServers, timeout_s: float = 30) -> ToolContext:
    workspace = Workspace(str(folder), lambda *_: None)
    return ToolContext(workspace, timeout_s=timeout_s, servers=running_servers)


def call(tool: Tool, context: ToolContext, **arguments: Any) -> str:
    """The text that the tool answers, or the message of its error."""
    output = tool.s(context, **(arguments or {"a": 1}))
    result = output if isinstance(output, ToolResult) else output.result
    return str(result.data["text"]) if result.error is None else result.error.message


def process_ids(folder: Path) -> list[str]:
    return (folder / "pids").read_text(encoding="utf-8").split()


def test_calls_of_one_session_reach_one_process(tmp_path: Path) -> None:
    echo = load_echo(program(tmp_path))
    with McpServers() as session, McpServers() as other:
        context = context_of(tmp_path, session)
        assert {call(echo, context) for _ in range(3)} == {'{"name": "echo", "arguments": {"a": 1}}'}

        async def call_twice() -> list[Any]:
            return list(await asyncio.gather(echo.a(context, a=2), echo.a(context, a=2)))

        assert len(asyncio.run(call_twice())) == 2
        assert len(process_ids(tmp_path)) == 2  # the other one has listed the tools
        call(echo, context_of(tmp_path, other))
        assert len(process_ids(tmp_path)) == 3
    assert running_processes(tmp_path) == []


def test_failed_event_loop_is_an_error_and_the_next_call_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = load_echo(program(tmp_path))

    def fails() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    async def send(session: McpServers) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "new_event_loop", fails)
            with pytest.raises(OSError, match="Too many"):
                await session.send(McpServer("s", {}), lambda _: asyncio.sleep(0), 1)

    with McpServers() as session:
        asyncio.run(send(session))
        assert call(echo, context_of(tmp_path, session)) == '{"name": "echo", "arguments": {"a": 1}}'


def test_garbage_collected_session_ends_its_servers(tmp_path: Path) -> None:
    echo = load_echo(program(tmp_path))
    session = McpServers()
    call(echo, context_of(tmp_path, session))
    del session
    assert running_processes(tmp_path) == []


@slow
@pytest.mark.parametrize("behaviour", ["stubborn", "stubborn hang"])
def test_server_that_ignores_eof_and_sigterm_is_killed_with_its_children(tmp_path: Path, behaviour: str) -> None:
    echo = load_echo(program(tmp_path, behaviour))
    with McpServers() as session:
        call(echo, context_of(tmp_path, session, timeout_s=0.5 if "hang" in behaviour else 30))
    assert len(process_ids(tmp_path)) == 4
    assert running_processes(tmp_path) == []


@slow
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("dies", "The MCP server 's' failed: it ended; it said: a line for people \\x1b[31m out of memory"),
        ("hang", "The MCP server 's' did not answer within 0.5 s, and was ended."),
    ],
)
def test_ended_server_is_restarted_by_the_next_call(tmp_path: Path, behaviour: str, message: str) -> None:
    echo = load_echo(program(tmp_path, behaviour))
    with McpServers() as session:
        context = context_of(tmp_path, session, timeout_s=0.5 if behaviour == "hang" else 30)
        assert [call(echo, context), call(echo, context)] == [message] * 2
        assert len(process_ids(tmp_path)) == 3
    assert running_processes(tmp_path) == []


def test_server_that_refuses_a_request_keeps_running(tmp_path: Path) -> None:
    echo = load_echo(program(tmp_path, "refuses"))
    with McpServers() as session:
        context = context_of(tmp_path, session)
        assert call(echo, context) == call(echo, context) == "The MCP server 's' failed: no such \\x1b tool"
        assert len(process_ids(tmp_path)) == 2


# --- Hostile servers


def test_oversized_message_ends_the_server(tmp_path: Path) -> None:
    echo = load_echo(program(tmp_path, "huge"))
    with McpServers() as session:
        message = f"it sent a message of more than {limits.MOST_MESSAGE_BYTES} bytes"
        assert call(echo, context_of(tmp_path, session)) == f"The MCP server 's' failed: {message}"
        assert running_processes(tmp_path) == []


@pytest.mark.parametrize("behaviour", ["floods", "floods errors"])
def test_too_much_unsolicited_output_ends_the_server(
    tmp_path: Path, behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio_process, "MOST_UNASKED_BYTES", 1_000_000)
    echo = load_echo(program(tmp_path, behaviour))
    with McpServers() as session:
        message = "it wrote more than 1000000 bytes without being asked"
        assert call(echo, context_of(tmp_path, session)) == f"The MCP server 's' failed: {message}"
        assert running_processes(tmp_path) == []


def test_too_deeply_nested_message_is_ignored(tmp_path: Path) -> None:
    echo = load_echo(program(tmp_path, "nests"))
    with McpServers() as session:
        assert call(echo, context_of(tmp_path, session)) == "The MCP server 's' failed: said"


@slow
def test_server_that_never_answers_initialize_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "START_S", 0.5)
    tools = load_mcp_tools_sync({"s": program(tmp_path, "mute")})
    message = "The MCP server 's' failed: it did not start within 0.5 s"
    assert tools == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
    assert running_processes(tmp_path) == []


@slow
def test_oversized_http_response_is_an_error(tmp_path: Path) -> None:
    with http_server() as url, McpServers() as session:
        echo = load_echo({"transport": "http", "url": url})
        context = context_of(tmp_path, session)
        message = f"it sent a response of more than {limits.MOST_MESSAGE_BYTES} bytes"
        assert call(echo, context, huge=True) == f"The MCP server 's' failed: {message}"
        assert call(echo, context) == '{"a": 1}'


def test_server_starts_in_an_empty_directory_with_a_safe_path(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the workspace was imported')", encoding="utf-8")
    show = "import json, os, sys; sys.stderr.write(repr((os.listdir(), os.environ['PYTHONSAFEPATH'], os.getcwd())))"
    connection = {"transport": "stdio", "command": sys.executable, "args": ["-c", show]}
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        tools = load_mcp_tools_sync({"s": connection})
    finally:
        os.chdir(before)
    assert isinstance(tools, ToolError)
    assert "it said: ([], '1', '/" in tools.message
    assert str(tmp_path) not in tools.message


def test_tool_outside_a_session_has_its_own_process(tmp_path: Path) -> None:
    echo = load_echo(program(tmp_path))
    context = replace(context_of(tmp_path, McpServers()), servers=None)
    call(echo, context)
    assert running_processes(tmp_path) == []
