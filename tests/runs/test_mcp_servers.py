"""MCP servers in runs: one process for a session, and files of theirs that no run changes."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.runs.run import RunResult, Session, arun_task, run_task
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
from mendgraph.nodes.execute_tools.mcp_tools import load_mcp_tools_sync
from mendgraph.nodes.execute_tools.processes.backends import choose_sandbox
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.guard.approvals import Action
from mendgraph.nodes.records import JsonMap, Protocol, ToolError
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.nodes.execute_tools.mcp_doubles import ECHO, PROGRAM, running

CALL: tuple[str, JsonMap] = ("s__echo", {"a": 1})
EVIL = "open('evil', 'w').close()\n"


def write_server(root: Path, behaviour: str) -> None:
    arguments = [str(root.parent / "pids"), json.dumps([ECHO]), behaviour]
    text = f"import sys\nsys.argv[1:] = {arguments!r}\n{PROGRAM}"
    (root / "tools" / "server.py").write_text(text, encoding="utf-8")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "root"
    (root / "tools").mkdir(parents=True)
    write_server(root, "")
    (root / "link").symlink_to("tools/server.py")
    return root


def load(workspace: Path) -> tuple[Tool, ...]:
    connection = {"transport": "stdio", "command": sys.executable, "args": ["tools/server.py"]}
    tools = load_mcp_tools_sync({"s": connection}, workspace=str(workspace))
    assert not isinstance(tools, ToolError), tools.message
    return (*default_tools(), *tools)


def context_of(workspace: Path, **more: Any) -> AgentContext:
    return AgentContext(workspace=str(workspace), evidence=False, read_ahead=False, **more)


def scripted(*calls: tuple[str, JsonMap]) -> ScriptedModel:
    return ScriptedModel([message_of(use(call), Protocol.NATIVE) for call in calls])


def results(result: RunResult) -> list[JsonMap]:
    return [json.loads(str(message.content)) for message in result.messages if message.type == "tool"]


def starts(workspace: Path) -> int:
    """How often the server was started, once of which was to list its tools."""
    return len((workspace.parent / "pids").read_text(encoding="utf-8").split())


def test_session_starts_a_server_once_and_ends_it(workspace: Path) -> None:
    with Session(context_of(workspace), model=scripted(CALL, CALL), tools=load(workspace)) as session:
        session.work("Call it.")
        session.work("Call it again.")
        assert [each["ok"] for each in results(session.result())] == [True, True]
        assert starts(workspace) == 2
    assert running(workspace.parent) == []


def test_async_run_ends_its_server(workspace: Path) -> None:
    options: Any = {"model": scripted(CALL, CALL), "tools": load(workspace)}
    result = asyncio.run(arun_task("Call it.", context_of(workspace), **options))
    assert [each["ok"] for each in results(result)] == [True, True]
    assert starts(workspace) == 2
    assert running(workspace.parent) == []


def test_cancelled_run_ends_its_server(workspace: Path) -> None:
    write_server(workspace, "hang")
    options: Any = {"model": scripted(CALL), "tools": load(workspace)}

    def wait_for_start() -> None:
        while starts(workspace) < 2:
            time.sleep(0.01)

    async def cancel() -> None:
        task = asyncio.ensure_future(arun_task("Call it.", context_of(workspace), **options))
        await asyncio.to_thread(wait_for_start)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert running(workspace.parent) == []


def test_failed_session_ends_its_server(workspace: Path) -> None:
    def fail() -> None:
        with Session(context_of(workspace), model=scripted(CALL), tools=load(workspace)) as session:
            session.work("Call it.")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert starts(workspace) == 2
    assert running(workspace.parent) == []


def test_graph_without_a_session_ends_a_server_with_its_turn(workspace: Path) -> None:
    graph = build_graph(model=scripted(CALL, CALL), tools=load(workspace))
    graph.invoke({"messages": [HumanMessage("Call it.")]}, context=context_of(workspace))
    assert starts(workspace) == 2
    assert running(workspace.parent) == []


@pytest.mark.parametrize(("mode", "action"), [("auto", None), ("ask", "approve"), ("ask", "approve_for_run")])
@pytest.mark.parametrize(
    "call",
    [
        ("edit_file", {"path": "tools/server.py", "old_str": "import json", "new_str": f"{EVIL}import json"}),
        ("write_file", {"path": "tools/../TOOLS/server.py", "content": EVIL}),
        ("write_file", {"path": "link", "content": EVIL}),
        ("apply_patch", {"patch": "*** Begin Patch\n*** Delete File: tools/server.py\n*** End Patch"}),
    ],
)
def test_file_that_a_server_executes_cannot_be_changed(
    workspace: Path, mode: str, action: Action | None, call: tuple[str, JsonMap]
) -> None:
    before = (workspace / "tools" / "server.py").read_bytes()
    asked: list[Any] = []

    def approve(request: Any) -> Action:
        asked.append([each["tool"] for each in request["calls"]])
        return action or "reject"

    read = ("read_file", {"path": "tools/server.py"})
    options: Any = {"model": scripted(read, call, CALL), "tools": load(workspace), "approve": approve}
    result = run_task("Change tools/server.py.", context_of(workspace, mode=mode), **options)
    answers = results(result)
    assert answers[0]["ok"]
    assert answers[1]["error"]["code"] == "permission_denied"
    if "TOOLS" not in str(call[1].get("path")):
        assert "executes outside of the sandbox" in answers[1]["error"]["message"]
    assert answers[2]["ok"]
    assert (workspace / "tools" / "server.py").read_bytes() == before
    assert ["s__echo"] in asked or mode == "auto"
    assert [call[0]] not in asked or call[1].get("path") == "link"  # where a link leads is found out by the tool


@pytest.mark.skipif(isinstance(choose_sandbox(), ToolError), reason="no sandbox starts")
@pytest.mark.parametrize(
    "script",
    [
        "echo evil > tools/server.py",
        "rm tools/server.py",
        "mv tools/server.py tools/other.py",
        "ln tools/server.py other.py && echo evil > other.py",
        "cp /etc/passwd new && mv new tools/server.py",
        "chmod 777 tools/server.py",
        "mv tools other",
    ],
)
def test_program_cannot_change_a_file_that_a_server_executes(workspace: Path, script: str) -> None:
    before = (workspace / "tools" / "server.py").read_bytes()
    calls = (("run_command", {"argv": ["sh", "-c", f"cat tools/server.py >/dev/null && {script}"]}), CALL)
    options: Any = {"model": scripted(*calls), "tools": load(workspace)}
    result = run_task("Run it.", context_of(workspace, allowed_programs=("sh",)), **options)
    ran, called = results(result)
    assert ran["data"]["exit_code"] != 0
    assert called["ok"]
    assert (workspace / "tools" / "server.py").read_bytes() == before


def test_session_without_mcp_tools_starts_no_thread(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: McpServers) -> None:
        raise AssertionError("a loop was started")

    monkeypatch.setattr(McpServers, "_running_loop", fail)
    result = run_task("Read.", context_of(workspace), model=scripted(("read_file", {"path": "link"}), ("x", {})))
    assert results(result)[0]["ok"]
