import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.mcp_servers.limits import END_S, MOST_LISTED, MOST_PAGES
from mendgraph.nodes.execute_tools.mcp_tools import LONGEST_ERROR, call_result, load_mcp_tools, load_mcp_tools_sync
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tool_attempt import SELF_TIMED_GRACE_S, await_tool, call_tool
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult, ToolSpec
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.doubles.mcp_servers import ECHO, http_server, program, running_processes
from tests.extent import slow
from tests.row_tables import rows

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


server.run()
"""
KEY = "ghp_" + "a8F3kLq9ZxT2vB7nM4cR6wY1pD5sH0jG2uE8"
ECHOED = '{"name": "echo", "arguments": {"a": 1}}'


@pytest.fixture(autouse=True)
def no_leaked_handles_or_threads() -> Iterator[None]:
    """Fail a test that leaves handles or threads; an abandoned thread has 20 s to end."""
    handles, threads = len(os.listdir("/dev/fd")), threading.active_count()
    yield
    deadline = time.monotonic() + 20
    while has_more_than(handles, threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not has_more_than(handles, threads)


def has_more_than(handles: int, threads: int) -> bool:
    """Whether more are open or run than before; those of earlier tests may have ended."""
    return len(os.listdir("/dev/fd")) > handles or threading.active_count() > threads


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(Workspace(str(tmp_path), lambda *_: None), timeout_s=20)


def loaded(connections: dict[str, dict[str, object]], **options: Any) -> tuple[Tool, ...]:
    tools = load_mcp_tools_sync(connections, **options)
    assert not isinstance(tools, ToolError), tools.message
    return tools


def invalid(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def called(tool: Tool, context: ToolContext) -> Any:
    """The text that a tool answers, or its error."""
    output = tool.s(context, a=1)
    return output.result.error or output.result.data["text"]


@slow
def test_tools_of_a_real_server_become_tools(tmp_path: Path, context: ToolContext) -> None:
    (tmp_path / "calc.py").write_text(REAL, encoding="utf-8")
    args = [str(tmp_path / "calc.py")]
    add, show = loaded({"calc": {"transport": "stdio", "command": sys.executable, "args": args}})
    properties = {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}}
    parameters = {"type": "object", "properties": properties, "required": ["a"]}
    assert add.spec == ToolSpec(
        name="calc__add", description="Add two numbers.", parameters=parameters, effect=Effect.EXECUTE
    )
    assert (add.asynchronous, add.self_timed, add.remote, add.cacheable) == (True, True, True, False)

    async def call_both() -> list[Any]:
        return list(await asyncio.gather(add.a(context, a="x"), show.a(context)))

    mistaken, answered = asyncio.run(call_both())
    assert mistaken.result.error.message.startswith("calc__add failed: Error executing tool add: 1 validation error")
    image = {"type": "image", "mimeType": "image/png", "bytes": 5}
    assert answered.result.data == {"text": "shown", "attachments": [image]}
    assert answered.blocks == ({"type": "image", "base64": "MTIzNDU=", "mime_type": "image/png"},)


RESOURCES = """
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    method, parameters = request.get("method"), request.get("params") or {}
    if method == "initialize":
        info = {"name": "notes", "version": "1"}
        answer = {"protocolVersion": "2025-06-18", "capabilities": {"resources": {}}, "serverInfo": info}
    elif method == "tools/list":
        answer = {"tools": []}
    elif method == "resources/list":
        answer = {"resources": [{"uri": "note://first", "name": "first"}]}
    elif method == "resources/templates/list":
        answer = {"resourceTemplates": [{"uriTemplate": "note://{name}", "name": "template"}]}
    elif parameters.get("uri") == "note://first":
        answer = {"contents": [{"uri": "note://first", "mimeType": "text/plain", "text": "Remember the milk."}]}
    else:
        answer = None
    body = {"result": answer} if answer else {"error": {"code": -32002, "message": f"Unknown: {parameters.get('uri')}"}}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}), flush=True)
