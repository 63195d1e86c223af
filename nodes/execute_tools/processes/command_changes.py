"""What a command changed in the workspace: its files are known before it begins, and compared when it has ended.

The program itself is not asked. So what somebody else writes meanwhile is taken for the command's work; and nobody
watches `.git`, denied directories and what git ignores. Of files that are small, and not too many, the bytes before are
kept and recorded for an undo; the others are told by name. The second look sees with the eyes of the first: what was
ignored then, or could not be looked into, stays out of sight, so that no file seems to be new because somebody has
changed a `.gitignore` or opened a folder.
"""

import hashlib
import os
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
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_root
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.tree_walk import (
    DEEPEST,
    GIT_DIRECTORY,
    IGNORE_FILE,
    LARGEST_IGNORE_FILE,
    Entry,
    IgnoreRules,
)
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import ChangeKind

# --- What lies in a workspace at one time, as git would see it, and what the kernel says of each file unopened


class Status(NamedTuple):
    """What changes when a file does, and when another one takes its name; no program can set its ctime back."""

    device: int
    inode: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def is_regular(self) -> bool:
        """Whether it is a file with bytes: no link, pipe, socket or device."""
        return stat.S_ISREG(self.mode)


class Folder(NamedTuple):
    """The rules that hold in a directory, and what they hide there: names, with a "/" after those of directories."""

    rules: IgnoreRules
    ignored: frozenset[str]


@dataclass(frozen=True)
class Tree:
    """What one look saw. Names are relative to the workspace.

    `files` are all that is no directory. In `folders` and `closed` a name ends with "/", and "" is the workspace;
    `closed` are directories that could not be looked into. `began_ns` is the wall clock before the first file.
    """

    began_ns: int
    files: dict[str, Status] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def hides(self, name: str) -> bool:
        """Whether it lies below a directory that could not be looked into."""
        return bool(self.closed) and any(name.startswith(folder) for folder in self.closed)


class Unwatched(NamedTuple):
    """Why a workspace cannot be looked through, as a clause: "the workspace ..."."""

    reason: str


def look_through(
    paths: JudgedPaths, root_fd: int, *, most: int, deadline: float, known: Tree | None = None, again: bool = False
) -> Tree | Unwatched:
    """All that is there now, without `.git`, denied directories and what `.gitignore` files hide.

    It ends after `most` entries, and at `deadline` (of the monotonic clock). What `known` says of names under the same
    rules is not asked again; with `again` its rules hold on in every directory that it knows.
    """
    look = _Look(paths, root_fd, most, deadline, known or Tree(0), again=again)
    pending: list[tuple[str, IgnoreRules]] = [("", IgnoreRules())]
    try:
        while pending:
            pending += look.enter(*pending.pop())
    except _GivenUpError as error:
        return Unwatched(str(error))
    return look.tree


class _GivenUpError(Exception):
    """The message says why."""


class _Look:
    def __init__(
        self, paths: JudgedPaths, root_fd: int, most: int, deadline: float, known: Tree, *, again: bool
    ) -> None:
        self.tree = Tree(time.time_ns())
        self._paths, self._root_fd, self._known, self._again = paths, root_fd, known, again
        self._left, self._most, self._deadline = most, most, deadline

    def enter(self, folder: str, above: IgnoreRules) -> list[tuple[str, IgnoreRules]]:
        self._keep_time()
        parts = folder[:-1].split("/") if folder else []
        if len(parts) > DEEPEST or (self._again and folder in self._known.closed):
            self.tree.closed.add(folder)
            return []
        try:
            with closing(open_directory(self._root_fd, parts)) as here, os.scandir(here) as found:
                return self._note(folder, list(found), above)
        except FileNotFoundError:  # it was there a moment ago
            return []
        except OSError:
            self.tree.closed.add(folder)
            return []

    def _note(
        self, folder: str, entries: "list[os.DirEntry[str]]", above: IgnoreRules
    ) -> list[tuple[str, IgnoreRules]]:
        self._left -= len(entries)
        if self._left < 0:
            raise _GivenUpError(f"the workspace has more than {self._most:,} files and directories")
        rules = self._rules(folder, entries, above)
        hidden = self._verdicts(folder, rules)
        ignored: list[str] = []
        inside: list[tuple[str, IgnoreRules]] = []
        for entry in entries:
            if entry.name.casefold() == GIT_DIRECTORY:
                continue
            self._keep_time()
            is_folder = entry.is_dir(follow_symlinks=False)
            if hidden(entry.name, is_folder):
                ignored.append(f"{entry.name}/" if is_folder else entry.name)
            elif not is_folder:
                self._note_file(f"{folder}{entry.name}", entry)
            elif self._paths.denial(f"{folder}{entry.name}", for_write=False) is None:
                inside.append((f"{folder}{entry.name}/", rules))
        self.tree.folders[folder] = Folder(rules, frozenset(ignored))
        return inside

    def _keep_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _GivenUpError("the workspace could not be looked through in time")

    def _note_file(self, name: str, entry: "os.DirEntry[str]") -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        self.tree.files[name] = Status(
            found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        )

    def _rules(self, folder: str, entries: "list[os.DirEntry[str]]", above: IgnoreRules) -> IgnoreRules:
        """The rules in a directory: the very ones that are known of it, where they are the same."""
        known = self._known.folders.get(folder)
        if known is not None and self._again:
            return known.rules
        own = [entry for entry in entries if entry.name == IGNORE_FILE and entry.is_file(follow_symlinks=False)]
        rules = above.within(
            folder[:-1] or ".", [Entry(f"{folder}{IGNORE_FILE}", "file", 0)] if own else [], self._read
        )
        return known.rules if known is not None and known.rules == rules else rules

    def _read(self, name: str) -> bytes:
        with BeneathReader(self._paths, self._root_fd) as reader:
            return reader.read(name, LARGEST_IGNORE_FILE) or b""

    def _verdicts(self, folder: str, rules: IgnoreRules) -> Callable[[str, bool], bool]:
        """(name, is it a directory?) -> whether it is hidden. To ask the rules takes longer than all else here."""
        known = self._known.folders.get(folder)
        same = known if known is not None and known.rules is rules else None
        seen_files, seen_folders = self._known.files, self._known.folders

        def hidden(name: str, is_folder: bool) -> bool:
            if same is not None:
                whole = f"{name}/" if is_folder else name
                if whole in same.ignored:
                    return True
                if f"{folder}{whole}" in (seen_folders if is_folder else seen_files):
                    return False
            return rules.ignores(Entry(f"{folder}{name}", "directory" if is_folder else "file", 0))

        return hidden


# --- What a command changed

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

    Raises StoreError: it could not be written.
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
