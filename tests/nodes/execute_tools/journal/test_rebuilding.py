import os
import shutil
import stat
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import BaseMessage

from mendgraph.graph.runs.run import Session
from mendgraph.graph.runs.runs import list_runs
from mendgraph.nodes.execute_tools.copies.workspace_copies import Copy, compare_copy, make_copy
from mendgraph.nodes.execute_tools.files.change_records import (
    UNKNOWN_SHA256,
    ChangeState,
    FileEffect,
    FileState,
    RecordedChange,
)
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.journal.restoring import Rebuilt, rebuild, rebuild_workspace
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE, give_workspace_name, workspace_folder
from mendgraph.nodes.execute_tools.store.run_lock import Owner, WorkspaceLock
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.doubles.history_model import HistoryModel
from tests.graph.runs.run_plays import FILES, LINES, Killed, Mortal, context
from tests.nodes.execute_tools.files.layout import sha
from tests.nodes.execute_tools.processes.git_places import Tree, repository, tree


class Kept(Journal):
    """A journal that says this, and has kept these bytes."""

    def __init__(self, folder: Path, changes: list[RecordedChange], *kept: bytes) -> None:
        super().__init__(str(folder))
        self._said, self._kept = changes, {sha(data): data for data in kept}

    def all_changes(self) -> list[RecordedChange]:
        return self._said

    def backup(self, sha256: str) -> bytes | None:
        return self._kept.get(sha256)


def state(data: bytes, mode: int | None = 0o644) -> FileState:
    return FileState(sha(data), mode)


NONE = FileState()
CHANGES = [
    RecordedChange(
        "one",
        1,
        1,
        (
            FileEffect("new/a", NONE, state(b"a", 0o755)),
            FileEffect("edited", state(b"old"), state(b"new")),
            FileEffect("gone", state(b"gone"), NONE),
            FileEffect("mode", state(b"mode"), state(b"mode", 0o755)),
            FileEffect("d", state(b"file"), NONE),
            FileEffect("d/x", NONE, state(b"x")),
        ),
        ("new", "empty", "empty/inner"),
        ChangeState.DONE,
    ),
    RecordedChange("two", 2, 2, (FileEffect("edited", state(b"new"), NONE),), (), ChangeState.INTENDED),
]


def beginning(root: Path) -> Path:
    root.mkdir()
    for name, data in (("edited", b"old"), ("gone", b"gone"), ("mode", b"mode"), ("d", b"file"), ("other", b"other")):
        (root / name).write_bytes(data)
        (root / name).chmod(0o640)
    return root


def test_a_fresh_copy_becomes_what_the_run_has_left(tmp_path: Path) -> None:
    root = beginning(tmp_path / "root")
    journal = Kept(tmp_path, CHANGES, b"a", b"new", b"x")
    assert rebuild(journal, str(root)) == Rebuilt(("d/x", "edited", "mode", "new/a"), ("d", "gone"), 1)
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    assert {name: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for name, path in files.items()} == {
        "new/a": (b"a", 0o755),
        "edited": (b"new", 0o640),
        "mode": (b"mode", 0o755),
        "d/x": (b"x", 0o644),
        "other": (b"other", 0o640),
    }
    assert (root / "empty/inner").is_dir()
    assert rebuild(journal, str(root)) == Rebuilt(unfinished=1)


