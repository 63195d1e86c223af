"""Notes that runs keep for later ones: through the CLI, run_task, and a graph with a store."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from mendgraph import AgentContext, Asked, Session, ToolError, arun_task, build_graph, run_task
from mendgraph.graph import cli
from mendgraph.graph.configuration.loading import widening
from mendgraph.graph.configuration.memory import Memory
from mendgraph.graph.persistence.store import MEMORY_FILE, own_memory
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.vocabulary import Protocol

KEY = "ghp_" + "a8F3kLq9ZxT2vB7nM4cR6wY1pD5sH0jG2uE8"
NOTE = "The tests need `make db` first."


def remember_calls(*texts: str) -> Any:
    return message_of(use(*(("remember", {"text": text}) for text in texts)), Protocol.NATIVE)


def model(*script: Any) -> ScriptedModel:
    return ScriptedModel([*script, Say("Done.")])


def context(root: Path, **settings: Any) -> AgentContext:
    return AgentContext(workspace=str(root), evidence=False, protocol="native", **{"memory": True, **settings})


def sent_messages(played: ScriptedModel, call: int = 0) -> list[str]:
    return [str(message["content"]) for message in played.calls[call].prompt.messages]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_note_is_shown_in_later_runs_as_untrusted(root: Path, tmp_path: Path) -> None:
    first, second, other = (
        model(remember_calls(f"{NOTE}\n Or\u200b not.", NOTE, "", f"The key: {KEY}")),
        model(),
        model(),
    )
    run_task("Look around.", context(root), model=first)
    run_task("And now?", context(root), model=second)
    assert sent_messages(first)[-1] == "Look around."
    [note_text] = [message for message in sent_messages(second) if "And now?" in message]
    lines = note_text.split("\n")
    at = lines.index('<project_notes of="memory">')
    assert lines[at + 2 : at + 5] == [f"- {NOTE} Or not.", f"- {NOTE}", "</project_notes>"]
    assert "A note has 1 to 400 bytes" in sent_messages(first, 1)[-2]
    assert "which stands for a secret" in sent_messages(first, 1)[-1]
    (tmp_path / "other").mkdir()
    run_task("And now?", context(tmp_path / "other"), model=other)
    assert NOTE not in str(sent_messages(other))
    assert KEY not in str(Path(workspace_folder_path(str(root)), MEMORY_FILE).read_bytes())


def test_memory_setting_off_adds_nothing_to_the_prompt(root: Path) -> None:
    played = model(remember_calls(NOTE))
    result = run_task("Look around.", context(root, memory=False), model=played)
    assert "remember" not in str(played.calls[0].prompt)
    assert "Nothing is remembered in this run" in sent_messages(played, 1)[-1]
    assert result.outcome.kind == "FINISHED"
    assert not Path(workspace_folder_path(str(root)), MEMORY_FILE).exists()


def test_small_model_gets_no_notes_and_a_read_only_run_writes_none(root: Path) -> None:
    with own_memory(str(root)) as memory:
        memory.remember(NOTE, str)
    small, reading = model(), model(remember_calls("Another one."))
    run_task("Look around.", context(root, model="qwen2.5-coder-1.5b-instruct"), model=small)
    run_task("Look around.", context(root, mode="read-only"), model=reading)
    assert (NOTE in str(sent_messages(small)), "remember" in str(small.calls[0].prompt)) == (False, False)
    assert NOTE in str(sent_messages(reading))
    assert "Another one." not in str(note_texts(own_memory, root))


def note_texts(opened: Any, root: Path) -> list[str]:
    with opened(str(root)) as memory:
        return [note.text for note in memory.notes()]


def test_person_sees_the_note_first_in_mode_ask(root: Path) -> None:
    with Session(context(root, mode="ask"), model=model(remember_calls(NOTE))) as session:
        event = session.work("Look around.")
        assert isinstance(event, Asked)
        assert NOTE in json.dumps(event.request)
        session.work_on("reject")
    assert note_texts(own_memory, root) == []


def test_graph_keeps_notes_in_the_given_store(root: Path) -> None:
    store, played, again = InMemoryStore(), model(remember_calls(NOTE)), model()
    for run_model in (played, again):
        graph = build_graph(model=run_model, store=store, context=context(root))
        asyncio.run(graph.ainvoke({"messages": [HumanMessage("Look around.")]}))
    assert [note.text for note in _notes(store, root)] == [NOTE]
    assert NOTE in str(sent_messages(again))
    asyncio.run(arun_task("And now?", context(root), model=model(), store=store))
    assert not Path(workspace_folder_path(str(root)), MEMORY_FILE).exists()


def _notes(store: BaseStore, root: Path) -> list[Any]:
    result = Memory(store, str(root)).notes()
    assert not isinstance(result, ToolError)
    return result


class Broken(InMemoryStore):
    def batch(self, _: Any) -> Any:
        raise ConnectionError("gone")


@pytest.mark.parametrize(("store", "reason"), [(None, "pass one to build_graph"), (Broken(), "ConnectionError: gone")])
def test_run_continues_without_a_working_store_and_reports_it(root: Path, store: Any, reason: str) -> None:
    played = model()
    graph = build_graph(model=played, store=store, context=context(root))
    events = [*graph.stream({"messages": [HumanMessage("Look around.")]}, stream_mode="custom")]
    [event] = [event for event in events if event.get("name") == "memory.unavailable"]
    assert reason in event["payload"]["reason"]
    assert "remember" not in str(played.calls[0].prompt)


def test_memory_holds_at_most_forty_notes_and_four_thousand_bytes(root: Path) -> None:
    many, long = Memory(InMemoryStore(), str(root)), Memory(InMemoryStore(), str(root))
    for number in range(41):
        many.remember(f"Note {number}", str)
    notes = many.notes()
    assert not isinstance(notes, ToolError)
    assert [note.text for note in notes] == [f"Note {number}" for number in range(1, 41)]

    for number in range(11):
        assert long.remember(f"{number:02}{'ä' * 199}", str) == f"{number:02}{'ä' * 199}"
    refused = long.remember(f"{'ä' * 200}x", str)
    notes = long.notes()
    assert not isinstance(notes, ToolError)
    assert [note.text[:2] for note in notes] == [f"{number:02}" for number in range(1, 11)]
    assert isinstance(refused, ToolError)
    assert "A note has 1 to 400 bytes, and this one 401" in refused.message


def test_note_is_one_line_without_invisible_characters(root: Path) -> None:
    memory = Memory(InMemoryStore(), str(root))
    assert memory.remember("Use\u200b make\n  db.\u202e", str) == "Use make db."
    assert memory.remember(f"The key: {KEY}", Redactor().text) == "The key: [redacted secret]"
    refused = memory.remember("\u200b\n", str)
    assert isinstance(refused, ToolError)
    assert "and this one 0" in refused.message


def test_workspace_settings_can_only_turn_memory_off() -> None:
    assert widening({"memory": True}, AgentContext()) == ("memory",)
    assert widening({"memory": False}, AgentContext(memory=True)) == ()


def test_memory_command_lists_and_removes_notes(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)

    def run_command(*words: str) -> tuple[int, str, str]:
        code = cli.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    assert run_command("memory") == (0, "There are no notes in this folder.\n", "")
    assert run_command("memory", "forget", "--all") == (0, "forgot 0 notes\n", "")
    assert not Path(workspace_folder_path(str(root)), MEMORY_FILE).exists()
    run_task("Look around.", context(root), model=model(remember_calls(NOTE, "One more.")))
    code, out, _ = run_command("memory", "--json")
    notes = json.loads(out)
    assert (code, [note["text"] for note in notes]) == (0, [NOTE, "One more."])
    assert run_command("memory")[1].splitlines()[0] == f"{notes[0]['id']} {notes[0]['at'][:10]} {NOTE}"
    assert run_command("memory", "forget")[0] == 2
    assert "There is no note 'x'" in run_command("memory", "forget", "x")[2]
    assert run_command("memory", "forget", notes[0]["id"]) == (0, "forgot 1 note\n", "")
    assert note_texts(own_memory, root) == ["One more."]
    assert json.loads(run_command("memory", "forget", "--all", "--json")[1]) == {"forgotten": [notes[1]["id"]]}
    assert note_texts(own_memory, root) == []


def test_invalid_memory_file_ends_the_run_with_store_failed(root: Path) -> None:
    with own_memory(str(root)):
        path = Path(workspace_folder_path(str(root)), MEMORY_FILE)
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE theirs (id)").connection.close()
    result = run_task("Look around.", context(root), model=model())
    assert result.outcome.reason == "store_failed"
    assert "is not a memory of mendgraph" in result.outcome.message
