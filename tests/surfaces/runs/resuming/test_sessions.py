"""Unusual uses of sessions: used twice, abandoned, undone, moved, pruned, never answered."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import (
    AgentContext,
    Asked,
    Ended,
    Event,
    Outcome,
    Session,
    StepDone,
    ToolError,
    ToolStarted,
    list_runs,
    open_run,
    prune_runs,
    serializer,
    undo_run,
)
from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
from mendgraph.nodes.workspace.store.run_folder import workspace_folder_path
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.doubles.tool_use import Use, message_of, use
from tests.extent import slow
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

MAKE = use(("write_file", {"path": "new.txt", "content": "made\n"}))
EDIT = use(("edit_file", {"path": "a.txt", "old_str": "old", "new_str": "new"}))
DONE = Say("All done.")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", {"a.txt": "old\n"})
    return tmp_path / "root"


def model(*lines: Use | Say) -> HistoryModel:
    return HistoryModel([message_of(line, Protocol.NATIVE) for line in lines])


def session(root: Path | str, *lines: Use | Say, thread_id: str = "t", saver: Any = None, **more: Any) -> Session:
    context = AgentContext(workspace=str(root), protocol="native", **more)
    return Session(context, model=model(*lines), thread_id=thread_id, checkpointer=saver)


def outcome(events: list[Event]) -> Outcome:
    assert isinstance(events[-1], Ended), events
    return events[-1].outcome


def is_free(root: Path) -> bool:
    with RunLock(workspace_folder_path(str(root))) as lock:
        return lock.acquire(Owner("test")) is None


def test_session_works_on_one_request_at_a_time(root: Path) -> None:
    with session(root, MAKE, DONE) as opened:
        first = opened.stream("Do it.")
        next(first)
        refused = outcome(list(opened.stream("And this.")))
        assert (refused.reason, "working on another request" in refused.message) == ("workspace_busy", True)
        assert not is_free(root)
        assert outcome(list(first)).kind == "FINISHED"
        assert is_free(root)
        assert outcome(list(opened.stream("And this."))).kind == "FINISHED"


def test_turn_cancelled_while_it_opens_leaves_nothing_locked(root: Path) -> None:
    async def all_events(events: Any) -> list[Event]:
        return [event async for event in events]

    async def cancelled() -> None:
        opened = session(root, DONE)
        turn = asyncio.ensure_future(all_events(opened.astream("Do it.")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert is_free(root)
        await opened.aclose()

    asyncio.run(cancelled())


def test_interrupt_while_the_end_is_written_leaves_nothing_locked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SqliteStoreSaver.put

    def put(self: SqliteStoreSaver, config: Any, checkpoint: Any, *arguments: Any) -> Any:
        if checkpoint["channel_values"].get("outcome") is not None:
            raise KeyboardInterrupt
        return real(self, config, checkpoint, *arguments)

    with session(root, DONE) as opened:
        monkeypatch.setattr(SqliteStoreSaver, "put", put)
        with pytest.raises(KeyboardInterrupt):
            list(opened.stream("Do it."))
        assert is_free(root)


@pytest.mark.parametrize("saver", [True, False])
def test_new_thread_cannot_be_resumed(root: Path, saver: bool) -> None:
    checkpointer = InMemorySaver(serde=serializer()) if saver else None
    with session(root, DONE, saver=checkpointer) as opened:
        ended = outcome(list(opened.resume()))
        assert ended.message == "There is nothing to continue: this thread has no request yet. Send it one."
        assert opened.result().outcome == ended
        list(opened.stream("Do it."))
        assert outcome(list(opened.answer("approve"))).reason == "invalid_request"


def test_pruned_run_does_not_continue_without_its_history(root: Path) -> None:
    with session(root, DONE) as opened:
        list(opened.stream("Do it."))
        prune_runs(str(root), keep=0)
        ended = outcome(list(opened.stream("And now?")))
        assert (ended.reason, "was removed meanwhile" in ended.message) == ("store_failed", True)
    assert list_runs(str(root)) == ()


def test_invalid_age_for_pruning_is_refused(root: Path) -> None:
    for days in (-1.0, 1e6, float("nan"), float("inf")):
        refused = prune_runs(str(root), older_than_days=days)
        assert isinstance(refused, ToolError)
        assert refused.code == "invalid_argument"


def test_undone_run_is_told_of_the_undo_when_it_is_resumed(root: Path) -> None:
    with session(root, MAKE, EDIT, DONE, max_calls_per_turn=1) as opened:
        assert outcome(list(opened.stream("Make and edit."))).reason == "max_calls_per_turn"
    undo_run("t", str(root))
    assert not (root / "new.txt").exists()
    heard = model(MAKE, Say("Told."), MAKE, DONE)
    taken_up = open_run("t", str(root), model=heard)
    assert isinstance(taken_up, Session)
    with taken_up:
        list(taken_up.resume())
    assert str(heard.calls[0].prompt.messages[-1]["content"]) == (
        "Your changes of the files were taken back since, so read them again. The task is: Make and edit."
    )


def test_relative_workspace_stays_the_same_after_chdir(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root.parent / "other").mkdir()
    monkeypatch.chdir(root)
    with session(".", MAKE, DONE) as opened:
        monkeypatch.chdir(root.parent / "other")
        list(opened.stream("Do it."))
    assert [change.path for change in opened.result().changes] == ["new.txt"]  # which is known after its end
    assert sorted(os.listdir(root)) == ["a.txt", "new.txt"]
    assert os.listdir(root.parent / "other") == []


def test_reused_thread_id_does_not_get_the_old_runs_results(root: Path) -> None:
    with session(root, MAKE, DONE, saver=InMemorySaver(serde=serializer())) as opened:
        list(opened.stream("Do it."))
    (root / "new.txt").unlink()
    with session(root, MAKE, DONE, saver=InMemorySaver(serde=serializer()), mode="ask") as opened:
        assert isinstance(list(opened.stream("Do it."))[-1], Asked)
        list(opened.stream("Something else."))
        history = opened.result().messages
    assert "The run was cut off before this call" in str(history[2].content)


@slow
def test_answer_from_another_process_reports_the_started_call(root: Path) -> None:
    with session(root, EDIT, MAKE, DONE, mode="ask") as opened:
        list(opened.stream("Do it."))
        assert isinstance(list(opened.answer("approve"))[-1], Asked)
    with session(root, EDIT, MAKE, DONE, mode="ask") as opened:
        events = list(opened.answer("approve"))
    started = [event.call for event in events if isinstance(event, ToolStarted) and not event.call.implied]
    assert [call.arguments["path"] for call in started] == ["new.txt"]
    done = [[change.path for change in event.changes] for event in events if isinstance(event, StepDone)]
    assert done[0] == ["a.txt", "new.txt"]


def test_run_without_a_home_directory_names_the_variable_to_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: object, **__: object) -> str:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MENDGRAPH_DATA_DIR")
    monkeypatch.setattr("platformdirs.user_data_dir", homeless)
    with session(root, DONE) as opened:
        ended = outcome(list(opened.stream("Do it.")))
    assert ended.message == "There is no home folder to keep runs in: set MENDGRAPH_DATA_DIR to one of your folders."
