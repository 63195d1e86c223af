"""What a command changed in the workspace: its files are known before it begins, and compared when it has ended.

The program itself is not asked. So what somebody else writes meanwhile is taken for the command's work; and nobody
watches `.git`, denied directories and what git ignores. Of files that are small, and not too many, the bytes before are
kept and recorded for an undo; the others are told by name.
"""

import hashlib
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from mendgraph.nodes.execute_tools.files.change_records import UNKNOWN_SHA256, ChangeRecorder, FileEffect, FileState
from mendgraph.nodes.execute_tools.files.file_changes import LARGEST_BACKUP
from mendgraph.nodes.execute_tools.files.file_reads import BeneathReader
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.processes.tree_status import Status, Tree, Unwatched, look_through
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import ChangeKind

_UNOPENED: Final = Unwatched("the workspace cannot be opened")

COARSEST_CLOCK_NS: Final = 2_000_000_000
"""Two writes within this time may leave the same times on a file. Source: FAT counts 2 s, Linux ticks up to 10 ms."""

_MOST_INDEXES: Final = 2
"""Workspaces whose files are remembered; each holds as many bytes as the limits allow."""


class WatchLimits(NamedTuple):
    """How much is done for the sake of one command.

    A workspace with more than `entries` files and directories is not watched: two looks at 20,000 of them take 0.3 s.
    The contents of at most `files` files of at most `file_bytes` are known, `all_bytes` together, those that were
    changed last first: to read 10,000 takes about 0.5 s, once, and they stay in memory. What is there afterwards is
    known by its hash at least, up to `hashed_bytes`, so that a large file that is new can be removed again. `before_s`
    seconds, which are the command's own, and `after_s`, which come on top, bound the two looks with what they read.
    """

    entries: int = 50_000
    files: int = 10_000
    file_bytes: int = 1_000_000
    all_bytes: int = 50_000_000
    hashed_bytes: int = LARGEST_BACKUP
    before_s: float = 2.0
    after_s: float = 1.0


class Content(NamedTuple):
    """The bytes of a file, and their hash. They hold as long as it has this status, if that is `sure`."""

    status: Status
    data: bytes
    sha256: str
    sure: bool


@dataclass
class FileIndex:
    """What was seen of a workspace last. Whoever uses it takes its `turn`."""

    tree: Tree | None = None
    contents: dict[str, Content] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def read(self, tree: Tree, reader: "_ContentReader") -> dict[str, Content]:
        """Remember a tree and the contents of its files, as far as the reader goes. Only what is new is read."""
        newest_first = sorted(tree.files.items(), key=lambda file: (-file[1].mtime_ns, file[0]))
        contents: dict[str, Content] = {}
        for name, status in sorted(file for file in newest_first if reader.allows(file[1])):
            known = self.contents.get(name)
            still = known is not None and known.sure and known.status == status
            content = known if still else reader.read(name, status)
            if content is not None:
                contents[name] = content
        self.tree, self.contents = tree, contents
        return contents


@lru_cache(maxsize=_MOST_INDEXES)
def file_index(root: str) -> FileIndex:  # noqa: ARG001 - it is the key of the cache
    """The index of the workspace with this real path."""
    return FileIndex()


class _ContentReader:
    """Reads contents for one look, which began at `began_ns`, until one of the limits is reached, or the deadline."""

    def __init__(self, files: BeneathReader, limits: WatchLimits, deadline: float, began_ns: int) -> None:
        self._reader, self._limits, self._deadline = files, limits, deadline
        self._sure_until_ns = began_ns - COARSEST_CLOCK_NS
        self._files, self._bytes = limits.files, limits.all_bytes

    def allows(self, status: Status) -> bool:
        size = status.size
        if not status.is_regular or self._files == 0 or size > min(self._limits.file_bytes, self._bytes):
            return False
        self._files, self._bytes = self._files - 1, self._bytes - size
        return True

    def read(self, name: str, status: Status) -> Content | None:
        if time.monotonic() > self._deadline:
            return None
        data = self._reader.read(name, self._limits.file_bytes)
        if data is None:
            return None
        return Content(status, data, hashlib.sha256(data).hexdigest(), status.ctime_ns < self._sure_until_ns)

    def sha256(self, name: str, status: Status) -> str | None:
        """The hash of a file whose content is not allowed; None where it cannot be had, or there is no time for it."""
        if not status.is_regular or status.size > self._limits.hashed_bytes or time.monotonic() > self._deadline:
            return None
        data = self._reader.read(name, self._limits.hashed_bytes)
        return None if data is None else hashlib.sha256(data).hexdigest()


