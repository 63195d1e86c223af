"""The journal of a workspace for one step: exclusive, and after recovery of everything that a kill left open."""

import errno
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.machine.workspace import (
    WorkspaceRecords,
    first_hashes,
    judged_workspace,
    kept_content,
    recover_open_changes,
)
from mendgraph.nodes.execute_tools.trace import TraceEvent, TraceSink
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState
from mendgraph.nodes.workspace.journal.journal import CallKey, Journal
from mendgraph.nodes.workspace.store import run_folder
from mendgraph.nodes.workspace.store.database import FILE_NAME
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock

OLD, NEW = b"old", b"new"
KEY = CallKey("run", "task", 1, 0, "write_file", "write", "f" * 64)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "root").mkdir()
    return str(tmp_path / "root")


@pytest.fixture
def folder(root: str) -> str:
    path = run_folder.workspace_folder(root)
    assert isinstance(path, str)
    return path


def journal_of(root: str, events: list[TraceEvent]) -> Any:
    with WorkspaceRecords().journal(root, "run", TraceSink("run", "1", forward=events.append), needed=True) as journal:
        return journal


def begin_a_change(folder: str) -> None:
    """A change of a.txt that is in the journal and incomplete."""
    effect = FileEffect("a.txt", FileState(sha256(OLD).hexdigest(), 0o644), FileState(sha256(NEW).hexdigest(), 0o644))
    journal = Journal(folder)
    journal.intend(journal.begin(KEY), "f" * 16, [effect], {effect.before.sha256: OLD}, [])


@pytest.mark.parametrize(
    ("on_disk", "state"), [(OLD, ChangeState.UNDONE), (NEW, ChangeState.DONE), (b"other", ChangeState.FOREIGN)]
)
def test_change_left_open_is_recovered_first_and_reported_once(
    root: str, folder: str, on_disk: bytes, state: ChangeState
) -> None:
    begin_a_change(folder)
    Path(root, "a.txt").write_bytes(on_disk)
    events: list[TraceEvent] = []
    run = journal_of(root, events).find("run", "task", 0)
    assert [change.state for change in run.changes] == [state]
    assert [(event.name, event.payload["state"]) for event in events] == [("journal.recovered", state.value)]
    assert Path(root, "a.txt").read_bytes() == on_disk
    events.clear()
    assert (isinstance(journal_of(root, events), Journal), events) == (True, [])


def test_workspace_is_locked_during_the_step_and_free_after_it(
    root: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WorkspaceRecords().journal(root, "run", TraceSink("run", "1"), needed=True):
        refused = RunLock(folder).acquire(Owner("other"))
        assert refused is not None
        assert "run 'run'" in refused.message
    monkeypatch.setattr("mendgraph.graph.machine.workspace.LONGEST_WAIT_S", 0.0)
    with RunLock(folder) as lock:
        assert lock.acquire(Owner("other")) is None
        busy = journal_of(root, [])  # waits for some time, then gets the name of the holder
        assert isinstance(busy, ToolError)
        assert busy.code is ToolErrorCode.UNAVAILABLE


def test_change_that_cannot_be_recovered_is_an_error_instead_of_a_journal(
    root: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_a_change(folder)

    def full(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mendgraph.nodes.workspace.journal.recovery.OpenFolders", full)
    message = "A change of 'a.txt' was cut off, and cannot be brought to an end yet: No space left on device."
    assert journal_of(root, []) == ToolError(code=ToolErrorCode.IO_ERROR, message=message)


@pytest.mark.parametrize(("effect", "remaining"), [("execute", []), ("write", [".git"])])
def test_empty_git_folder_of_a_killed_command_is_removed(
    root: str, folder: str, effect: str, remaining: list[str]
) -> None:
    Journal(folder).begin(KEY._replace(effect=effect))
    Path(root, ".git").mkdir()
    assert recover_open_changes(Journal(folder), root) == ()
    assert [path.name for path in Path(root).iterdir()] == remaining


def test_damaged_journal_is_an_error_that_names_the_file(root: str, folder: str) -> None:
    store = Path(folder, FILE_NAME)
    store.write_bytes(b"no database at all" * 100)
    result = journal_of(root, [])
    assert isinstance(result, ToolError)
    assert (result.code, str(store) in result.message) == (ToolErrorCode.IO_ERROR, True)
    assert (kept_content(root, "0" * 64), first_hashes(root, "run")) == (None, {})
    files, sink = judged_workspace(root, ()), TraceSink("run", "1", forward=lambda _: None)
    restored = WorkspaceRecords().take_back(files, "run", 1, sink, ["a.txt"])
    assert restored.sentence.startswith("The files could not be restored; `mendgraph undo` does that. The database ")
