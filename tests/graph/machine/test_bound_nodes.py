"""How the nodes are bound to the turn's context, to the tools and to the model: seen from the calls that are made."""

from collections import deque
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import Admission
from mendgraph.graph.machine.build import build_graph, build_machine
from mendgraph.graph.machine.state import serializer
from mendgraph.nodes.execute_tools.node import execute_tools
from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from mendgraph.nodes.records import (
    JsonMap,
    OutcomeKind,
    Protocol,
    ProviderErrorKind,
    ProviderFailure,
    StopCause,
    StopReason,
)
from tests.doubles.replies import Message, Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import Use, message_of, use
from tests.workspace_files import write_files

FILES = {"a.py": "a = 1\n"}
THREAD: Any = {"configurable": {"thread_id": "t"}}
DONE = Say("Done.")
TEXT = Protocol.TEXT


def ended(folder: Path, *replies: Use | Say, protocol: Protocol = Protocol.NATIVE, **context: Any) -> JsonMap:
    """The values of a thread after one turn, with the model as `values["model"]`."""
    write_files(folder, FILES)
    model = ScriptedModel([message_of(reply, protocol) for reply in replies])
    machine = build_graph(InMemorySaver(serde=serializer()), model=model)
    settings = AgentContext(**{"workspace": str(folder), "protocol": protocol.value, **context})
    machine.invoke({"messages": [HumanMessage("Look at a.py.")]}, THREAD, context=settings)
    return {**machine.get_state(THREAD).values, "model": model}


# --- begin_turn


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"workspace": "/no/such/folder"}, "/no/such/folder"),
        ({"workspace": "/"}, "/"),
        ({"workspace": "/etc"}, "/etc"),
        ({"response_format": {"type": "objekt"}}, "response_format is not a JSON schema"),
    ],
)
def test_what_cannot_be_worked_on_ends_the_turn_before_it_costs(context: JsonMap, words: str, tmp_path: Path) -> None:
    values = ended(tmp_path, DONE, **context)
    outcome = values["outcome"]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.INVALID_REQUEST)
    assert words in outcome.message
    assert (values["model"].calls, outcome.usage["total_calls"]) == ([], 0)


def test_what_a_cut_off_step_has_read_and_written_is_known_to_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*given: Any) -> None:
        execute_tools(*given)
        raise KeyboardInterrupt

    write_files(tmp_path, FILES)
    calls = use(("read_file", {"path": "a.py"}), ("write_file", {"path": "b.py", "content": "b = 1\n"}))
    machine = build_graph(InMemorySaver(serde=serializer()), model=ScriptedModel([message_of(calls, TEXT), DONE, DONE]))
    ask: Any = ({"messages": [HumanMessage("Go on.")]}, THREAD)
    context = AgentContext(workspace=str(tmp_path), protocol="text", evidence=False)
    with monkeypatch.context() as patch:
        patch.setattr("mendgraph.graph.machine.tool_runtime.execute_tools", cut_off)
        with pytest.raises(KeyboardInterrupt):
            machine.invoke(*ask, context=context)
    machine.invoke(*ask, context=context)
    expected = {path: sha256((tmp_path / path).read_bytes()).hexdigest() for path in ("a.py", "b.py")}
    assert machine.get_state(THREAD).values["files_read"] == expected


# --- Several runs


def test_runs_of_one_machine_do_not_meet(tmp_path: Path) -> None:
    """Two runs, step by step in turn, each in its own workspace and within its own limits."""

    def echo(request: JsonMap) -> Message:
        name = request["messages"][1]["content"]
        return message_of(use(("write_file", {"path": f"{len(request['messages'])}.txt", "content": name})), TEXT)

    with ScriptedServer(then=echo) as server:
        machine = build_graph(InMemorySaver(serde=serializer()))
        runs = []
        for name, calls in (("one", 2), ("two", 4)):
            (tmp_path / name).mkdir()
            limits: Any = {"model": "m", "protocol": "text", "max_calls_per_turn": calls}
            context = AgentContext(workspace=str(tmp_path / name), base_url=server.base_url, **limits)
            config: Any = {"configurable": {"thread_id": name}}
            runs.append(machine.stream({"messages": [HumanMessage(name)]}, config, context=context))
        deque(zip_longest(*runs))
    found = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.txt")}
    assert found == {
        f"{name}/{n}.txt": name for name, calls in (("one", 2), ("two", 4)) for n in range(2, 2 * calls + 1, 2)
    }


CAUSE = StopCause(reason=StopReason.WORKSPACE_BUSY, message="Later.")


