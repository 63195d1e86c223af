"""What a run keeps in its own folder: its log, and results that are too large to show."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.runs.events import Ended, Event, Traced
from mendgraph.graph.runs.run import Session, run_task
from mendgraph.nodes.execute_tools.registry import tool
from mendgraph.nodes.execute_tools.store.run_folder import folder_name
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect, JsonMap, OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.workspace_files import write_files

DONE = Say("Done.")
READ = use(("read_file", {"path": "a.py"}))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, beside the folder that the runs' own files go to."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", {"a.py": "a = 1\n"})
    return tmp_path / "root"


def events_of(root: Path, *replies: Use | Say, **more: Any) -> list[Event]:
    model = ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])
    with Session(AgentContext(workspace=str(root)), model=model, thread_id="t", **more) as session:
        return list(session.stream("Look."))


def reasons(events: list[Event]) -> list[str]:
    """Why there is no log."""
    found = [event for event in events if isinstance(event, Traced) and event.name == "audit.unavailable"]
    return [str(event.payload["reason"]) for event in found]


def ran(root: Path, *replies: Use | Say, thread: str = "t", **more: Any) -> ScriptedModel:
    """The model of a run, with what it was sent."""
    model = ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])
    context = AgentContext(workspace=str(root), max_input_tokens_per_session=10**7)
    run_task("Look.", context, model=model, thread_id=thread, tools=(*default_tools(), recite), **more)
    return model


def results_of(model: ScriptedModel, call: int) -> list[JsonMap]:
    """The results that the model saw in a call, counted from 0."""
    return [json.loads(each["content"]) for each in model.calls[call].prompt.messages if each["role"] == "tool"]


WIDE = "x" * 92
LONG = "".join(f"{number:06} {WIDE}\n" for number in range(2_000))


@tool(effect=Effect.NONE)
def recite() -> str:
    """Give back 200 kB of text, in lines of 100 characters."""
    return LONG


RECITE = use(("recite", {}))


def page(start: int) -> Use:
    return use(("read_file", {"path": "@result/1", "start_line": start, "limit": 400}))


def test_large_result_is_kept_and_read_page_by_page(root: Path, tmp_path: Path) -> None:
    starts = (1, 401, 801, 1_201, 1_601)
    model = ran(root, RECITE, *map(page, starts), DONE)
    [result] = results_of(model, 1)
    assert len(json.dumps(result)) < 66_000
    assert result["data"]["clipped"][-1] == 'all of it: read_file path="@result/1"'
    pages = [each["data"] for each in results_of(model, 6)[1:]]
    assert "".join(each["content"] for each in pages) == LONG
    assert [(each["path"], each["has_more"]) for each in pages] == [*[("@result/1", True)] * 4, ("@result/1", False)]
    [kept] = (tmp_path / "data" / "runs" / folder_name("t")).glob("results-*/1.txt")
    assert (kept.stat().st_size, stat.S_IMODE(kept.stat().st_mode)) == (200_000, 0o600)


def test_kept_result_is_there_for_another_session_of_the_same_thread(root: Path) -> None:
    saver = InMemorySaver(serde=serializer())
    ran(root, RECITE, DONE, checkpointer=saver)
    model = ran(root, page(2_000), DONE, checkpointer=saver)
    assert results_of(model, 1)[-1]["data"]["content"] == f"001999 {WIDE}\n"


def test_another_workspace_does_not_see_it(root: Path, tmp_path: Path) -> None:
    ran(root, RECITE, DONE)
    write_files(tmp_path / "elsewhere", {"a.py": "a = 1\n"})
    model = ran(tmp_path / "elsewhere", page(1), DONE)
    [result] = results_of(model, 1)
    assert result["error"]["code"] == "not_found"


def test_another_thread_does_not_see_it(root: Path) -> None:
    ran(root, RECITE, DONE)
    model = ran(root, page(1), DONE, thread="other")
    [result] = results_of(model, 1)
    assert (result["error"]["code"], "None was kept in this run" in result["error"]["message"]) == ("not_found", True)


@pytest.mark.parametrize("name", ["write_file", "edit_file"])
def test_kept_result_is_never_written(name: str, root: Path) -> None:
    arguments: JsonMap = {"write_file": {"content": "x"}, "edit_file": {"old_str": "x", "new_str": "y"}}[name]
    model = ran(root, RECITE, use((name, {"path": "@result/1", **arguments})), DONE)
    error = results_of(model, 2)[-1]["error"]
    assert (error["code"], "is a kept result, which can only be read" in error["message"]) == ("invalid_argument", True)


def test_without_a_folder_a_large_result_is_only_cut(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root.parent / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(root.parent / "file"))
    model = ran(root, RECITE, DONE, checkpointer=InMemorySaver(serde=serializer()))
    [result] = results_of(model, 1)
    assert "@result" not in json.dumps(result)
    assert len(result["data"]["clipped"]) == 1


# --- Where the folder may be


@pytest.mark.parametrize("linked", [False, True], ids=["inside", "inside by a link"])
def test_log_inside_the_workspace_is_kept_from_the_agent(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    (tmp_path / "link").symlink_to(root / "data")
    (root / "data").mkdir()
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "link" if linked else root / "data"))
    other = "data/runs/other/audit.jsonl"
    write_files(root, {other: "a = 2\n"})
    attempts: list[tuple[str, JsonMap]] = [
        ("read_file", {"path": other}),
        ("read_file", {"path": "DATA/Runs/other/audit.jsonl"}),
        ("list_files", {"path": "data/runs/other"}),
        ("write_file", {"path": "data/runs/new.txt", "content": "x"}),
        ("search_files", {"pattern": "a = "}),
    ]
    model = ran(root, use(*attempts), DONE)
    *refused, found = results_of(model, 1)
    assert [each["error"]["code"] for each in refused] == ["permission_denied"] * 4
    assert [match["path"] for match in found["data"]["matches"]] == ["a.py"]
    log = root / "data" / "runs" / folder_name("t") / "audit.jsonl"
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    rules = [record["rule"] for record in records if record["event"] == "call"]
    assert rules == [*["run_records"] * 4, ""]


def test_folder_that_cannot_be_made_is_told(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a saver of one's own a run may look at files; what cannot be recorded is not changed."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "file"))
    saver = InMemorySaver(serde=serializer())
    events = events_of(root, READ, DONE, checkpointer=saver)
    [reason] = reasons(events)
    assert str(tmp_path / "file") in reason
    assert [event.outcome.kind for event in events if isinstance(event, Ended)] == [OutcomeKind.FINISHED]
    events = events_of(root, use(("write_file", {"path": "new.py", "content": "x"})), DONE, checkpointer=saver)
    (outcome,) = [event.outcome for event in events if isinstance(event, Ended)]
    assert (outcome.reason, str(tmp_path / "file") in outcome.message) == (StopReason.WORKSPACE_FAILED, True)
    assert not (root / "new.py").exists()


def test_without_a_folder_there_is_no_store_so_nothing_begins(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "file"))
    (ended,) = events_of(root, READ, DONE)
    assert isinstance(ended, Ended)
    assert (ended.outcome.kind, ended.outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.STORE_FAILED)
    assert str(tmp_path / "file") in ended.outcome.message
