import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession

from mendgraph.nodes.execute_tools.network import mcp_sessions
from mendgraph.nodes.execute_tools.network.mcp_sessions import McpServer
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.network.mcp_doubles import http_server, program, running


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Afterwards no handle is open, and no thread runs, that was not there before; one that is given up ends soon."""
    handles, threads = len(os.listdir("/dev/fd")), threading.active_count()
    yield
    deadline = time.monotonic() + 20
    while more_than(handles, threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not more_than(handles, threads)


def more_than(handles: int, threads: int) -> bool:
    """Whether more are there than before; those of earlier tests may end meanwhile."""
    return len(os.listdir("/dev/fd")) > handles or threading.active_count() > threads


async def echo(session: ClientSession) -> Any:
    return (await session.call_tool("echo", {"a": 1})).model_dump(mode="json")["content"][0]["text"]


def asked(connection: dict[str, object], timeout_s: float = 20) -> Any:
    return asyncio.run(McpServer("double", connection).ask(echo, timeout_s))


ECHOED = '{"name": "echo", "arguments": {"a": 1}}'


@pytest.mark.parametrize("behaviour", ["", "banner", "stubborn child"])
def test_a_program_is_asked_and_ended(tmp_path: Path, behaviour: str) -> None:
    assert asked(program(tmp_path, behaviour)) == ECHOED
    assert running(tmp_path) == []


def test_a_process_that_left_its_group_holds_nobody_up(tmp_path: Path) -> None:
    assert asked(program(tmp_path, "child apart")) == ECHOED
    [left] = running(tmp_path)
    os.kill(left, signal.SIGKILL)


def test_what_a_program_says_unasked_is_not_for_us(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert asked(program(tmp_path, "chatty")) == ECHOED
    assert caplog.records == []


def test_logs_that_quote_servers_stay_off_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("mcp"), "handlers", [])
    asked(program(tmp_path, "dead"))
    assert [type(handler) for handler in logging.getLogger("mcp").handlers] == [logging.NullHandler]


def failure(code: ToolErrorCode, message: str) -> ToolError:
    return ToolError(code=code, message=f"The MCP server 'double' {message}")


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("dead", "failed: it ended; it said: a line for people \\x1b[31m"),
        ("dies", "failed: it ended; it said: a line for people \\x1b[31m out of memory"),
        ("flood", "failed: it sends what is not MCP; it said: a line for people \\x1b[31m"),
        ("pings", "failed: it sends what is not MCP; it said: a line for people \\x1b[31m"),
        (
            "giant",
            "failed: it sent a message of more than 8388608 bytes; it said: a line for people \\x1b[31m",
        ),
        ("refuses", "failed: no such \\x1b tool"),
    ],
)
def test_a_program_that_fails_is_a_typed_error(tmp_path: Path, behaviour: str, message: str) -> None:
    is_down = behaviour in {"dead", "flood", "pings"}  # it never began to talk: a circuit breaker counts that
    code = ToolErrorCode.UNAVAILABLE if is_down else ToolErrorCode.IO_ERROR
    assert asked(program(tmp_path, behaviour)) == failure(code, message)
    assert running(tmp_path) == []


@pytest.mark.parametrize("behaviour", ["hang", "hang stubborn child", "notes"])
def test_a_program_that_hangs_is_given_up_in_time(tmp_path: Path, behaviour: str) -> None:
    begun = time.monotonic()
    found = asked(program(tmp_path, behaviour), timeout_s=1)
    assert found == failure(ToolErrorCode.TIMEOUT, "did not answer within 1 s, and was given up.")
    assert time.monotonic() - begun < 5
    assert running(tmp_path) == []


def test_a_program_that_is_given_up_has_a_moment_to_tidy_up(tmp_path: Path) -> None:
    found = asked(program(tmp_path, "hang tidy"), timeout_s=1)
    assert found.code is ToolErrorCode.TIMEOUT
    assert (tmp_path / "pids.tidied").exists()


def test_a_caller_that_gives_up_leaves_no_program_behind(tmp_path: Path) -> None:
    async def give_up() -> None:
        await asyncio.wait_for(McpServer("double", program(tmp_path, "hang stubborn")).ask(echo, 60), 1)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert running(tmp_path) == []


def test_a_program_gets_no_keys_but_what_its_connection_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    monkeypatch.setenv("OTHER", "value")
    show = "import os, sys; sys.stderr.write(repr([os.environ.get(n) for n in ('OPENAI_API_KEY', 'A', 'B', 'C')]))"
    env = {"A": "is ${OTHER}", "B": "$OTHER", "C": "${MISSING}"}
    connection: dict[str, object] = {
        "transport": "stdio",
        "command": sys.executable,
        "args": ["-c", show],
        "env": env,
    }
    message = "failed: it ended; it said: [None, 'is value', '$OTHER', '${MISSING}']"
    assert asked(connection) == failure(ToolErrorCode.UNAVAILABLE, message)


@pytest.mark.parametrize(
    ("connection", "reason"),
    [
        ({}, "its transport has to be one of stdio, http, streamable_http, streamable-http, sse, websocket"),
        ({"transport": "smoke"}, "its transport has to be one of stdio, http,"),
        ({"transport": "http"}, "it has no url"),
        ({"transport": "stdio", "args": []}, "command: Field required"),
        ({"transport": "stdio", "command": "a", "args": "b"}, "args: Input should be a valid list"),
    ],
)
def test_a_connection_that_is_none_is_refused(connection: dict[str, object], reason: str) -> None:
    found = asked(connection)
    assert found.code is ToolErrorCode.INVALID_ARGUMENT
    assert found.message.startswith(f"The connection of the MCP server 'double' cannot be used: {reason}")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_mcp_adapters.sessions", None)
    message = "MCP tools need packages that are not installed: pip install 'mendgraph[mcp]'"
    assert asked({}) == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


# --- Over HTTP


def test_a_server_over_http_is_asked() -> None:
    with http_server() as url:
        assert asked({"transport": "http", "url": url}) == '{"a": 1}'


def test_a_caller_that_gives_up_does_not_wait_for_a_server_over_http() -> None:
    async def give_up(url: str) -> None:
        await asyncio.wait_for(McpServer("double", {"transport": "http", "url": url}).ask(echo, 60), 0.5)

    with http_server("hang") as url:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            asyncio.run(give_up(url))
        assert time.monotonic() - begun < 5


def test_garbage_over_http_is_a_typed_error() -> None:
    with http_server("garbage") as url:
        found = asked({"transport": "http", "url": url}, timeout_s=0.5)
    assert found == failure(ToolErrorCode.TIMEOUT, "did not answer within 0.5 s, and was given up.")


def test_a_server_that_nobody_runs_is_unavailable() -> None:
    with http_server() as url:
        pass
    found = asked({"transport": "http", "url": url}, timeout_s=5)
    assert found == failure(ToolErrorCode.UNAVAILABLE, "cannot be reached: All connection attempts failed")


def test_who_is_cancelled_while_a_server_starts_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, given_up, started, real = threading.Event(), threading.Event(), threading.Event(), mcp_sessions._start

    def start(parameters: Any) -> Any:
        begun.set()
        given_up.wait(20)
        process = real(parameters)
        while not (tmp_path / "pids").exists():
            time.sleep(0.01)
        started.set()
        return process

    async def cancel() -> None:
        asking = asyncio.ensure_future(McpServer("double", program(tmp_path)).ask(echo, 20))
        await asyncio.to_thread(begun.wait)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()

    monkeypatch.setattr(mcp_sessions, "_start", start)
    asyncio.run(cancel())
    given_up.set()
    assert started.wait(20)
    assert running(tmp_path) == []
