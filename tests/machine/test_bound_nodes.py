"""How the nodes are bound to the turn's context, to the tools and to the model: tested by the calls that they make."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.serializer import serializer
from mendgraph.nodes.execute_tools.node import execute_tools
from mendgraph.nodes.records import JsonMap, OutcomeKind, ProviderErrorKind, ProviderFailure, StopReason
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.extent import slow
from tests.row_tables import rows
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

FILES = {"a.py": "a = 1\n"}
THREAD: Any = {"configurable": {"thread_id": "t"}}
DONE = Say("Done.")
TEXT = Protocol.TEXT


def run_turn(folder: Path, *replies: Use | Say, protocol: Protocol = Protocol.NATIVE, **context: Any) -> JsonMap:
    """The values of a thread after one turn, with the model as `values["model"]`."""
    write_files(folder, FILES)
    model = ScriptedModel([message_of(reply, protocol) for reply in replies])
    machine = build_graph(InMemorySaver(serde=serializer()), model=model)
    settings = AgentContext(**{"workspace": str(folder), "protocol": protocol.value, **context})
    machine.invoke({"messages": [HumanMessage("Look at a.py.")]}, THREAD, context=settings)
    return {**machine.get_state(THREAD).values, "model": model}


UNUSABLE: list[tuple[JsonMap, str]] = [
    ({"workspace": "/no/such/folder"}, "/no/such/folder"),
    ({"workspace": "/"}, "/"),
    ({"workspace": "/etc"}, "/etc"),
    ({"response_format": {"type": "objekt"}}, "response_format is not a JSON schema"),
]


@rows(*UNUSABLE)
def test_invalid_setting_ends_the_turn_before_any_model_call(context: JsonMap, words: str, tmp_path: Path) -> None:
    values = run_turn(tmp_path, DONE, **context)
    outcome = values["outcome"]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.INVALID_REQUEST)
    assert words in outcome.message
    assert (values["model"].calls, outcome.usage["total_calls"]) == ([], 0)


def test_files_read_in_an_interrupted_step_are_known_to_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*arguments: Any) -> None:
        execute_tools(*arguments)
        raise KeyboardInterrupt

    write_files(tmp_path, FILES)
    calls = use(("read_file", {"path": "a.py"}), ("write_file", {"path": "b.py", "content": "b = 1\n"}))
    machine = build_graph(InMemorySaver(serde=serializer()), model=ScriptedModel([message_of(calls, TEXT), DONE, DONE]))
    ask: Any = ({"messages": [HumanMessage("Go on.")]}, THREAD)
    context = AgentContext(workspace=str(tmp_path), protocol="text", evidence=False)
    with monkeypatch.context() as patch:
        patch.setattr("mendgraph.graph.machine.tool_step.execute_tools", cut_off)
        with pytest.raises(KeyboardInterrupt):
            machine.invoke(*ask, context=context)
    machine.invoke(*ask, context=context)
    expected = {path: sha256((tmp_path / path).read_bytes()).hexdigest() for path in ("a.py", "b.py")}
    assert machine.get_state(THREAD).values["files_read"] == expected


def test_window_size_from_a_context_overflow_is_forgotten_in_the_next_turn(tmp_path: Path) -> None:
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
BROKEN = Say('tool: reed({"path": "a.py"})')
READ = use(("read_file", {"path": "a.py"}))


MENDED: list[tuple[tuple[Use | Say, ...], list[tuple[str, JsonMap]], JsonMap]] = [
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
    ((BROKEN,) * 4, [], {"replies_asked_again": 3}),
]


@slow
def test_repaired_replies_are_reported_and_counted(tmp_path: Path, subtests: pytest.Subtests) -> None:
    write_files(tmp_path, FILES)
    request: Any = {"messages": [HumanMessage("Look at a.py.")]}
    for number, (replies, events, counts) in enumerate(MENDED):
        settings = AgentContext(workspace=str(tmp_path), protocol="text", read_ahead=bool(number % 2))
        with subtests.test(counts=counts):
            machine = build_graph(model=ScriptedModel([message_of(reply, TEXT) for reply in replies]))
            parts: list[Any] = list(machine.stream(request, context=settings, stream_mode=["custom", "values"]))
            reports = [part for mode, part in parts if mode == "custom" and part.get("name", "").startswith("reply.")]
            assert [(part["name"], part["payload"]) for part in reports] == events
            assert all(
                (part["type"], part["step_id"], bool(part["run_id"])) == ("trace", "0", True) for part in reports
            )
            usage = parts[-1][1]["outcome"].usage
            assert {name: count for name, count in usage.items() if name.startswith("replies_")} == counts
