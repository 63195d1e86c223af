"""Recorded changes of a workspace by tools and commands, and kills during them."""

import os
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState
from mendgraph.nodes.workspace.files.sandbox import PathJudge
from mendgraph.nodes.workspace.files.workspace import Change, ChangedFile, Workspace
from mendgraph.nodes.workspace.journal.journal import CallKey, Journal
from tests.workspace.files.layout import allow, sha

Tree = dict[str, tuple[int, bytes | None]]
"""Permission bits and bytes of each path; None for a directory."""

KILLED: Final = 77
EVENTS: Final = frozenset(
    ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "sqlite3.connect")
)
"""The audit events that Python raises before a change. Source: its table of audit events."""


def tree(root: Path) -> Tree:
    """The entries of the workspace."""
    return {
        path.relative_to(root).as_posix(): (
            stat.S_IMODE(path.lstat().st_mode),
            path.read_bytes() if path.is_file() else None,
        )
        for path in root.rglob("*")
    }


def files(tree: Tree) -> dict[str, FileState]:
    """The file states of a tree, as in the journal."""
    return {name: FileState(sha(data), mode) for name, (mode, data) in tree.items() if data is not None}


def directories(tree: Tree) -> set[str]:
    """The directories of a tree."""
    return {name for name, (_, data) in tree.items() if data is None}


class World:
    """A workspace with its journal, in `folder`."""

    def __init__(self, folder: Path, judge: PathJudge = allow) -> None:
        self.folder, self.root = folder, folder / "root"
        self.root.mkdir(exist_ok=True)
        (folder / "records").mkdir(exist_ok=True)
        self.journal = Journal(str(folder / "records"))
        self.workspace = Workspace(str(self.root), judge)
        self._calls = 0

    def call(self, step: int, run: str = "run") -> int:
        """Begin a call."""
        self._calls += 1
        return self.journal.begin(CallKey(run, f"task {step}", step, self._calls, "tool", "write", ""))

    def tool(self, step: int, *changes: Change, run: str = "run") -> tuple[ChangedFile, ...] | ToolError:
        """Change files as a tool does."""
        return self.workspace.recorded(self.journal.recorder(self.call(step, run))).change_files(changes)

    def done(self, step: int, *changes: Change, run: str = "run") -> None:
        """Change files as a tool does; the change must succeed."""
        done = self.tool(step, *changes, run=run)
        assert not isinstance(done, ToolError), done

    def command(self, step: int, act: Callable[[Path], object], run: str = "run") -> None:
        """Call `act` as a command, and record its changes afterwards."""
        call, before = self.call(step, run), tree(self.root)
        act(self.root)
        after = tree(self.root)
        was, now = files(before), files(after)
        changed = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
        new_folders = sorted(directories(after) - directories(before))
        if not changed and not new_folders:
            return
        effects = [FileEffect(name, was.get(name, FileState()), now.get(name, FileState())) for name in changed]
        backups = {was[name].sha256: before[name][1] or b"" for name in changed if name in was}
        token = f"command-{call}"
        self.journal.intend(call, token, effects, backups, new_folders)
        self.journal.settle(token, ChangeState.DONE)


def swap(root: Path, name: str, data: bytes) -> None:
    """Replace whatever is at the path by a file."""
    path = root / name
    for above in reversed(path.relative_to(root).parents):
        if (root / above).is_file():
            (root / above).unlink()
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def run_until_killed(nth: int, act: Callable[[], object], events: Sequence[str] | frozenset[str] = EVENTS) -> bool:
    """Call `act` in a forked process that exits before its n-th event; returns False if there are fewer events."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on, where a test has left a thread behind
        child = os.fork()
    if child == 0:
        _run_child(nth, act, events)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, KILLED}, f"the child ended with {status}"
    return status == KILLED


def _run_child(nth: int, act: Callable[[], object], events: Sequence[str] | frozenset[str]) -> None:
    """Call `act` and exit, so that no code of pytest runs in the child."""
    seen = 0

    def hook(event: str, _: tuple[object, ...]) -> None:
        nonlocal seen
        seen += event in events
        if seen == nth:
            os._exit(KILLED)

    status = 1
    try:
        sys.addaudithook(hook)
        act()
        status = 0
    finally:
        os._exit(status)