class CommandChange(NamedTuple):
    """What became of one file. The hash of a state is `UNKNOWN_SHA256` where its bytes were not looked at.

    It can be taken back where both hashes are known; then the bytes before are here. Those after are, if they are few.
    """

    path: str
    kind: ChangeKind
    before: FileState
    after: FileState
    before_data: bytes | None = None
    after_data: bytes | None = None


class CommandChanges(NamedTuple):
    """All files that differ, by name, and the directories that are new, outermost first."""

    files: tuple[CommandChange, ...] = ()
    made: tuple[str, ...] = ()


class Snapshot(NamedTuple):
    """A workspace before a command."""

    tree: Tree
    contents: dict[str, Content]


def snapshot(paths: JudgedPaths, index: FileIndex, limits: WatchLimits, deadline: float) -> Snapshot | Unwatched:
    """The files that are there now, with the contents that the limits allow; what `index` has is not read again."""
    deadline = min(deadline, time.monotonic() + limits.before_s)
    try:
        with closing(open_root(paths.root)) as root, BeneathReader(paths, root) as files:
            tree = look_through(paths, root, most=limits.entries, deadline=deadline, known=index.tree)
            if isinstance(tree, Unwatched):
                return tree
            return Snapshot(tree, index.read(tree, _ContentReader(files, limits, deadline, tree.began_ns)))
    except OSError:
        return _UNOPENED


def changed(
    paths: JudgedPaths, index: FileIndex, limits: WatchLimits, before: Snapshot | Unwatched
) -> CommandChanges | Unwatched:
    """What differs now. `index` learns what is read."""
    if isinstance(before, Unwatched):
        return before
    deadline = time.monotonic() + limits.after_s
    try:
        with closing(open_root(paths.root)) as root, BeneathReader(paths, root) as files:
            after = look_through(paths, root, most=limits.entries, deadline=deadline, known=before.tree, again=True)
            if isinstance(after, Unwatched):
                return after
            reader = _ContentReader(files, limits, deadline, after.began_ns)
            comparison = _Comparison(paths, before, after, reader)
            changes = tuple(comparison.changes())
    except OSError:
        return _UNOPENED
    index.tree, index.contents = after, {**before.contents, **comparison.read}
    return CommandChanges(
        changes, tuple(sorted(name[:-1] for name in after.folders.keys() - before.tree.folders.keys()))
    )


