"""A literal that a model writes under a secret's name runs as it is written, and nothing that is kept holds it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine import redaction, tool_runtime
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.runs.run import run_task
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.records import OutcomeKind, Protocol, StopReason
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.graph.runs.run_plays import context, project, use
from tests.runs.scenario import message_of, use as using

GIVEN, FOUND = "plugh-1234-xyzzy", "quux-98765-quux"


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """The environments that secrets were looked for in."""
    return counted(monkeypatch, redaction, "known_values")


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """The argument of each call that the module makes of this function."""
    calls: list[Any] = []
    function = getattr(module, name)

    def counting(argument: Any) -> Any:
        calls.append(argument)
        return function(argument)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_a_run_looks_for_secrets_once_and_each_step_asks_for_its_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: list[Mapping[str, str]]
) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    folders = counted(monkeypatch, tool_runtime, "run_folder")
    one, two = (
        using(*(("read_file", {"path": "a.py", "limit": lines + 1}) for lines in range(each))) for each in (1, 2)
    )
    model = ScriptedModel([message_of(each, Protocol.NATIVE) for each in (one, two, Say("Done."))])
    result = run_task("Look.", AgentContext(workspace=str(tmp_path)), model=model, thread_id="t")
    assert result.outcome.kind is OutcomeKind.FINISHED
    assert len(looked) == 1
    assert folders == ["t"] * 3  # at the start, to see whether there is one, and in each step


ONE, TWO = "x8KqqP2" + "zz1", "Tr0ub4d" + "or9Kx"
CODE = "password = '{}'\n"
CONFIG = {"configurable": {"thread_id": "t"}}
WRITE = (
    ("write_file", {"path": "a.py", "content": CODE.format(ONE)}),
    ("write_file", {"path": "b.py", "content": CODE.format(TWO)}),
)
SAID = f"The file holds password = '{ONE}' now."
TEXT = f'tool: write_file({{"path": "a.py", "content": "password = \'{ONE}\'\\n"}})'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


def kept(value: Any) -> Iterator[str]:
    """All texts in what a saver holds, whatever they are packed in."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from kept(key)
            yield from kept(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from kept(each)
    else:
        yield value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def holds(saver: InMemorySaver) -> str:
    return "\n".join(kept([saver.storage, dict(saver.writes), dict(saver.blobs)]))


def machine(saver: InMemorySaver, *lines: Line) -> Any:
    return build_graph(saver, model=HistoryModel(lines))


def start(folder: Path, **more: Any) -> dict[str, Any]:
    return {"input": {"messages": [HumanMessage("Write it.")]}, "config": CONFIG, "context": context(folder, **more)}


def test_it_runs_as_it_was_written_and_is_in_no_checkpoint_update_or_message(folder: Path) -> None:
    saver = InMemorySaver()
    graph = machine(saver, use(*WRITE), Say(SAID))
    told = list(graph.stream(**start(folder), stream_mode=["updates", "values", "custom", "debug"]))
    assert (folder / "a.py").read_text() == CODE.format(ONE)
    assert (folder / "b.py").read_text() == CODE.format(TWO)
    state = graph.get_state(CONFIG).values
    for shown in (holds(saver), repr(told), repr(state)):
        assert ONE not in shown
        assert TWO not in shown
    assert SAID.replace(ONE, MARK) in repr(state["outcome"])


def test_nor_what_was_asked_for_again(folder: Path) -> None:
    saver = InMemorySaver()
    broken = f'tool: write_file({{"path": "a.py", "content": "password = \'{ONE}\'"'
    machine(saver, Say(broken), Say("Done.")).invoke(**start(folder))
    assert MARK in holds(saver)
    assert ONE not in holds(saver)


@pytest.mark.parametrize("node", ["call_model", "parse", "guard"])
def test_another_process_refuses_the_call_and_the_model_writes_it_again(folder: Path, node: str) -> None:
    saver = InMemorySaver()
    dying = machine(saver, use(*WRITE[:1]))
    dying.invoke(**start(folder), interrupt_after=[node])
    assert not (folder / "a.py").exists()
    state = machine(saver, use(*WRITE[:1]), use(*WRITE[:1])).invoke(None, CONFIG)
    refused = [each.text for each in state["messages"] if each.type == "tool"]
    assert "write the call again with the value" in refused[0]
    assert (folder / "a.py").read_text() == CODE.format(ONE)
    assert ONE not in holds(saver)


def test_the_same_process_runs_it_after_an_interrupt(folder: Path) -> None:
    saver = InMemorySaver()
    graph = machine(saver, use(*WRITE))
    for node in ("call_model", "parse", "guard"):
        graph.invoke(
            **({**start(folder), "input": None} if node != "call_model" else start(folder)), interrupt_after=[node]
        )
    graph.invoke(None, CONFIG)
    assert (folder / "a.py").read_text() == CODE.format(ONE)
    assert (folder / "b.py").read_text() == CODE.format(TWO)


def test_a_person_is_asked_about_marks_and_allows_the_literal(folder: Path) -> None:
    saver = InMemorySaver()
    graph = machine(saver, use(*WRITE))
    asked = graph.invoke(**start(folder, mode="ask"))
    assert MARK in repr(asked["__interrupt__"])
    assert ONE not in repr(asked)
    graph.invoke(Command(resume="approve"), CONFIG)
    assert (folder / "a.py").read_text() == CODE.format(ONE)
    assert ONE not in holds(saver)


def test_what_a_provider_sealed_goes_back_byte_for_byte() -> None:
    from mendgraph.graph.machine.redaction import WrittenWords
    from mendgraph.nodes.execute_tools.secrets.redact import Redactor
    from mendgraph.nodes.records import ModelReply

    sealed = {"type": "thinking", "thinking": CODE.format(ONE), "signature": "s1"}
    open_block = {"type": "text", "text": CODE.format(ONE)}
    reply = ModelReply(text=CODE.format(ONE), provider={"content": [sealed, open_block]})
    words = WrittenWords(Redactor)
    hidden = words.hidden("run", {"reply": reply}, "reply")["reply"]
    assert hidden.provider == {"content": [sealed, {"type": "text", "text": CODE.format(MARK)}]}
    assert words.written("run", hidden) == reply
    assert words.written("another", hidden) == hidden


def same_id(content: str) -> Calls:
    """A call whose id the endpoint gives to every call."""
    return Calls([("write_file", json.dumps({"path": "a.py", "content": content}), "0")])


def test_a_mark_that_the_model_writes_is_never_what_it_wrote_before(folder: Path) -> None:
    graph = machine(
        InMemorySaver(),
        same_id(CODE.format(ONE)),
        Say("Done."),
        use(("read_file", {"path": "a.py"})),
        same_id(CODE.format(MARK)),
        Say("Done."),
    )
    graph.invoke(**start(folder))
    (folder / "a.py").write_text(CODE.format(TWO))  # a person puts another one there
    state = graph.invoke(**start(folder))
    assert (folder / "a.py").read_text() == CODE.format(TWO)
    assert "stands for a secret" in [each.text for each in state["messages"] if each.type == "tool"][-1]


def test_what_was_approved_is_not_another_call_of_the_same_marks(folder: Path) -> None:
    model = ScriptedModel([same_id(CODE.format(ONE)), same_id(CODE.format(TWO)), Say("Done.")])
    graph: Any = build_graph(InMemorySaver(), model=model)
    graph.invoke(**start(folder, mode="ask"))
    first = graph.get_state(CONFIG).config
    again = next(each.config for each in graph.get_state_history(CONFIG) if each.next == ("call_model",))
    graph.invoke(None, again)
    graph.invoke(Command(resume="approve"), first)
    assert not (folder / "a.py").exists()


def test_different_literals_are_no_repetition_and_equal_ones_are(folder: Path) -> None:
    written = [f"x8KqqP2zz{number}" for number in range(6)]
    graph = machine(InMemorySaver(), *[same_id(CODE.format(each)) for each in written], Say("Done."))
    state = graph.invoke(**start(folder))
    assert (folder / "a.py").read_text() == CODE.format(written[-1])
    assert "loop_override" not in repr(state["messages"])
    edit = ("edit_file", {"path": "none.py", "old_str": "a", "new_str": CODE.format(ONE)})
    state = machine(InMemorySaver(), *[use(edit)] * 8).invoke(**start(folder))
    assert state["outcome"].reason is StopReason.LOOP_PERSISTED