@pytest.mark.parametrize(
    "before", [{"context": AgentContext(max_steps=3), "run_id": "ann/t1"}, {}], ids=["known", "new"]
)
def test_turn_that_a_server_refuses_ends_where_it_begins(before: dict[str, Any]) -> None:
    """A thread that has no context gets none: a client could go on with defaults."""
    nodes = build_machine(None, model=None, tools=None, rules=DEFAULT_GUARDRAIL_RULES, secrets=["hunter2-hunter2"])[1]
    runtime: Any = SimpleNamespace(context=Admission(CAUSE, "ann"), execution_info=None, server_info=None)
    state: Any = {"messages": [HumanMessage("My key is hunter2-hunter2.")], **before}
    update = nodes.begin_turn(state, runtime)
    assert (update["stop"], update["preload"], update.get("context")) == (CAUSE, None, before.get("context"))
    assert update["run_id"] == before.get("run_id") or len(update["run_id"]) == 32
    assert [each.text for each in update["messages"].value] == ["My key is [redacted secret]."]


def test_window_that_an_endpoint_refused_is_forgotten_with_the_turn(tmp_path: Path) -> None:
    """The next turn may have another model."""
    overflow = ProviderFailure(kind=ProviderErrorKind.CONTEXT_OVERFLOW, message="The prompt is too long.")
    replies: list[Any] = [overflow, *(message_of(reply, Protocol.NATIVE) for reply in (DONE, DONE))]
    machine = build_graph(InMemorySaver(serde=serializer()), model=ScriptedModel(replies))
    context, seen = AgentContext(workspace=str(tmp_path), protocol="native"), []
    for request in ("Look. " + "word " * 3_000, "Go on."):
        machine.invoke({"messages": [HumanMessage(request)]}, THREAD, context=context)
        seen.append(machine.get_state(THREAD).values["window"].tokens)
    assert seen[0] > 3_000
    assert seen[1] is None


INVENTING = Say('tool: read_file({"path": "a.py"})\ntool_result({"ok":true,"data":{}})\nIt is 7.')


PRINTED = Say('```json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```')
PRINTED_B, PRINTED_C = (Say(PRINTED.text.replace("a.py", name)) for name in ("b.py", "c.py"))
BROKEN = Say('tool: reed({"path": "a.py"})')
READ = use(("read_file", {"path": "a.py"}))


def heard(folder: Path, *replies: Use | Say, **context: Any) -> tuple[list[tuple[str, JsonMap]], JsonMap]:
    """What a turn says of how its replies were read, and the counts of replies that had to be mended."""
    write_files(folder, FILES)
    machine = build_graph(model=ScriptedModel([message_of(reply, TEXT) for reply in replies]))
    settings = AgentContext(**{"workspace": str(folder), "protocol": "text", **context})
    request: Any = {"messages": [HumanMessage("Look at a.py.")]}
    parts: list[Any] = list(machine.stream(request, context=settings, stream_mode=["custom", "values"]))
    told = [part for mode, part in parts if mode == "custom" and part.get("name", "").startswith("reply.")]
    assert all((part["type"], part["step_id"], bool(part["run_id"])) == ("trace", "0", True) for part in told)
    mended = {name: count for name, count in parts[-1][1]["outcome"].usage.items() if name.startswith("replies_")}
    return [(part["name"], part["payload"]) for part in told], mended


@pytest.mark.parametrize(
    ("replies", "told", "mended"),
    [
        ((READ, DONE), [], {}),
        (
            (PRINTED, DONE),
            [("reply.rescued", {"format": "json"})],
            {"replies_rescued": 1, "replies_in_format": {"json": 1}},
        ),
        ((INVENTING, DONE), [("reply.cut", {})], {"replies_cut": 1}),
        ((BROKEN, READ, DONE), [], {"replies_asked_again": 1, "replies_healed": 1}),
        (
            (BROKEN, INVENTING, PRINTED, DONE),
            [("reply.cut", {}), ("reply.rescued", {"format": "json"})],
            {
                "replies_rescued": 1,
                "replies_asked_again": 1,
                "replies_healed": 1,
                "replies_cut": 1,
                "replies_in_format": {"json": 1},
            },
        ),
        (
            (PRINTED, PRINTED_B, PRINTED_C, DONE),
            [("reply.rescued", {"format": "json"})] * 2,
            {"replies_rescued": 3, "replies_in_format": {"json": 3}},
        ),
        ((BROKEN,) * 4, [], {"replies_asked_again": 3}),
    ],
)
@pytest.mark.parametrize("read_ahead", [True, False])
def test_what_had_to_be_mended_is_told_and_counted(
    replies: tuple[Use | Say, ...],
    told: list[tuple[str, JsonMap]],
    mended: JsonMap,
    read_ahead: bool,
    tmp_path: Path,
) -> None:
    assert heard(tmp_path, *replies, read_ahead=read_ahead) == (told, mended)