class _Comparison:
    def __init__(self, paths: JudgedPaths, before: Snapshot, after: Tree, reader: _ContentReader) -> None:
        self._paths, self._before, self._after, self._reader = paths, before, after, reader
        self.read: dict[str, Content] = {}

    def changes(self) -> Iterator[CommandChange]:
        for name in sorted(self._before.tree.files.keys() | self._after.files.keys()):
            before, after = self._before.tree.files.get(name), self._after.files.get(name)
            content = self._before.contents.get(name)
            if before == after and (content is None or content.sure):
                continue
            if after is not None or not self._after.hides(name):
                change = self._compared(name, before, after, content)
                if change is not None:
                    yield change

    def _compared(
        self, name: str, before: Status | None, after: Status | None, old: Content | None
    ) -> CommandChange | None:
        new = self._reader.read(name, after) if after is not None and self._reader.allows(after) else None
        if new is not None:
            self.read[name] = new
        if before == after and new is None:  # nothing speaks for a change
            return None
        if old is not None and self._paths.denial(name, for_write=False) is not None:
            old = None  # other rules held when it was read
        sha256 = self._hash(name, after, new)
        was, now = _state(before, old and old.sha256), _state(after, sha256)
        if was == now and old is not None:
            return None
        kind = ChangeKind.CREATED if before is None else ChangeKind.DELETED if after is None else ChangeKind.EDITED
        return CommandChange(name, kind, was, now, old and old.data, new.data if new and sha256 else None)

    def _hash(self, name: str, status: Status | None, content: Content | None) -> str | None:
        if status is None or self._is_moved(name, status):
            return None
        return self._reader.sha256(name, status) if content is None else content.sha256

    def _is_moved(self, name: str, status: Status) -> bool:
        """Whether this is all that is left of a file whose content nobody has kept, so that nobody may take it back."""
        origin = self._origins.get(_identity(status), name)
        left = self._after.files.get(origin)
        return origin not in self._before.contents and (left is None or left.inode != status.inode)

    @cached_property
    def _origins(self) -> dict[tuple[int, ...], str]:
        return {_identity(status): name for name, status in self._before.tree.files.items()}


def _identity(status: Status) -> tuple[int, ...]:
    """What a file keeps when it is moved; the number alone may have been given to a new one."""
    return status.device, status.inode, status.size, status.mtime_ns


def _state(status: Status | None, sha256: str | None) -> FileState:
    if status is None:
        return FileState()
    mode = stat.S_IMODE(status.mode) if status.is_regular else None
    return FileState(UNKNOWN_SHA256 if sha256 is None else sha256, mode)


Result = TypeVar("Result")

_LIMITS: Final = WatchLimits()


class WatchedRun(NamedTuple, Generic[Result]):
    """What was run gave `result`. `unrecorded` says why the changes could not be recorded, "" where nothing failed."""

    result: Result
    changes: CommandChanges | Unwatched
    unrecorded: str = ""


def watched(
    workspace: Workspace, run: Callable[[], Result], patience_s: float, limits: WatchLimits = _LIMITS
) -> WatchedRun[Result]:
    """Run something that may change the workspace; tell and record what it changed. Where it raises, that is recorded.

    `patience_s` seconds at most pass before it begins: for another command of this workspace to end, and for a look.
    """
    index, deadline = file_index(workspace.root), time.monotonic() + patience_s
    if not index.turn.acquire(timeout=min(max(patience_s, 0.0), threading.TIMEOUT_MAX)):
        return WatchedRun(run(), Unwatched("another command was at work in the workspace"))
    try:
        paths = workspace._paths.of_any_extension()  # noqa: SLF001 - what a program may change has any extension
        before = snapshot(paths, index, limits, deadline)
        try:
            result = run()
        except BaseException:
            with suppress(StoreError):
                record_changes(workspace.recorder, changed(paths, index, limits, before))
            raise
        changes = changed(paths, index, limits, before)
        try:
            record_changes(workspace.recorder, changes)
        except StoreError as error:
            return WatchedRun(result, changes, str(error))
        return WatchedRun(result, changes)
    finally:
        index.turn.release()


def record_changes(recorder: ChangeRecorder | None, changes: CommandChanges | Unwatched) -> None:
    """Write down what has happened, with the bytes before, so that it can be taken back, and those after.

    Raises:
        StoreError: it could not be written.
    """
    if recorder is None or isinstance(changes, Unwatched) or changes == CommandChanges():
        return
    effects = [FileEffect(each.path, each.before, each.after) for each in changes.files]
    backups = {
        state.sha256: data
        for each in changes.files
        for state, data in ((each.after, each.after_data), (each.before, each.before_data))
        if data is not None
    }
    recorder.add(secrets.token_hex(8), effects, backups, changes.made)
