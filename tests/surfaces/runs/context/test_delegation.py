"""Children of a run: their permissions, their budget, their approval requests, and how they end."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime

from mendgraph import (
    AgentContext,
    Asked,
    Ended,
    OfChild,
    Session,
    StepDone,
    Text,
    ToolError,
    ToolStarted,
    build_graph,
    default_tools,
    prune_runs,
    serializer,
    undo_run,
)
from mendgraph.graph.machine.children import agent_context
from mendgraph.graph.machine.machine_tools import MachineTools
from mendgraph.nodes.language.prompt_files import PromptFile
from tests.doubles.model_clock import set_clock
from tests.doubles.replies import Say
from tests.doubles.task_model import TaskModel
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.surfaces.runs.tool_play import scripted_model
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

USED = (100, 10)
FILES = {"a.txt": "a\n", "sub/b.txt": "b\n"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", FILES)
    return tmp_path / "root"


def explore(task: str) -> tuple[str, dict[str, Any]]:
    return ("delegate", {"task": task})


def write(task: str, *paths: str) -> tuple[str, dict[str, Any]]:
    return ("delegate", {"task": task, "mode": "write", "paths": list(paths)})


def edit(path: str, old: str, new: str) -> Use:
    return use(("edit_file", {"path": path, "old_str": old, "new_str": new}), usage=USED)


def done(text: str = "Done.") -> Say:
    return Say(text, usage=USED)


def parent(*calls: tuple[str, dict[str, Any]]) -> tuple[Use | Say, ...]:
    return (use(*calls, usage=USED), done("All done."))


def context(root: Path, **more: Any) -> AgentContext:
    settings = {"delegation": True, "evidence": False, "read_ahead": False, "max_calls_per_turn": 40, **more}
    return AgentContext(workspace=str(root), protocol="native", **settings)


def session(root: Path, model: TaskModel, **more: Any) -> Session:
    return Session(context(root, **more), model=model, thread_id="t")


def results(opened: Session) -> list[dict[str, Any]]:
    return [json.loads(message.text) for message in opened.result().messages if message.type == "tool"]


@slow
def test_explorers_and_writers_run_in_parallel_and_return_their_results(root: Path) -> None:
    together = threading.Barrier(3, timeout=30)  # broken if one waits for the end of another

    def meet(task: str, replies: int) -> None:
        if task != "MAIN" and replies == 0:
            together.wait()

    lines = {
        "MAIN": parent(explore("LOOK into a"), write("ONE", "a.txt"), write("TWO", "sub")),
        "LOOK": (use(("read_file", {"path": "a.txt"}), ("write_file", {"path": "c", "content": ""})), done("It is a.")),
        "ONE": (edit("sub/b.txt", "b", "X"), edit("a.txt", "a", "A"), done()),
        "TWO": (edit("sub/b.txt", "b", "B"), done()),
    }
    model = TaskModel(lines, meet)
    with session(root, model) as opened:
        events = list(opened.stream("MAIN task"))
        look, one, two = results(opened)
        outcome = opened.result().outcome
        usage = opened.usage()
    assert look == {
        "ok": True,
        "data": {"answer": "It is a.", "ended": "FINISHED", "child_refused": ["refused: write_file c"]},
    }
    assert (one["data"]["changed_files"], two["data"]["changed_files"]) == (["a.txt"], ["sub/b.txt"])
    assert one["data"]["verified"]["kind"] == "none"
    assert outcome.changed_files == ("a.txt", "sub/b.txt")
    assert (root / "a.txt").read_text() + (root / "sub/b.txt").read_text() == "A\nB\n"
    assert usage["total_calls"] == len(model.calls) == 9
    of_children = [event for event in events if isinstance(event, OfChild)]
    assert {(event.place, event.task) for event in of_children} == {
        ("1.1", "LOOK into a"), ("1.2", "ONE"), ("1.3", "TWO"),
    }  # fmt: skip
    started = [event.inner.call.tool for event in of_children if isinstance(event.inner, ToolStarted)]
    assert sorted(started) == ["edit_file", "edit_file", "read_file"]
    assert sum(isinstance(event.inner, Ended) for event in of_children) == 3
    assert ["delegate" in str(call.prompt.tools) for call in model.calls].count(True) == 2  # the calls of the parent
    assert not isinstance(undo_run("t", root), ToolError)
    assert (root / "a.txt").read_text() + (root / "sub/b.txt").read_text() == "a\nb\n"


@slow
def test_counts_of_a_run_include_its_children(root: Path) -> None:
    """Counts of healed replies, repeated actions and truncated reads; a line of the log names the child."""
    write_files(root, {"long.txt": "line\n" * 900})
    broken = use(("read_file", '{"path": long.txt}'))
    read = use(("read_file", {"path": "long.txt"}))
    lines = (broken, use(explore("Look.")), broken, broken, read, read, read, done(), done())
    with Session(context(root), model=scripted_model(Protocol.NATIVE, *lines), thread_id="t") as opened:
        opened.work("MAIN task")
        usage = opened.usage()
    counted = {"replies_asked_again": 3, "replies_healed": 2, "loops": 1, "loop_overrides": 1, "truncated_reads": 3}
    assert {name: usage[name] for name in counted} == counted

    [log] = (root.parent / "data" / "runs").glob("*/audit.jsonl")
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    healed = [event["run_id"] for event in events if event["event"] == "healed"]
    assert [run_id.partition("|")[0] for run_id in healed] == ["t", "t"]
    assert healed[1].endswith("|2|0")


@slow
def test_writers_of_the_same_file_run_one_after_the_other(root: Path) -> None:
    started, early = threading.Event(), list[bool]()

    def note(task: str, replies: int) -> None:
        if task == "TWO":
            started.set()
        elif task == "ONE" and replies == 1:
            early.append(started.wait(0.2))

    lines = {
        "MAIN": parent(write("ONE", "SUB/"), write("TWO", "./sub/b.txt")),
        "ONE": (edit("sub/b.txt", "b", "one"), done()),
        "TWO": (edit("sub/b.txt", "one", "two"), done()),
    }
    with session(root, TaskModel(lines, note)) as opened:
        opened.work("MAIN")
        assert [result["ok"] for result in results(opened)] == [True, True]
    assert early == [False]
    assert (root / "sub/b.txt").read_text() == "two\n"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_calls_per_session": 9}, "max_calls"),
        ({"max_calls_per_session": 9, "on_limit": "ask"}, "max_calls"),
        ({"max_output_tokens_per_session": 90}, "max_output_tokens"),
        ({"max_cost_usd": 0.9, "usd_per_million_input": 0, "usd_per_million_output": 10_000}, "max_cost"),
    ],
)
def test_run_and_its_children_never_exceed_a_limit_together(root: Path, limits: dict[str, Any], reason: str) -> None:
    """Three endless children share the rest of the budget, in each turn of the session."""
    read = use(("read_file", {"path": "a.txt"}), usage=USED)
    others = [use(("list_files", {"path": name}), usage=USED) for name in ("sub", ".", "sub/", "./sub", "./")]
    endless = [read, *others, *[use(("search_files", {"pattern": str(n)}), usage=USED) for n in range(40)]]
    lines: dict[str, Sequence[Use | Say]] = {
        "MAIN": (use(explore("A"), explore("B"), explore("C"), usage=USED), *[done("Over.")] * 2),
        **dict.fromkeys("ABC", endless),
    }
    model = TaskModel(lines)
    with session(root, model, **limits) as opened:
        opened.work("MAIN")
        call_results, usage, outcome = results(opened), opened.usage(), opened.result().outcome
    assert [result["error"]["code"] for result in call_results] == ["resource_limit"] * 3, call_results
    assert reason in call_results[0]["error"]["message"]
    assert outcome.kind == "FINISHED"
    assert usage["total_calls"] == len(model.calls) <= 9
    assert usage["total_output_tokens"] <= 90


def test_stream_writer_of_a_tool_does_not_disturb_the_run_or_a_child(root: Path) -> None:
    @tool
    def tick(runtime: ToolRuntime) -> str:
        """Say something while it runs."""
        for part in (5, "words", {"type": "text"}):
            runtime.stream_writer(part)
        return "tock"

    lines = {"MAIN": parent(("tick", {}), explore("A")), "A": (use(("tick", {}), usage=USED), done("tick, tock"))}
    options: Any = {"tools": (*default_tools(), tick), "effects": {"tick": "none"}}
    with Session(context(root), model=TaskModel(lines), thread_id="t", **options) as opened:
        texts = [event.text for event in opened.stream("MAIN") if isinstance(event, Text)]
        parent_result, of_child = [message.text for message in opened.result().messages if message.type == "tool"]
    assert "".join(texts) == "All done."
    assert parent_result == "tock"
    assert json.loads(of_child)["data"]["answer"] == "tick, tock"


def test_run_without_a_checkpointer_can_have_children(root: Path) -> None:
    model = TaskModel({"MAIN": parent(explore("A"), explore("B")), "A": (done("a"),), "B": (done("b"),)})
    values = build_graph(model=model).invoke({"messages": [HumanMessage("MAIN")]}, context=context(root))
    assert [json.loads(message.text)["data"]["answer"] for message in values["messages"] if message.type == "tool"] == [
        "a",
        "b",
    ]


@slow
def test_children_share_the_rest_of_a_quota(root: Path) -> None:
    def read(*paths: str) -> Use:
        return use(*(("read_file", {"path": path}) for path in paths), usage=USED)

    lines = {
        "MAIN": (
            read("a.txt"),
            use(explore("A"), explore("B"), usage=USED),
            read("sub/b.txt", "c.txt", "d.txt"),
            done("All done."),
        ),
        **dict.fromkeys("AB", (read("a.txt", "sub/b.txt", "c.txt"), done())),
    }
    for name in ("c.txt", "d.txt"):
        (root / name).write_text(name)
    model = TaskModel(lines)
    with session(root, model, tool_quotas={"read_file": 6}) as opened:
        events = list(opened.stream("MAIN"))
        codes = [result.get("error", {}).get("code", "ok") for result in results(opened)]
    of_children = [
        [result.result.error.code.value if result.result.error else "ok" for result in event.inner.results]
        for event in events
        if isinstance(event, OfChild) and isinstance(event.inner, StepDone)
    ]
    assert of_children == [["ok", "ok", "rate_limited"]] * 2  # of five that are left, two each
    assert codes == ["ok", "ok", "ok", "ok", "rate_limited", "rate_limited"]


def test_budget_that_is_too_small_starts_no_children(root: Path) -> None:
    model = TaskModel({"MAIN": parent(explore("A"), explore("B"), explore("C"))})
    with session(root, model, max_calls_per_turn=3) as opened:
        opened.work("MAIN")
        call_results = results(opened)
    assert [result["error"]["code"] for result in call_results] == ["resource_limit"] * 3
    assert all(
        "is too little for children: do this part yourself." in result["error"]["message"] for result in call_results
    )
    assert len(model.calls) <= 2


@slow
def test_child_gets_a_part_of_the_budget_and_may_change_only_its_paths(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, seconds_per_call=0.0)
    contexts: dict[str, AgentContext] = {}

    @tool
    def note(task: str, runtime: ToolRuntime) -> str:
        """Note the context of a run."""
        contexts[task] = cast("AgentContext", runtime.context)
        return "noted"

    tasks = {"ONE": ("a.txt",), "TWO": ("a.txt",), "LOOK": ()}
    lines: dict[str, Sequence[Use | Say]] = {
        "MAIN": parent(write("ONE", "a.txt"), write("TWO", "a.txt"), explore("LOOK")),
        **{task: (use(("note", {"task": task}), usage=USED), done()) for task in tasks},
    }
    options: Any = {"tools": (*default_tools(), note), "effects": {"note": "none"}}
    limits: Any = {"max_seconds": 90.0, "max_calls_per_turn": 41, "checks": ("true",), "require_checks": True}
    with Session(context(root, **limits), model=TaskModel(lines), thread_id="t", **options) as opened:
        opened.work("MAIN")
    assert contexts.keys() == tasks.keys()
    for task, paths in tasks.items():
        of_child = contexts[task]
        assert of_child.max_seconds == pytest.approx(30.0, abs=1.0)  # two rows, and one part stays with the run
        assert of_child.max_calls_per_turn == 10  # three children, and one part stays with the run
        assert (of_child.delegation, of_child.checks, of_child.require_checks) == (False, (), False)
        assert (of_child.mode, of_child.writable_paths) == ("auto" if paths else "read-only", paths)


@slow
def test_child_without_an_answer_names_its_changed_files(root: Path) -> None:
    lines = {
        "MAIN": parent(write("ONE", "a.txt")),
        "ONE": (edit("a.txt", "a", "A"), *[use(("list_files", {"path": "sub"}), usage=USED)] * 9),
    }
    with session(root, TaskModel(lines)) as opened:
        opened.work("MAIN")
        [result] = results(opened)
        outcome = opened.result().outcome
    assert (result["ok"], result["error"]["code"]) == (False, "child_failed")
    assert result["error"]["message"].startswith("The child ended without an answer (SYSTEM_ERROR, loop")
    assert result["error"]["message"].endswith(" It has changed a.txt.")
    assert outcome.changed_files == ("a.txt",)


def test_stopping_a_run_ends_its_children(root: Path) -> None:
    def stop(task: str, replies: int) -> None:
        if task == "B" and replies == 1:
            opened.stop()

    look = use(("read_file", {"path": "a.txt"}), usage=USED)
    lines = {"MAIN": parent(explore("A"), explore("B")), "A": [look] * 30, "B": [look] * 30}
    model = TaskModel(lines, stop)
    with session(root, model) as opened:
        ended = opened.work("MAIN")
        assert isinstance(ended, Ended)
        assert ended.outcome.reason == "cancelled"
        assert {result["error"]["code"] for result in results(opened)} <= {"cancelled", "loop_override"} | {
            "child_failed"
        }
        assert opened.usage()["total_calls"] == len(model.calls)
        calls = len(model.calls)
    assert calls == len(model.calls) < 15


@slow
@pytest.mark.parametrize("turn_input", [None, {"messages": [HumanMessage("MAIN again")]}])
def test_cancelling_a_run_in_its_event_loop_cancels_its_children(root: Path, turn_input: Any) -> None:
    """Their calls are charged to the next turn, whether it continues them or not."""

    started = threading.Event()

    def signal_start(task: str, replies: int) -> None:
        if task == "A" and replies == 1:
            started.set()

    look = [use(("search_files", {"pattern": str(n)}), usage=USED) for n in range(35)]
    model = TaskModel({"MAIN": parent(explore("A"), explore("B")), "A": look, "B": look}, signal_start)
    graph = build_graph(InMemorySaver(serde=serializer()), model=model)
    thread: Any = {"configurable": {"thread_id": "1"}}

    async def cancelled() -> int:
        run = asyncio.ensure_future(graph.ainvoke({"messages": [HumanMessage("MAIN")]}, thread, context=context(root)))
        await asyncio.to_thread(started.wait, 30)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        calls = len(model.calls)
        await asyncio.sleep(0.2)
        return len(model.calls) - calls

    assert asyncio.run(cancelled()) <= 1
    assert len(model.calls) < 60
    values = asyncio.run(graph.ainvoke(turn_input, thread, context=context(root)))
    assert values["outcome"].kind == "FINISHED"
    assert len(model.calls) <= values["spending"].usage.total_calls <= 40 + 40 * (turn_input is not None)


@slow
def test_approval_request_of_a_child_reaches_the_person(root: Path) -> None:
    lines = {
        "MAIN": parent(write("ONE", "a.txt"), explore("LOOK"), write("TWO", "sub")),
        "LOOK": (done("Nothing."),),
        "ONE": (edit("a.txt", "a", "A"), done()),
        "TWO": (edit("sub/b.txt", "b", "B"), done()),
    }
    model = TaskModel(lines)
    tools: list[str] = []
    with session(root, model, mode="ask") as opened:
        last = opened.work("MAIN")
        while isinstance(last, Asked):
            tools += [call["tool"] for call in last.request["calls"]]
            last = opened.work_on("approve" if len(tools) == 1 else "reject")
    assert tools == ["edit_file", "edit_file"]
    assert (root / "a.txt").read_text() + (root / "sub/b.txt").read_text() == "A\nb\n"
    assert len(model.calls) == 7


@pytest.mark.parametrize("settings", [{"mode": "read-only"}, {"writable_paths": ("sub",)}])
def test_child_cannot_get_files_that_the_run_may_not_change(root: Path, settings: dict[str, Any]) -> None:
    lines = {"MAIN": parent(write("ONE", "./a.txt")), "ONE": (edit("a.txt", "a", "A"), done())}
    with session(root, TaskModel(lines), **settings) as opened:
        opened.work("MAIN")
        [result] = results(opened)
    assert result["error"]["code"] == "permission_denied"
    assert (root / "a.txt").read_text() == "a\n"


def test_delegate_is_not_offered_unless_the_setting_is_on(root: Path) -> None:
    model = TaskModel({"MAIN": (use(explore("LOOK"), usage=USED), done())})
    with session(root, model, delegation=False, offer="all") as opened:
        opened.work("MAIN")
        [result] = results(opened)
    assert result["error"]["code"] == "permission_denied"
    assert all("delegate" not in str(call.prompt.tools) for call in model.calls)


@slow
def test_pruning_a_run_removes_the_records_of_its_children(root: Path) -> None:
    lines = {"MAIN": parent(write("ONE", "a.txt")), "ONE": (edit("a.txt", "a", "A"), done())}
    with session(root, TaskModel(lines)) as opened:
        opened.work("MAIN")
    assert not isinstance(prune_runs(root, keep=0), ToolError)
    assert isinstance(undo_run("t", root), ToolError)
    assert [*(root.parent / "data" / "runs").iterdir()] == []


REVIEWER = """---
name: reviewer
description: Reviews code
tools: Read, Grep
model: sonnet
---
Be strict.
Change AGENTS.md.
"""


def test_child_follows_the_instructions_and_tools_of_an_agent_file(root: Path) -> None:
    write_files(root, {".claude/agents/check.md": REVIEWER, ".claude/agents/writer.md": "Write AGENTS.md."})
    write_agents = use(("write_file", {"path": "AGENTS.md", "content": "x"}), usage=USED)
    write_new = use(("write_file", {"path": "new.txt", "content": "x"}), usage=USED)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("delegate", {"task": "LOOK", "agent": "reviewer"}),
        ("delegate", {"task": "ONE", "agent": "reviewer", "mode": "write", "paths": ["new.txt"]}),
        ("delegate", {"task": "TWO", "agent": "writer", "mode": "write", "paths": ["."]}),
        ("delegate", {"task": "THREE", "agent": "revewer"}),
    ]
    lines = {"Notes": parent(*calls), "LOOK": (done(),), "ONE": (write_new, done()), "TWO": (write_agents, done())}
    model = TaskModel(lines)
    with session(root, model, offer="all") as opened:
        list(opened.stream("MAIN task"))
        answers = results(opened)
    first_prompts = {str(call.prompt.messages[-1]["content"]): call.prompt for call in model.calls}
    look = first_prompts["LOOK"]
    two = first_prompts["TWO"]
    assert "Be strict." in str(look.messages[0])
    assert ("search_files" in str(look.tools), "edit_file" in str(look.tools)) == (True, False)
    assert ("Write AGENTS.md." in str(two.messages[0]), "edit_file" in str(two.tools)) == (True, True)
    [refused] = answers[2]["data"]["child_refused"]
    assert refused.endswith("write_file AGENTS.md")
    assert "There is no agent 'revewer' here: choose one of reviewer" in answers[3]["error"]["message"]
    assert sorted(path.name for path in root.iterdir()) == [".claude", "a.txt", "sub"]


@pytest.mark.parametrize(
    ("files", "settings", "offered"),
    [
        ({".claude/agents/check.md": REVIEWER}, {}, True),
        ({}, {}, False),
        ({".claude/agents/check.md": REVIEWER}, {"project_notes": False}, False),
        ({".claude/agents/check.md": REVIEWER}, {"delegation": False}, False),
    ],
)
def test_agents_are_offered_only_if_agent_files_exist(
    root: Path, files: dict[str, str], settings: dict[str, Any], offered: bool
) -> None:
    write_files(root, files)
    model = TaskModel({"MAIN": (done(),), "Notes": (done(),)})
    with session(root, model, **settings) as opened:
        list(opened.stream("MAIN task"))
    prompt = model.calls[0].prompt
    assert ("- reviewer: Reviews code" in str(prompt.messages)) is offered
    assert ("'reviewer'" in str(prompt.tools)) is offered


def test_agent_uses_its_own_model_if_the_run_has_it(root: Path) -> None:
    before = context(root, model="a", base_url="http://127.0.0.1:1/v1", fallback_models=("openai:b", "c"))
    machine = MachineTools({})
    changed = {}
    for name in ("openai:b", "c", "sonnet"):
        agent = PromptFile("x", "x.md", {"model": name}, "Do.")
        after = agent_context(before, agent, machine)
        changed[name] = (after.model, after.fallback_models, after.base_url == before.base_url)
    assert changed == {
        "openai:b": ("openai:b", ("c",), False),
        "c": ("c", ("openai:b",), True),
        "sonnet": ("a", ("openai:b", "c"), True),
    }
