"""Tool calls in whole runs: permissions, sync and async runs, and parallel calls."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import (
    AgentContext,
    Effect,
    ToolContext,
    ToolStarted,
    Traced,
    build_graph,
    default_tools,
    serializer,
    tool,
)
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.surfaces.runs.tool_play import DONE, FILES, PROTOCOLS, play, reads, scripted_model
from tests.vocabulary import JsonMap, Protocol
from tests.workspace_files import changed_files, write_files


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, beside the folder with the runs' own files."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", FILES)
    return tmp_path / "root"


# --- Permissions


HARMLESS = """*** Begin Patch
*** Update File: a.py
@@
-a = 1
+a = 2
*** Add File: d.py
+d = 4
*** End Patch"""
DENIED = """*** Begin Patch
*** Update File: a.py
@@
-a = 1
+a = 2
*** Update File: .env
@@
-A=1
+A=2
*** End Patch"""
PATCHES = (
    (DENIED, "env_file"),
    (DENIED.replace(".env", "sub/../.env"), "env_file"),
    (DENIED.replace(".env", "../e.py"), "workspace_boundary"),
    (HARMLESS.replace("Add File: d.py", "Add File: .git/hooks/x"), "git_internal"),
    (HARMLESS.replace("a.py", "a.py\n*** Move to: .env"), "env_file"),
)
CHANGES: tuple[tuple[str, JsonMap], ...] = (
    ("move_file", {"path": "a.py", "target": ".env.local"}),
    ("move_file", {"path": ".env", "target": "d.py"}),
    ("delete_file", {"path": ".env"}),
    ("append_file", {"path": ".env", "content": "B=2\n"}),
    ("multi_edit", {"path": ".env", "edits": [{"old_str": "A=1", "new_str": "A=2"}]}),
)


@slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_patch_with_a_denied_file_changes_nothing(root: Path, protocol: Protocol) -> None:
    for patch, rule in PATCHES:
        run = play(root, use(("apply_patch", {"patch": patch})), DONE, protocol=protocol, edit_form="patch")
        assert (run.rules, run.codes) == ([rule], ["permission_denied"]), patch
        assert changed_files(root, FILES) == {}
    run = play(root, use(("apply_patch", {"patch": HARMLESS})), DONE, protocol=protocol, edit_form="patch")
    assert (run.rules, run.codes) == ([], ["ok"])
    assert changed_files(root, FILES) == {"a.py": "a = 2\n", "d.py": "d = 4\n"}


def test_denied_file_is_denied_to_all_tools_that_change_files(root: Path) -> None:
    run = play(root, use(*CHANGES), DONE, offer="all")
    assert run.rules == ["env_file"] * len(CHANGES)
    assert run.codes == ["permission_denied"] * len(CHANGES)
    assert changed_files(root, FILES) == {}


# --- Sync, async and streamed


@tool(effect=Effect.NONE)
async def think(about: str) -> str:
    """Think about something."""
    await asyncio.sleep(0)
    return f"thought about {about}"


@tool(effect=Effect.NONE)
def stumble() -> str:
    """Fail."""
    raise RuntimeError("No luck.")


@tool(effect=Effect.NONE)
def doubt(number: int) -> str:
    """Call a number wrong."""
    raise ValueError(f"{number} is wrong")


EDIT = {"path": "a.py", "old_str": "a = 1", "new_str": "a = 7"}
WORK = (
    use(("read_file", {"path": "a.py"}), ("read_file", {"path": "a.py"}), ("read_file", {"path": "c.py"})),
    use(("edit_file", EDIT), ("read_file", {"path": "a.py"}), ("read_file", {"path": ".env"}), ("stumble", {})),
    use(("think", {"about": "it"}), ("write_file", {"path": "d/d.py", "content": "d = 4\n"}), ("doubt", {"number": 5})),
    use(("edit_file", {**EDIT, "old_str": "a = 8"}), ("read_file", {"path": "link"}), ("read_file", {"path": "../x"})),
    use(("search_files", {"pattern": "= 7"}), ("delete_file", {"path": "c.py"})),
    DONE,
)
Trace = list[tuple[str, JsonMap, str, str]]


def invoke(machine: Any, request: Any, config: Any, context: AgentContext) -> list[JsonMap]:
    return list(machine.invoke(request, config, context=context, stream_mode="custom"))


def ainvoke(machine: Any, request: Any, config: Any, context: AgentContext) -> list[JsonMap]:
    return list(asyncio.run(machine.ainvoke(request, config, context=context, stream_mode="custom")))


Way = Callable[[Any, Any, Any, AgentContext], list[JsonMap]]
WAYS: tuple[Way, ...] = (invoke, ainvoke)


def traces(parts: list[JsonMap], folder: Path) -> Trace:
    """The events of the trace without their times; a run's own folder is called "." in each."""
    return [
        (
            part["name"],
            without_times(json.loads(json.dumps(part["payload"]).replace(str(folder), "."))),
            part["run_id"],
            part["step_id"],
        )
        for part in parts
        if part["type"] == "trace"
    ]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in {"time", "ms", "seconds"}}
    return [without_times(item) for item in value] if isinstance(value, list) else value


@slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sync_and_async_runs_have_the_same_trace_log_and_files(
    tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[tuple[Trace, Any, dict[str, str], list[str]]] = []
    for way in WAYS:
        place = tmp_path / way.__name__
        monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(place / "data"))
        root = place / "root"
        write_files(root, FILES)
        (root / "link").symlink_to("/etc/passwd")
        saver = InMemorySaver(serde=serializer())
        model = scripted_model(protocol, *WORK)
        machine = build_graph(saver, model=model, tools=(*default_tools(), think, stumble, doubt))
        config: Any = {"configurable": {"thread_id": "t"}}
        context = AgentContext(workspace=str(root), protocol=protocol.value, evidence=False)
        parts = way(machine, {"messages": [HumanMessage("Do it.")]}, config, context)
        [log] = (place / "data" / "runs").glob("*/audit.jsonl")
        lines = [without_times(json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]
        messages = [str(message.content) for message in machine.get_state(config).values["messages"]]
        records.append((traces(parts, place), lines, changed_files(root, {**FILES, "link": ""}), messages))
    first = records[0]
    assert [record == first for record in records] == [True] * len(WAYS)
    trace, lines, files, messages = first
    assert (files["a.py"], files["d/d.py"], files["c.py"]) == ("a = 7\n", "d = 4\n", "")
    calls = [line["tool"] for line in lines if line["event"] == "call"]
    assert calls == [name for line in WORK if isinstance(line, Use) for name, _ in line.calls]
    assert set(names(trace)) >= {"tool.invoke.fail", "tool.invoke.user_error", "cache.store", "sandbox.refused"}
    assert messages[-1] == "Done."


def names(trace: Trace) -> Iterator[str]:
    yield from (name for name, *_ in trace)


def test_trace_of_one_call_has_the_order_of_spec_5(root: Path) -> None:
    machine = build_graph(model=scripted_model(Protocol.NATIVE, reads("a.py"), DONE))
    parts = invoke(machine, {"messages": [HumanMessage("Do it.")]}, None, AgentContext(workspace=str(root)))
    assert list(names(traces(parts, root))) == [
        *("model.usage", "tool.resolve.start", "tool.resolve.ok", "args.parse.start", "args.parse.ok", "cache.miss"),
        *("guard.input.start", "guard.input.ok", "tool.invoke.start", "tool.invoke.ok", "guard.output.start"),
        *("guard.output.ok", "cache.store", "model.usage"),
    ]


def test_denied_call_never_reaches_the_engine(root: Path) -> None:
    run = play(root, reads(".env"), DONE)
    assert run.codes == ["permission_denied"]
    assert [event for event in run.events if isinstance(event, ToolStarted)] == []
    assert {event.name for event in run.events if isinstance(event, Traced)} == {"model.usage"}


# --- Async tools


WORD: ContextVar[str] = ContextVar("word", default="")


class WaitingTool:
    """A tool that waits for another task of its event loop, and records how it ended."""

    def __init__(self, word: "asyncio.Future[str]") -> None:
        self.word, self.started, self.ended, self.seen = word, asyncio.Event(), asyncio.Event(), list[str]()
        self.tool = tool(self.listen, effect=Effect.WRITE)

    async def listen(self, context: ToolContext) -> str:
        """Listen for a word."""
        self.started.set()
        try:
            heard = f"{WORD.get()} {await self.word}"
        except asyncio.CancelledError:
            with suppress(Exception):
                context.workspace.write_file("late.txt", b"late\n", expected_sha256="")
            self.seen.append("cancelled")
            self.ended.set()
            raise
        self.seen.append(threading.current_thread().name)
        return heard


async def run_waiting_tool(
    root: Path, act: Callable[[WaitingTool, "asyncio.Task[Any]"], Awaitable[None]], **more: Any
) -> Any:
    """The last state of a run whose tool waits while `act` runs beside it in the event loop; and the tool."""
    waiting = WaitingTool(asyncio.get_running_loop().create_future())
    model = scripted_model(Protocol.NATIVE, use(("listen", {}), ("read_file", {"path": "a.py"})), DONE)
    machine: Any = build_graph(InMemorySaver(serde=serializer()), model=model, tools=(*default_tools(), waiting.tool))
    config: Any = {"configurable": {"thread_id": "t"}}
    request = {"messages": [HumanMessage("Do it.")]}
    context = AgentContext(workspace=str(root), evidence=False, **more)

    async def run() -> None:
        WORD.set("the word")
        async for _ in machine.astream(request, config, context=context):
            pass

    task = asyncio.ensure_future(run())
    await waiting.started.wait()
    await act(waiting, task)
    with suppress(asyncio.CancelledError):
        await task
    return (await machine.aget_state(config)).values, waiting


def test_async_tool_runs_in_the_event_loop_of_its_run(root: Path) -> None:
    async def say(waiting: WaitingTool, _: object) -> None:
        waiting.word.set_result("is given")

    state, waiting = asyncio.run(run_waiting_tool(root, say))
    call_results = [json.loads(str(message.content)) for message in state["messages"] if message.type == "tool"]
    assert call_results[0]["data"] == {"value": "the word is given"}
    assert waiting.seen == [threading.current_thread().name]
    assert (call_results[1]["ok"], state["outcome"].kind.value) == (True, "FINISHED")


def test_cancelled_run_cancels_its_async_tool_which_then_changes_nothing(root: Path) -> None:
    async def cancel(waiting: WaitingTool, task: "asyncio.Task[Any]") -> None:
        task.cancel()
        await waiting.ended.wait()

    state, waiting = asyncio.run(run_waiting_tool(root, cancel))
    assert waiting.seen == ["cancelled"]
    assert (state.get("results"), (root / "late.txt").exists()) == ([], False)


def test_async_tool_that_exceeds_its_timeout_is_cancelled_and_the_run_continues(root: Path) -> None:
    async def nothing(_waiting: WaitingTool, _task: object) -> None:
        pass

    state, waiting = asyncio.run(run_waiting_tool(root, nothing, tool_timeout_s=0.05))
    call_results = [json.loads(str(message.content)) for message in state["messages"] if message.type == "tool"]
    assert (call_results[0]["error"]["code"], call_results[1]["ok"], waiting.seen) == ("timeout", True, ["cancelled"])
    assert state["outcome"].kind.value == "FINISHED"


def test_sync_tool_does_not_block_the_event_loop(root: Path) -> None:
    signal = threading.Event()

    @tool(effect=Effect.NONE)
    def hear() -> bool:
        """Wait for what a task of the loop says."""
        return signal.wait(20)

    async def run() -> JsonMap:
        model = scripted_model(Protocol.NATIVE, use(("hear", {})), DONE)
        machine = build_graph(model=model, tools=(*default_tools(), hear))
        request: Any = {"messages": [HumanMessage("Do it.")]}
        running = asyncio.ensure_future(machine.ainvoke(request, context=AgentContext(workspace=str(root))))
        await asyncio.sleep(0)
        signal.set()
        return await running

    messages = asyncio.run(run())["messages"]
    assert [json.loads(message.content)["data"] for message in messages if message.type == "tool"] == [{"value": True}]


# --- Parallel calls


class ParallelTools:
    """Tools that succeed only if `size` of their calls run at the same time."""

    def __init__(self, size: int, effect: Effect = Effect.READ) -> None:
        self._threads, self._size, self._arrived = threading.Barrier(size), size, 0
        self._all: asyncio.Event | None = None
        self.tools = (tool(self.meet, effect=effect), tool(self.join, effect=effect))

    def meet(self, name: str) -> str:
        """Wait in a thread for the others."""
        self._threads.wait(5)
        return f"{name} met"

    async def join(self, name: str) -> str:
        """Wait in the event loop for the others."""
        self._all = self._all or asyncio.Event()
        self._arrived += 1
        if self._arrived == self._size:
            self._all.set()
        await asyncio.wait_for(self._all.wait(), 5)
        return f"{name} met"


def results(
    root: Path, way: Way, extra_tools: tuple[Any, ...], *calls: tuple[str, JsonMap], **settings: Any
) -> list[JsonMap]:
    """The result of each call of one reply, in order."""
    saver, model = InMemorySaver(serde=serializer()), scripted_model(Protocol.NATIVE, use(*calls), DONE)
    machine = build_graph(saver, model=model, tools=(*default_tools(), *extra_tools))
    config: Any = {"configurable": {"thread_id": "t"}}
    context = AgentContext(workspace=str(root), evidence=False, **settings)
    way(machine, {"messages": [HumanMessage("Do it.")]}, config, context)
    messages = machine.get_state(config).values["messages"]
    return [json.loads(str(message.content)) for message in messages if message.type == "tool"]


def test_calls_without_an_effect_on_files_run_in_parallel_and_return_in_order(root: Path) -> None:
    for name, way, effect in (
        ("meet", invoke, Effect.READ),
        ("meet", ainvoke, Effect.NONE),
        ("join", ainvoke, Effect.NETWORK),
    ):
        calls = [(name, {"name": letter}) for letter in "abc"]
        call_results = results(root, way, ParallelTools(3, effect).tools, *calls, allowed_hosts=("example.org",))
        assert [result["data"] for result in call_results] == [{"value": f"{letter} met"} for letter in "abc"], (
            name,
            effect,
        )


def test_failing_call_does_not_affect_parallel_calls(root: Path) -> None:
    calls: list[tuple[str, JsonMap]] = [
        ("meet", {"name": "a"}),
        ("stumble", {}),
        ("doubt", {"number": 5}),
        ("meet", {"name": "b"}),
    ]
    call_results = results(root, invoke, (*ParallelTools(2).tools, stumble, doubt), *calls)
    ended = [result["data"]["value"] if result["ok"] else result["error"]["code"] for result in call_results]
    assert ended == ["a met", "io_error", "invalid_argument", "b met"]


IN_TURNS: tuple[tuple[Effect, JsonMap, bool], ...] = (
    (Effect.READ, {}, True),
    (Effect.WRITE, {}, False),
    (Effect.EXECUTE, {}, False),
    (Effect.READ, {"tool_quotas": {"first": 5}}, False),
    (Effect.READ, {"tool_calls_per_minute": {"second": 5}}, False),
)


@slow
def test_calls_with_an_effect_on_files_or_with_limits_run_one_after_the_other(root: Path) -> None:
    for number, (effect, more, together) in enumerate(IN_TURNS):
        started, way = threading.Event(), WAYS[number % 2]

        @tool(effect=Effect.READ)
        def first() -> bool:
            """Whether the second one has begun."""
            return started.wait(5 if together else 0.1)  # noqa: B023 - of this round

        @tool(effect=effect)
        def second() -> bool:
            """Begin."""
            started.set()  # noqa: B023 - of this round
            return True

        call_results = results(root, way, (first, second), ("first", {}), ("second", {}), **more)
        assert [result["data"]["value"] for result in call_results] == [together, True], more
