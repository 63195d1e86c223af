"""The machine as servers run it, without a server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from starlette.exceptions import HTTPException

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.serving.admission import CannotServeError, RunRefusedError, open_admitter
from mendgraph.graph.fleet.serving.agent import ServedMachine, graph, served
from mendgraph.graph.fleet.serving.tenants import Tenant
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.routes import NODES
from mendgraph.graph.machine.serializer import serializer
from tests.doubles.replies import Say
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import use
from tests.sandboxes import needs_sandbox
from tests.scenarios.sample_repair import TASK
from tests.surfaces.serving.memory_locks import admitter
from tests.surfaces.serving.studio import native_server

CONTEXT = AgentContext(account="ann", max_steps=9)
HELLO = {"messages": [("user", "Hello.")]}
ASKED = {"messages": [("user", TASK)]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ann's project."""
    path = tmp_path.resolve() / "ann" / "website"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ServedMachine:
    """The machine as in a server, which sets its own saver."""
    monkeypatch.setenv("OPENAI_API_KEY", "k-1234567890")
    admission = admitter(folder.parent.parent, Tenant("ann", (), CONTEXT, runs_at_once=1))
    return served(build_graph(), lambda: admission).copy({"checkpointer": InMemorySaver()})


def allow(machine: ServedMachine, root: Path, models: tuple[str, ...] = (), **settings: Any) -> None:
    """Let Ann have these settings."""
    context = CONTEXT.model_copy(update={"evidence": False, "read_ahead": False, **settings})
    admission = admitter(root, Tenant("ann", (), context, models))
    machine.admitter = lambda: admission


def config(user: str = "ann") -> Any:
    return {"configurable": {"thread_id": "t1", "langgraph_auth_user": {"identity": user}}}


def run(machine: ServedMachine, request: Any, user: str = "ann", **context: Any) -> Any:
    async def parts() -> Any:
        stream = machine.astream(request, config(user), context=context, stream_mode="values")
        return [part async for part in stream][-1]

    return asyncio.run(parts())


def state_of(machine: ServedMachine) -> Any:
    return asyncio.run(machine.aget_state(config()))


def test_machine_is_served_with_the_saver_of_the_server_and_our_serializer(machine: ServedMachine) -> None:
    assert isinstance(graph, ServedMachine)
    assert graph.checkpointer is None
    assert set(graph.get_graph().nodes) == {"__start__", "__end__", *NODES}
    open_admitter.cache_clear()
    with pytest.raises(CannotServeError):
        graph.admitter()
    assert isinstance(machine.checkpointer, InMemorySaver)
    assert type(machine.checkpointer.serde) is type(serializer())
    assert machine.copy().checkpointer is machine.checkpointer


def test_turn_runs_with_what_its_user_may(machine: ServedMachine, folder: Path, tmp_path: Path) -> None:
    with ScriptedServer([Say("Hello, Ann.")]) as model:
        allow(machine, tmp_path, ("m",), base_url=model.base_url)
        ended = run(machine, HELLO, workspace="website", model="m", max_steps=50)
    assert ended["outcome"].answer == "Hello, Ann."
    values = state_of(machine).values
    assert (values["context"].workspace, values["context"].max_steps) == (str(folder), 9)
    assert values["run_id"] == "ann/t1"


@needs_sandbox
def test_tenant_cannot_approve_a_program_that_the_server_does_not_allow(
    machine: ServedMachine, folder: Path, tmp_path: Path
) -> None:
    (folder / "note.txt").write_text("remember", encoding="utf-8")
    calls = [use(("run_command", {"argv": argv})) for argv in (["cat", "note.txt"], ["ls"])]
    with native_server(*calls, Say("Done.")) as model:
        allow(machine, tmp_path, base_url=model.base_url, model="m", allowed_programs=("ls",))
        run(machine, ASKED, workspace="website", mode="ask")
        question = state_of(machine).interrupts[0].value
        assert [call["arguments"]["argv"] for call in question["calls"]] == [["ls"]]
        ended = run(machine, Command(resume="approve"))
    refused, listed = [str(message.content) for message in ended["messages"] if message.type == "tool"]
    assert "'cat' may not be run: allowed are ls." in refused
    assert "note.txt" in listed


