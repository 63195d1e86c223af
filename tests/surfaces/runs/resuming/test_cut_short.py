"""Runs that are interrupted or cancelled, or that lose their workspace."""

import asyncio
import shutil
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import (
    AgentContext,
    Effect,
    ToolContext,
    ToolOutput,
    arun_task,
    build_graph,
    default_tools,
    run_task,
    serializer,
    tool,
)
from tests.doubles.history import history_problems
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.sandboxes import set_sandbox_problem
from tests.surfaces.runs.tool_play import DONE, PROTOCOLS, play, reads, scripted_model
from tests.vocabulary import Protocol
from tests.workspace_files import write_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "root", {"a.py": "a = 1\n"})
    return tmp_path / "root"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unanswered_step_does_not_get_the_results_of_the_previous_one(root: Path, protocol: Protocol) -> None:
    model = scripted_model(protocol, reads("a.py"), use(("write_file", {"path": "n.txt", "content": "x"})), DONE)
    machine = build_graph(InMemorySaver(serde=serializer()), model=model)
    thread: Any = {"configurable": {"thread_id": "t"}}
    context = AgentContext(workspace=str(root), mode="ask", protocol=protocol.value, read_ahead=False)
    interrupted = machine.invoke({"messages": [HumanMessage("Do it.")]}, thread, context=context)
    assert interrupted["__interrupt__"]
    anew = machine.invoke({"messages": [HumanMessage("Do something else.")]}, thread, context=context)
    texts = [message.text for message in anew["messages"]]
    assert (len(texts), texts[-2:]) == (7, ["Do something else.", "Done."])
    assert "a = 1" in texts[2]
    assert "cancelled" in texts[4]
    assert "a = 1" not in texts[4]
    assert history_problems(anew["messages"], protocol) == []


BEGUN = threading.Event()


@tool(effect=Effect.WRITE)
def late(context: ToolContext, name: str) -> ToolOutput:
    """Wait, then write."""
    BEGUN.set()
    time.sleep(0.5)
    context.workspace.write_file(name, b"late", expected_sha256="")
    return ToolOutput.ok()


def test_cancelled_run_returns_at_once_and_then_changes_nothing(root: Path) -> None:
    async def cancelled() -> None:
        calls = use(("late", {"name": "late.txt"}), ("write_file", {"path": "second.txt", "content": "x"}))
        options: Any = {"model": scripted_model(Protocol.NATIVE, calls), "tools": (*default_tools(), late)}
        run = asyncio.ensure_future(arun_task("Go.", AgentContext(workspace=str(root)), **options))
        await asyncio.to_thread(BEGUN.wait, 10)
        run.cancel()
        await run

    BEGUN.clear()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    deadline = time.monotonic() + 10
    while any(thread.name == "tool" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path.name for path in root.iterdir()] == ["a.py"]


@pytest.mark.parametrize("with_file", [False, True], ids=["gone", "a file now"])
def test_deleted_workspace_is_a_failure_with_a_reason(root: Path, with_file: bool) -> None:
    class Vanishing(ScriptedModel):
        def __init__(self) -> None:
            super().__init__([message_of(reads("a.py"), Protocol.NATIVE), DONE])

        def complete(self, *arguments: Any) -> Any:
            shutil.rmtree(root, ignore_errors=True)
            if with_file and not root.exists():
                root.write_text("x", encoding="utf-8")
            return super().complete(*arguments)

    outcome = play(root, model=Vanishing()).outcome
    assert (outcome.kind, outcome.reason) == ("SYSTEM_ERROR", "workspace_failed")
    assert str(root) in " ".join((outcome.message, *outcome.diagnostics))


@slow
def test_run_ends_with_any_kind_of_thread_id(root: Path) -> None:
    for thread in (123, uuid4(), True, "a/../b"):
        run = play(root, reads("a.py"), thread_id=thread)
        assert (run.outcome.kind, run.result.thread_id) == ("FINISHED", str(thread))


@tool(effect=Effect.READ)
def sneaky(context: ToolContext) -> ToolOutput:
    """Say that it reads, and write."""
    written = context.workspace.write_file("s.txt", b"x", expected_sha256="")
    changed = context.workspace.change_files([])
    return ToolOutput.ok(
        written=str(written), changed=str(changed), commands=context.commands is None, network=context.network is None
    )


def test_tool_context_allows_no_more_than_the_declared_effect(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sandbox_problem(monkeypatch, None)
    allowed: Any = {"allowed_programs": ("make",), "allowed_hosts": ("example.com",)}
    run = play(root, use(("sneaky", {})), DONE, tools=(sneaky,), **allowed)
    [result] = run.results
    assert str(result).count("may change no file") == 2
    assert (result["data"]["commands"], result["data"]["network"]) == (True, True)
    assert not (root / "s.txt").exists()


def test_limit_for_an_unknown_tool_is_refused(root: Path) -> None:
    for field in ("tool_timeouts_s", "tool_quotas", "tool_calls_per_minute"):
        limit: dict[str, Any] = {field: {"read_fil": 1}}
        outcome = play(root, **limit).outcome
        assert outcome.reason == "invalid_request"
        assert outcome.message == (
            "The context limits an unknown tool, 'read_fil'. Did you mean read_file or read_skill or edit_file?"
        )


KEYS: list[str] = []


@tool(effect=Effect.WRITE)
def charge(context: ToolContext) -> str:
    """Note the key."""
    KEYS.append(context.idempotency_key)
    return "charged"


def test_idempotency_key_is_unique_per_call_and_the_same_for_a_repeated_step(root: Path) -> None:
    KEYS.clear()
    for _ in range(2):
        model, saver = (
            scripted_model(Protocol.NATIVE, use(("charge", {}), ("charge", {}))),
            InMemorySaver(serde=serializer()),
        )
        tools = (*default_tools(), charge)
        run_task("Go.", AgentContext(workspace=str(root)), model=model, tools=tools, thread_id="t", checkpointer=saver)
    first, second, third, fourth = KEYS
    assert (first, second) == (third, fourth)
    assert first != second
    assert len(first) == 64
