"""MCP servers in runs: one process for a session, whose files no run can change."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mendgraph import AgentContext, ToolError, arun_task, build_graph, default_tools, load_mcp_tools_sync
from tests.doubles.mcp_servers import ECHO, PROGRAM, running_processes
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.sandboxes import needs_sandbox
from tests.surfaces.runs.tool_play import play, scripted_model, session
from tests.vocabulary import Protocol

CALL: tuple[str, dict[str, Any]] = ("s__echo", {"a": 1})
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


def load(workspace: Path) -> tuple[Any, ...]:
    connection = {"transport": "stdio", "command": sys.executable, "args": ["tools/server.py"]}
    tools = load_mcp_tools_sync({"s": connection}, workspace=str(workspace))
    assert not isinstance(tools, ToolError), tools.message
    return tools


def options(workspace: Path, *calls: tuple[str, dict[str, Any]]) -> tuple[AgentContext, dict[str, Any]]:
    context = AgentContext(workspace=str(workspace), evidence=False, read_ahead=False)
    return context, {"model": model_with_calls(*calls), "tools": (*default_tools(), *load(workspace))}


def model_with_calls(*calls: tuple[str, dict[str, Any]]) -> ScriptedModel:
    return scripted_model(Protocol.NATIVE, *(use(call) for call in calls))


def starts(workspace: Path) -> int:
    """How often the server was started, including once to list its tools."""
    return len((workspace.parent / "pids").read_text(encoding="utf-8").split())


def test_session_starts_a_server_once_and_stops_it(workspace: Path) -> None:
    """It also stops if the program raises in between."""

    def work() -> None:
        with session(workspace, model_with_calls(CALL, CALL), tools=load(workspace)) as opened:
            opened.work("Call it.")
            opened.work("Call it again.")
            call_results = [json.loads(message.text) for message in opened.result().messages if message.type == "tool"]
            assert [result["ok"] for result in call_results] == [True, True]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert starts(workspace) == 2
    assert running_processes(workspace.parent) == []


def test_graph_without_a_session_stops_a_server_after_its_turn(workspace: Path) -> None:
    context, options_of_graph = options(workspace, CALL, CALL)
    build_graph(**options_of_graph).invoke({"messages": [HumanMessage("Call it.")]}, context=context)
    assert starts(workspace) == 2
    assert running_processes(workspace.parent) == []


@slow
def test_cancelled_run_stops_its_server(workspace: Path) -> None:
    write_server(workspace, "hang")
    context, options_of_run = options(workspace, CALL)

    def wait_for_start() -> None:
        while starts(workspace) < 2:
            time.sleep(0.01)

    async def cancel() -> None:
        task = asyncio.ensure_future(arun_task("Call it.", context, **options_of_run))
        await asyncio.to_thread(wait_for_start)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert running_processes(workspace.parent) == []


CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("edit_file", {"path": "tools/server.py", "old_str": "import json", "new_str": f"{EVIL}import json"}),
    ("write_file", {"path": "tools/../TOOLS/server.py", "content": EVIL}),
    ("write_file", {"path": "link", "content": EVIL}),
    ("apply_patch", {"patch": "*** Begin Patch\n*** Delete File: tools/server.py\n*** End Patch"}),
)


@pytest.mark.parametrize(("mode", "action"), [("auto", "reject"), ("ask", "approve"), ("ask", "approve_for_run")])
def test_file_that_a_server_executes_cannot_be_changed(workspace: Path, mode: str, action: str) -> None:
    before = (workspace / "tools" / "server.py").read_bytes()
    requests: list[str] = []
    calls = (("read_file", {"path": "tools/server.py"}), *CHANGES, CALL)
    tools = load(workspace)
    with session(workspace, model_with_calls(*calls), tools=tools, mode=mode, offer="all") as opened:
        event: Any = opened.work("Change tools/server.py.")
        while hasattr(event, "request"):
            requests += [f"{call['tool']} {call['path']}" for call in event.request["calls"]]
            event = opened.work_on(action)
        read, *changes, called = [json.loads(m.text) for m in opened.result().messages if m.type == "tool"]
    assert (read["ok"], called["ok"]) == (True, True)
    assert [result["error"]["code"] for result in changes] == ["permission_denied"] * len(CHANGES)
    assert "an MCP server or a hook of this run executes" in changes[0]["error"]["message"]
    assert (workspace / "tools" / "server.py").read_bytes() == before
    # The tool resolves the link, so there may be an approval request before.
    assert {name for name in requests if not name.startswith("s__echo")} <= {
        "write_file link",
        "write_file tools/server.py",
    }
    assert any(name.startswith("s__echo") for name in requests) is (mode == "ask")


SCRIPTS = (
    "echo evil > tools/server.py",
    "rm tools/server.py",
    "mv tools/server.py tools/other.py",
    "ln tools/server.py other.py && echo evil > other.py",
    "cp /etc/passwd new && mv new tools/server.py",
    "chmod 777 tools/server.py",
    "mv tools other",
)


@slow
@needs_sandbox
def test_program_cannot_change_a_file_that_a_server_executes(workspace: Path) -> None:
    before = (workspace / "tools" / "server.py").read_bytes()
    commands = [
        ("run_command", {"argv": ["sh", "-c", f"cat tools/server.py >/dev/null && {script}"]}) for script in SCRIPTS
    ]
    run = play(workspace, model=model_with_calls(*commands, CALL), tools=load(workspace), allowed_programs=("sh",))
    *executed, called = run.results
    assert [result["data"]["exit_code"] != 0 for result in executed] == [True] * len(SCRIPTS)
    assert called["ok"]
    assert (workspace / "tools" / "server.py").read_bytes() == before