def test_tenant_cannot_raise_a_limit_of_the_operator(machine: ServedMachine, folder: Path, tmp_path: Path) -> None:
    reading = use(("read_file", {"path": "note.txt"}))
    (folder / "note.txt").write_text("remember", encoding="utf-8")
    with native_server(reading) as model:
        allow(machine, tmp_path, base_url=model.base_url, model="m", on_limit="ask", max_calls_per_turn=1)
        ended = run(machine, ASKED, workspace="website", on_limit="ask")
    assert not state_of(machine).interrupts
    assert ended["outcome"].reason == "max_calls_per_turn"


@pytest.mark.parametrize(
    ("user", "context", "words"),
    [
        ("bob", {"workspace": "website"}, "The request names no known user"),
        ("ann", {}, "names no project"),
        ("ann", {"workspace": "website", "mode": "all"}, "does not fit: mode"),
    ],
)
def test_refused_turn_ends_at_once(
    machine: ServedMachine, user: str, context: dict[str, Any], words: str, folder: Path
) -> None:
    ended = run(machine, HELLO, user, **context)
    assert (ended["outcome"].kind, ended["outcome"].reason) == ("SYSTEM_ERROR", "invalid_request")
    assert words in ended["outcome"].message
    assert list(folder.iterdir()) == []


def test_user_without_a_free_slot_is_refused(machine: ServedMachine) -> None:
    locks = machine.admitter().locks
    assert locks.take("run 0 of ann")
    ended = run(machine, HELLO, workspace="website")
    assert (ended["outcome"].kind, ended["outcome"].reason) == ("SYSTEM_ERROR", "workspace_busy")
    with pytest.raises(RunRefusedError, match="ann has 1 run working on these servers"):
        run(machine, None)


def test_refused_continuation_leaves_no_trace(machine: ServedMachine, subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, str, str]] = [
        (None, "ann", "There is nothing to continue"),
        ({}, "ann", "There is nothing to continue"),
        (Command(resume="approve"), "bob", "The request names no known user"),
        (None, "bob", "The request names no known user"),
        (Command(update={"context": {}}), "ann", "Only its runs may write"),
        (Command(goto="execute_tools"), "ann", "Only its runs may write"),
    ]
    for request, user, words in rows:
        with subtests.test(request=request, user=user), pytest.raises(RunRefusedError, match=words):
            run(machine, request, user)
    assert machine.admitter().locks.take("thread t1")
    for request in (HELLO, None):
        with pytest.raises(RunRefusedError, match="Another run of this thread is working"):
            run(machine, request, workspace="website")
    machine.admitter().locks.release("thread t1")
    assert state_of(machine).values == {}


def test_turn_interrupted_before_it_began_starts_when_resumed(machine: ServedMachine, folder: Path) -> None:
    async def cut_off() -> None:
        parts = machine.astream(HELLO, config(), context={"workspace": "website"}, interrupt_before=["begin_turn"])
        assert [part async for part in parts] == [{"__interrupt__": ()}]

    asyncio.run(cut_off())
    ended = run(machine, None, workspace="website", max_steps=0)
    assert "does not fit: max_steps" in ended["outcome"].message
    asyncio.run(cut_off())
    ended = run(machine, {})
    assert "names no project" in ended["outcome"].message
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("write", [ServedMachine.aupdate_state, ServedMachine.abulk_update_state])
def test_thread_can_be_written_only_by_its_runs(machine: ServedMachine, write: Callable[..., Any]) -> None:
    with pytest.raises(HTTPException) as refused:
        asyncio.run(write(machine, config(), {"context": AgentContext()}, as_node="begin_turn"))
    assert refused.value.status_code == 403
    for other in (machine.update_state, machine.bulk_update_state):
        with pytest.raises(HTTPException):
            other(config(), {"context": AgentContext()})
    with pytest.raises(RunRefusedError, match="run by `astream` alone"):
        machine.invoke(HELLO, config())