def test_after_a_kill_the_same_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = beginning(tmp_path / "root")
    journal = Kept(tmp_path, CHANGES, b"a", b"new", b"x")
    real = os.rename
    for nth in range(1, 5):
        left = [None] * nth

        def rename(*arguments: str, left: list[None] = left, **named: Any) -> None:
            left.pop()
            if not left:
                raise KeyboardInterrupt
            real(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            with pytest.raises(KeyboardInterrupt):
                rebuild(journal, str(root))
        assert list(root.rglob("*.mendgraph-tmp"))
        assert isinstance(rebuild(journal, str(root)), Rebuilt)
        assert list(root.rglob("*.mendgraph-tmp")) == []
        shutil.rmtree(root)
        beginning(root)


def test_nothing_is_touched_where_bytes_are_missing_or_damaged(tmp_path: Path) -> None:
    root = beginning(tmp_path / "root")
    before = sorted(root.rglob("*"))
    for kept in ((b"a", b"new"), (b"new", b"x")):
        found = rebuild(Kept(tmp_path, CHANGES, *kept), str(root))
        assert isinstance(found, ToolError)
        assert found.code is ToolErrorCode.CONFLICT
        assert found.message.endswith("what it held was not kept, or is damaged.")
    damaged = Kept(tmp_path, CHANGES, b"a", b"new", b"x")
    damaged._kept[sha(b"a")] = b"other"
    assert isinstance(rebuild(damaged, str(root)), ToolError)
    assert sorted(root.rglob("*")) == before


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    root, outside = beginning(tmp_path / "root"), tmp_path / "outside"
    outside.mkdir()
    (root / "new").symlink_to(outside)
    found = rebuild(Kept(tmp_path, CHANGES, b"a", b"new", b"x"), str(root))
    assert isinstance(found, ToolError)
    assert os.listdir(outside) == []


DONE = ChangeState.DONE


def change(*effects: tuple[str, FileState, FileState], state: ChangeState = DONE) -> RecordedChange:
    return RecordedChange("token", 1, 1, tuple(FileEffect(*each) for each in effects), (), state)


ONE, TWO, UNKNOWN = state(b"1"), state(b"2"), FileState(UNKNOWN_SHA256, 0o644)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([change(("a", ONE, TWO), state=ChangeState.FOREIGN)], "'a': somebody else has changed it"),
        ([change(("a", NONE, ONE)), change(("a", TWO, NONE))], "'a': it was changed also between two"),
        ([change(("a", NONE, state(b"1", 0o755))), change(("a", ONE, TWO))], "'a': it was changed also between two"),
        ([change(("a", ONE, UNKNOWN))], "'a': a command has changed it, and what it held then was not recorded"),
        ([change(("a", NONE, TWO))], "'a': the copy does not hold what the run began with"),
        ([change(("d", NONE, TWO))], "'d': something else is in its place"),
    ],
)
def test_what_cannot_be_told_is_not_made_again(tmp_path: Path, changes: list[RecordedChange], why: str) -> None:
    (tmp_path / "root/d").mkdir(parents=True)
    (tmp_path / "root/a").write_bytes(b"1")
    found = rebuild(Kept(tmp_path, changes, b"1", b"2"), str(tmp_path / "root"))
    assert isinstance(found, ToolError)
    assert found.message.partition("anew: ")[2].startswith(why)


def test_what_was_unknown_for_a_while_and_what_was_taken_back_does_not_matter(tmp_path: Path) -> None:
    changes = [
        change(("a", NONE, UNKNOWN)),
        change(("a", UNKNOWN, NONE), ("b", UNKNOWN, ONE)),
        change(("b", TWO, NONE), state=ChangeState.UNDONE),
        change(("b", ONE, NONE), state=ChangeState.REVERTED),
        change(("b", NONE, TWO)),
        change(("c", NONE, ONE)),
        change(("c", ONE, TWO), state=ChangeState.INTENDED),
    ]
    (tmp_path / "root").mkdir()
    (tmp_path / "root/b").write_bytes(b"other")
    (tmp_path / "root/c").write_bytes(b"2")
    assert rebuild(Kept(tmp_path, changes, b"2"), str(tmp_path / "root")) == Rebuilt(("b",), (), 1)
    assert tree(tmp_path / "root") == {"b": (False, b"2"), "c": (False, b"2")}


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
        copy = make_copy(str(self.source), "", str(self._folder / machine / "copy"))
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
    return Ended(tree(Path(copy.root)), [_said(message) for message in messages], compare_copy(copy.folder))


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
    for replies in (2, len(LINES) - 1):
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


def test_while_another_run_works_nothing_is_touched(machines: Machines) -> None:
    begin_and_die(machines.copy("one"), 4)
    second = machines.copy("two")
    with WorkspaceLock(records(second)) as lock:
        assert lock.acquire(Owner("other")) is None
        assert refusal(second).startswith("unavailable: Another run is at work in this workspace: run 'other', ")