"""


def test_resources_are_read_by_a_tool_that_names_them(tmp_path: Path, context: ToolContext) -> None:
    (tmp_path / "notes.py").write_text(RESOURCES, encoding="utf-8")
    args = ["-S", "-E", str(tmp_path / "notes.py")]
    [read] = loaded({"notes": {"transport": "stdio", "command": sys.executable, "args": args}})
    assert (read.name, read.effect) == ("notes__resources_read", Effect.EXECUTE)
    assert read.description == "Read a resource. There are: note://first"

    [attachment] = read.s(context, uri="note://first").result.data["attachments"]
    assert attachment["text"] == "Remember the milk."
    assert read.s(context, uri="x").result.error.message == "notes__resources_read failed: uri is not a URI"
    assert "note:" in read.s(context, uri="note:").result.error.message


def test_http_server_provides_tools_too(context: ToolContext) -> None:
    with http_server() as url:
        [echo] = loaded({"web": {"transport": "http", "url": url}})
        assert called(echo, context) == '{"a": 1}'
    gone = "The MCP server 'web' failed: All connection attempts failed"
    assert called(echo, context) == ToolError(code=ToolErrorCode.UNAVAILABLE, message=gone)


def test_effects_are_those_that_the_user_declares(tmp_path: Path) -> None:
    two = {"a": program(tmp_path, "", ECHO, {**ECHO, "name": "other"})}
    tools = loaded(two, effects={"a": Effect.READ, "a__other": Effect.NETWORK})
    assert {tool.name: tool.effect for tool in tools} == {"a__echo": Effect.READ, "a__other": Effect.NETWORK}

    unknown = "The effects name 'xyz', which is not an MCP tool or server. There are: a, a__echo, a__other."
    assert load_mcp_tools_sync(two, effects={"xyz": Effect.READ}) == invalid(unknown)
    wrong: Any = {"a": "read"}
    refused = "The effect of 'a' must be an Effect, such as Effect.READ."
    assert load_mcp_tools_sync(two, effects=wrong) == invalid(refused)


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {**ECHO, "name": name, **fields}


@slow
def test_names_and_descriptions_are_made_valid_and_bounded(tmp_path: Path) -> None:
    tools = [
        named("read/file", description="a\u202eb \x1b " + "x" * 100_000),
        named("é" * 99, description=None, title="Says\nnothing"),
        {"name": "bare", "inputSchema": {}},
    ]
    loaded_tools = loaded({"my server": program(tmp_path, "", *tools)})
    assert [(tool.name, tool.description) for tool in loaded_tools] == [
        ("my_server__read_file", "a\\u202eb \\x1b " + "x" * (1_024 - 17) + "..."),
        (f"my_server__{'_' * 53}", "Says nothing"),
        ("my_server__bare", "A tool of the MCP server 'my server'."),
    ]
    same = load_mcp_tools_sync({"s": program(tmp_path, "", named("a.b"), named("a/b"))})
    assert same == invalid("Two MCP tools would both be called 's__a_b'. Rename a server.")


HOSTILE = [
    ({"properties": {"a": {"maximum": 2**70}}}, "a schema that cannot be used: Integer exceeds 64-bit range"),
    ({"type": "string"}, "a schema that cannot be used: its type has to be 'object'"),
    ({"properties": {"a\nb": {}}}, "a schema that cannot be used: it has the unreadable name 'a b'"),
]


def test_hostile_schema_makes_only_its_own_tool_unavailable(tmp_path: Path) -> None:
    tools = [named(f"t{at}", inputSchema=schema) for at, (schema, _) in enumerate(HOSTILE)]
    *refused, other = loaded({"s": program(tmp_path, "", *tools, named("u"))})
    assert other.description == "Echoes."
    for at, (tool, (_, reason)) in enumerate(zip(refused, HOSTILE, strict=True)):
        assert tool.description.startswith(f"Not available. The tool 's__t{at}' has {reason}")
        answer = tool.run(None, None)  # type: ignore[arg-type] # which it does not look at
        assert (answer.code, f"Not available. {answer.message}") == (ToolErrorCode.UNAVAILABLE, tool.description)


def test_deeply_nested_schema_allows_anything_below_a_bound(tmp_path: Path) -> None:
    schema: JsonMap = {"type": "object"}
    for _ in range(20):  # two levels of JSON each
        schema = {"type": "object", "properties": {"a": schema}}
    [tool] = loaded({"s": program(tmp_path, "", named("t", inputSchema=schema))})
    parameters = str(tool.spec.parameters)
    assert (tool.description, parameters.count("'a'")) == ("Echoes.", 16)


def test_endless_list_of_tools_is_refused(tmp_path: Path) -> None:
    outcome = load_mcp_tools_sync({"s": program(tmp_path, "endless", *[named(f"t{n}") for n in range(100)])})
    assert outcome == invalid(f"The MCP server 's' lists more than {MOST_LISTED} tools, so it is not used.")
    message = f"The MCP server 's' failed: its list of tools has more than {MOST_PAGES} pages"
    outcome = load_mcp_tools_sync({"s": program(tmp_path, "empty pages")})
    assert outcome == ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def test_sync_loading_inside_an_event_loop_says_what_to_await() -> None:
    async def inside() -> object:
        return load_mcp_tools_sync({})

    message = "An event loop is running here: use `await load_mcp_tools(...)` instead of load_mcp_tools_sync."
    assert asyncio.run(inside()) == invalid(message)
    assert asyncio.run(load_mcp_tools({})) == ()


# --- Conversations


def test_server_that_writes_extra_output_is_called_and_ended(
    tmp_path: Path, context: ToolContext, capfd: pytest.CaptureFixture[str]
) -> None:
    [echo] = loaded({"s": program(tmp_path, "banner chatty")})
    assert called(echo, context) == ECHOED
    assert (running_processes(tmp_path), capfd.readouterr().err) == ([], "")


def test_server_that_ends_at_once_is_unavailable(tmp_path: Path) -> None:
    outcome = load_mcp_tools_sync({"good": program(tmp_path), "bad": program(tmp_path, "dead")})
    message = "The MCP server 'bad' failed: it ended; it said: a line for people \\x1b[31m"
    assert outcome == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
    assert running_processes(tmp_path) == []


@rows((f"bad token {KEY}", "bad token ***"), ("a" * 100 + "b" * 499, "b" * 499))
def test_last_output_of_a_server_is_shown_redacted_and_bounded(output: str, quoted: str) -> None:
    code = f"import sys; print({output!r}, file=sys.stderr)"
    outcome = load_mcp_tools_sync({"s": {"transport": "stdio", "command": sys.executable, "args": ["-c", code]}})
    message = f"The MCP server 's' failed: it ended; it said: {quoted}"
    assert outcome == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


@slow
def test_engine_waits_until_a_hanging_server_is_gone(tmp_path: Path, context: ToolContext) -> None:
    assert SELF_TIMED_GRACE_S > END_S
    [echo] = loaded({"s": program(tmp_path, "hang")})
    message = "The MCP server 's' did not answer within 0.5 s, and was ended."
    late = ToolOutput.failed(ToolError(code=ToolErrorCode.TIMEOUT, message=message))
    timed = replace(context, seconds_left=0.5)
    assert call_tool(echo, timed, {"a": 1}, 0.5) == late
    assert asyncio.run(await_tool(echo, timed, {"a": 1}, 0.5)) == late
    assert running_processes(tmp_path) == []


@slow
def test_server_that_timed_out_may_clean_up(tmp_path: Path, context: ToolContext) -> None:
    [echo] = loaded({"s": program(tmp_path, "hang tidy")})
    called(echo, replace(context, timeout_s=0.5))
    assert (tmp_path / "pids.tidied").exists()


@slow
def test_cancelled_call_leaves_no_server_running(tmp_path: Path, context: ToolContext) -> None:
    [echo] = loaded({"s": program(tmp_path, "hang")})

    async def give_up() -> None:
        await asyncio.wait_for(echo.a(context, a=1), 0.5)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert running_processes(tmp_path) == []


def test_server_gets_only_the_variables_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    monkeypatch.setenv("OTHER", "value")
    show = "import os, sys; sys.stderr.write(repr([os.environ.get(n) for n in ('OPENAI_API_KEY', 'A', 'B', 'C')]))"
    env = {"A": "is ${OTHER}", "B": "$OTHER", "C": "${MISSING}"}
    args = ["-c", show]
    outcome = load_mcp_tools_sync({"s": {"transport": "stdio", "command": sys.executable, "args": args, "env": env}})
    assert isinstance(outcome, ToolError)
    assert outcome.message.endswith("it said: [None, 'is value', '$OTHER', '${MISSING}']")


@rows(
    ({"transport": "http"}, "it has neither a url nor the transport 'stdio'"),
    ({"transport": "stdio", "args": []}, "command: Field required"),
)
def test_connection_without_a_url_or_a_command_is_refused(connection: dict[str, object], reason: str) -> None:
    message = f"The connection of the MCP server 's' cannot be used: {reason}"
    assert load_mcp_tools_sync({"s": connection}) == invalid(message)


def test_missing_extra_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_mcp_adapters.sessions", None)
    message = f"MCP tools need {how_to_add('mcp')}."
    assert load_mcp_tools_sync({"s": {}}) == ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


# --- Answers


def text(content: str) -> JsonMap:
    return {"type": "text", "text": content}


PNG = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}
SAID = {"type": "image", "mimeType": "image/png"}
MP3 = {"type": "audio", "mimeType": "audio/mpeg", "data": "SUQz"}
FILE = {"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/plain", "text": "é"}}


UTF = {"type": "resource", "mimeType": "text/plain", "uri": "a:b", "text": "é"}


@rows(
    ({"content": [text("a"), text("b\u202e")]}, {"text": "a\nb\u202e"}),
    ({}, {"text": ""}),
    ({"content": [text("See b.")], "structuredContent": {"a": 1}}, {"text": "See b."}),
    ({"content": [], "structuredContent": {"a": 1}}, {"structured": {"a": 1}}),
    ({"content": [FILE, text("a")]}, {"text": "a", "attachments": [UTF]}),
)
def test_result_content_becomes_data(answer: JsonMap, data: JsonMap) -> None:
    assert call_result("s__t", answer) == ToolOutput(ToolResult(ok=True, data=data))


@rows(
    ([text("no such\nfile \x1b")], "s__t failed: no such file \\x1b"),
    ([{"type": "image"}], "s__t failed: it gave no reason"),
    ([text("x" * 1_000_000)], f"s__t failed: {'x' * (LONGEST_ERROR - 3)}..."),
)
def test_error_is_bounded_and_escaped(content: list[Any], message: str) -> None:
    error = ToolError(code=ToolErrorCode.IO_ERROR, message=message)
    assert call_result("s__t", {"content": content, "isError": True}) == ToolOutput.failed(error)


BLOB = {"type": "resource", "resource": {"uri": "a:b", "mimeType": "image/png", "blob": "AAAA"}}
TIFF, LARGE = {**PNG, "mimeType": "image/tiff"}, {**PNG, "data": "AAAA" * 2_000_000}


@rows(
    (PNG, {**SAID, "bytes": 8}, ("image", "image/png")),
    (MP3, {"type": "audio", "mimeType": "audio/mpeg", "bytes": 3}, ("audio", "audio/mp3")),
    (BLOB, {"type": "resource", "mimeType": "image/png", "uri": "a:b", "bytes": 3}, ("image", "image/png")),
    (TIFF, {**SAID, "mimeType": "image/tiff", "bytes": 8, "left_out": "models do not accept data of this type"}, None),
    ({**PNG, "data": "?"}, {**SAID, "left_out": "its data is not Base64"}, None),
    (LARGE, {**SAID, "bytes": 6_000_000, "left_out": "it has more than 5,242,880 bytes"}, None),
)
def test_images_and_audio_become_blocks_and_others_are_described(
    block: JsonMap, attachment: JsonMap, kind: tuple[str, str] | None
) -> None:
    output = call_result("s__t", {"content": [block]})
    assert output.result.data == {"text": "", "attachments": [attachment]}
    assert [(content_block["type"], content_block["mime_type"]) for content_block in output.blocks or ()] == (
        [kind] if kind else []
    )
