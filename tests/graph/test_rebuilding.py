import errno
import os
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import BaseMessage

from graph.batch.copies import Copy, make_patch, prepare_copy
from graph.rebuilding import Rebuilt, rebuild_workspace
from graph.run import Session
from graph.runs import list_runs
from nodes.execute_tools.environment.database import StoreError, open_database, transaction
from nodes.execute_tools.environment.postgres_url import give_workspace_name
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE, workspace_folder
from nodes.execute_tools.environment.run_lock import Owner, WorkspaceLock
from nodes.records import ToolError, ToolErrorCode
from tests.doubles.history_model import HistoryModel
from tests.graph.run_plays import FILES, LINES, Killed, Mortal, context
from tests.nodes.execute_tools.environment.git_places import Tree, repository, tree
from tests.nodes.execute_tools.environment.journaled_runs import killed

RUN = "b-t"


class Ended(NamedTuple):
    """What a run has left behind."""

    files: Tree
    history: list[tuple[str, object]]
    patch: bytes | ToolError


class Machines:
    """Machines with a copy of one repository each, and one shared store."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self.source = repository(folder / "source", FILES)

    def copy(self, machine: str, name: str = "batch/b/t") -> Copy:
        """The copy on this machine, where we are from now on."""
        self._patch.setenv(DATA_DIR_VARIABLE, str(self._folder / machine / "data"))
        source: Any = SimpleNamespace(workspace=str(self.source), revision="")
        copy = prepare_copy(source, str(self._folder / machine / "copy"))
        assert isinstance(copy, Copy), copy
        assert give_workspace_name(records(copy), name) is None
        return copy


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_store: str) -> Machines:
    assert shared_store
    return Machines(tmp_path.resolve(), monkeypatch)


def records(copy: Copy) -> str:
    folder = workspace_folder(copy.root)
    assert isinstance(folder, str)
    return folder


def begin(copy: Copy, model: HistoryModel) -> None:
    with Session(context(Path(copy.root)), model=model, thread_id=RUN) as session:
        for _ in session.stream("Mend add."):
            pass


def begin_and_die(copy: Copy, replies: int) -> None:
    with pytest.raises(Killed):
        begin(copy, Mortal(LINES, replies))


def go_on(copy: Copy) -> Ended:
    """Resume the run, or begin it where nothing is known of it; what it has left."""
    known = list_runs(copy.root)
    assert not isinstance(known, ToolError), known
    with Session(context(Path(copy.root)), model=HistoryModel(LINES), thread_id=RUN) as session:
        for _ in session.resume() if known else session.stream("Mend add."):
            pass
        messages = session.result().messages
    return Ended(tree(Path(copy.root)), [_said(message) for message in messages], make_patch(copy))


def _said(message: BaseMessage) -> tuple[str, object]:
    return message.type, message.content


def rebuilt(copy: Copy) -> Rebuilt:
    found = rebuild_workspace(RUN, copy.root)
    assert isinstance(found, Rebuilt), found
    return found


def refusal(copy: Copy) -> str:
    found = rebuild_workspace(RUN, copy.root)
    assert isinstance(found, ToolError), found
    return f"{found.code.value}: {found.message}"


def test_a_run_that_was_cut_off_after_any_step_goes_on_elsewhere(machines: Machines) -> None:
    undisturbed = go_on(machines.copy("whole", "batch/b/whole"))
    for replies in range(len(LINES)):
        name = f"batch/b/{replies}"
        begin_and_die(machines.copy(f"{replies}/one", name), replies)
        second = machines.copy(f"{replies}/two", name)
        found = rebuilt(second)
        assert (set(found.written), set(found.removed), found.unfinished) == (
            {*["calc.py"][: replies > 1], *["pkg/new.py"][: replies > 2], *["docs/calc.md"][: replies > 3]},
            {*["notes.txt"][: replies > 4]},
            0,
        )
        assert rebuilt(second) == Rebuilt()
        assert go_on(second) == undisturbed, replies
        assert rebuilt(second) == Rebuilt()


def test_a_run_that_was_killed_in_the_middle_of_a_change_goes_on_elsewhere(machines: Machines) -> None:
    undisturbed = go_on(machines.copy("whole", "batch/b/whole"))
    unfinished = 0
    for nth in (2, 4, 6, 8):
        name = f"batch/b/{nth}"
        first = machines.copy(f"{nth}/one", name)
        assert killed(nth, partial(begin, first, HistoryModel(LINES)), frozenset({"os.rename", "os.link"}))
        second = machines.copy(f"{nth}/two", name)
        unfinished += rebuilt(second).unfinished
        assert go_on(second) == undisturbed, nth
    assert unfinished


def test_where_the_run_was_at_work_nothing_is_done(machines: Machines) -> None:
    first = machines.copy("one")
    begin_and_die(first, 4)
    before = tree(Path(first.root))
    assert rebuilt(first) == Rebuilt()
    assert tree(Path(first.root)) == before


def test_a_copy_that_is_not_what_the_run_began_with(machines: Machines) -> None:
    begin_and_die(machines.copy("one"), 4)
    second = machines.copy("two")
    (Path(second.root) / "calc.py").write_text("something else")
    before = tree(Path(second.root))
    assert refusal(second) == (
        "conflict: The files of this run cannot be made again here, so begin it anew: 'calc.py': the copy does not hold"
        " what the run began with."
    )
    assert tree(Path(second.root)) == before


def test_bytes_that_were_not_kept(machines: Machines) -> None:
    begin_and_die(machines.copy("one"), 4)
    second = machines.copy("two")
    before = tree(Path(second.root))
    with closing(open_database(records(second))) as database, transaction(database):
        database.execute("DELETE FROM backups")
    assert refusal(second).endswith("'calc.py': what it held was not kept, or is damaged.")
    assert tree(Path(second.root)) == before


def test_while_another_run_works_nothing_is_touched(machines: Machines) -> None:
    begin_and_die(machines.copy("one"), 4)
    second = machines.copy("two")
    with WorkspaceLock(records(second)) as lock:
        assert lock.acquire(Owner("other")) is None
        assert refusal(second).startswith("unavailable: Another run is at work in this workspace: run 'other', ")


def test_a_folder_or_a_store_that_is_not_there(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    second = machines.copy("two")
    monkeypatch.setenv(DATA_DIR_VARIABLE, f"{second.root}/calc.py")
    assert refusal(second).startswith("invalid_argument: Cannot make the workspace's data folder")
    machines.copy("two")
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "mysql://nobody")
    assert refusal(second).startswith("io_error: MENDGRAPH_STORE_URL is no URL of a PostgreSQL database")
    found = rebuild_workspace(RUN, f"{second.root}/nothing")
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.NOT_FOUND


def test_a_disk_that_refuses_is_told(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_and_die(machines.copy("one"), 4)
    second = machines.copy("two")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("nodes.execute_tools.environment.rebuilt_files.write_temporary", full)
        assert (
            refusal(second) == f"io_error: Cannot make the files of the run again in '{second.root}': the disk is full."
        )
    assert len(rebuilt(second).written) == 3


def test_a_journal_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise StoreError("The database is gone.")

    monkeypatch.setattr("graph.rebuilding.rebuild", failing)
    found = rebuild_workspace(RUN, str(tmp_path))
    assert found == ToolError(code=ToolErrorCode.IO_ERROR, message="The database is gone.")
