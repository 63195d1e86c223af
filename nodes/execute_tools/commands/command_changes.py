"""What a command changed in the workspace: its files are known before it begins, and compared when it has ended.

What somebody else writes meanwhile is taken for the command's work; nobody watches `.git`, denied directories and what
git ignores. Of files that are small, and not too many, the bytes before are kept for an undo; the others are told by
name. What was ignored at the first look, or could not be looked into, stays out of sight at the second.
"""

import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Generic, NamedTuple, Self, TypeVar

from mendgraph.nodes.execute_tools.files.change_records import UNKNOWN_SHA256, ChangeRecorder, FileEffect, FileState
from mendgraph.nodes.execute_tools.files.file_changes import LARGEST_BACKUP
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_root
from mendgraph.nodes.execute_tools.files.sandbox import JudgedPaths
from mendgraph.nodes.execute_tools.files.tree_walk import (
    DEEPEST,
    GIT_DIRECTORY,
    IGNORE_FILE,
    LARGEST_IGNORE_FILE,
    Entry,
    IgnoreRules,
)
from mendgraph.nodes.execute_tools.files.workspace import BeneathReader, Workspace
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

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        """What the kernel says."""
        return cls(found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def is_regular(self) -> bool:
        """Whether it is a file with bytes: no link, pipe, socket or device."""
        return stat.S_ISREG(self.mode)


class Folder(NamedTuple):
    """The rules of a directory, and their known verdicts: whether a name (a directory's with "/") is hidden."""

    rules: IgnoreRules
    hidden: dict[str, bool]


@dataclass(frozen=True)
class Tree:
    """What one look saw. Names are relative to the workspace.

    `files` are all that is no directory. In `folders` and `closed` a name ends with "/", and "" is the workspace;
    `closed` are directories that could not be looked into.
    """

    files: dict[str, Status] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)


class Unwatched(NamedTuple):
    """Why a workspace cannot be looked through, as a clause: "the workspace ..."."""

    reason: str


def look_through(
    paths: JudgedPaths, root_fd: int, *, most: int, deadline: float, known: Tree, again: bool = False
) -> Tree | Unwatched:
    """All that is there now, without `.git`, denied directories, bytecode, and what `.gitignore` files hide.

    It ends after `most` entries, and at `deadline` (of the monotonic clock). What `known` says of names under the same
    rules is not asked again; with `again` its rules hold on in every directory that it knows.
    """
    tree = Tree()
    pending: list[tuple[str, IgnoreRules]] = [("", IgnoreRules())]
    room = most

    while pending:
        folder, above = pending.pop()
        entries = None if again and folder in known.closed else _entries(root_fd, folder)
        if entries is None:
            tree.closed.add(folder)
            continue

        room -= len(entries)
        if room < 0:
            return Unwatched(f"the workspace has more than {most:,} files and directories")

        before = known.folders.get(folder)
        rules = before.rules if again and before else _rules(paths, root_fd, folder, entries, above)

        if before is not None and before.rules == rules:
            rules, verdicts = before
        else:
            verdicts = {}

        tree.folders[folder] = Folder(rules, verdicts)

        for entry_name, status in entries.items():
            if time.monotonic() > deadline:
                return Unwatched("the workspace could not be looked through in time")

            name = f"{folder}{entry_name}"
            is_folder = stat.S_ISDIR(status.mode)
            full_name = f"{entry_name}/" if is_folder else entry_name

            if full_name not in verdicts:  # to ask the rules takes longer than all else here
                entry = Entry(name, "directory" if is_folder else "file", 0)
                verdicts[full_name] = is_bytecode([entry_name]) or rules.ignores(entry)

            if verdicts[full_name]:
                continue

            if not is_folder:
                tree.files[name] = status
            elif paths.denial(name, for_write=False) is None:
                pending.append((f"{name}/", rules))

    return tree


def is_bytecode(parts: Sequence[str]) -> bool:
    """Whether Python makes a file with these parts of its name, or this folder, of source code."""
    return "__pycache__" in parts or parts[-1].endswith((".pyc", ".pyo"))


def _entries(root_fd: int, folder: str) -> dict[str, Status] | None:
    """What is in a directory, nothing where it is gone; None where it cannot be looked into."""
    entries: dict[str, Status] = {}
    parts = folder[:-1].split("/") if folder else []
    if len(parts) > DEEPEST:
        return None

    try:
        with closing(open_directory(root_fd, parts)) as folder_fd, os.scandir(folder_fd) as scan:
            for entry in scan:
                if entry.name.casefold() != GIT_DIRECTORY:
                    with suppress(FileNotFoundError):  # it was there a moment ago
                        entries[entry.name] = Status.of(entry.stat(follow_symlinks=False))
    except FileNotFoundError:  # the same
        return {}
    except OSError:
        return None

    return entries


def _rules(
    paths: JudgedPaths, root_fd: int, folder: str, entries: Mapping[str, Status], above: IgnoreRules
) -> IgnoreRules:
    def read(name: str) -> bytes:
        with BeneathReader(paths, root_fd) as reader:
            return reader.read(name, LARGEST_IGNORE_FILE) or b""

    has_ignore_file = IGNORE_FILE in entries and entries[IGNORE_FILE].is_regular
    return above.within(folder[:-1] or ".", [Entry(f"{folder}{IGNORE_FILE}", "file", 0)] * has_ignore_file, read)


# --- What a command changed

_UNOPENED: Final = Unwatched("the workspace cannot be opened")


class WatchLimits(NamedTuple):
    """How much is done for the sake of one command.

    A workspace with more than `entries` files and directories is not watched: two looks at 20,000 of them take 0.3 s.
    The contents of at most `files` files of at most `file_bytes` are known, `all_bytes` together, those that were
    changed last first: to read 10,000 takes about 0.5 s, once. Up to `hashed_bytes`, what is there afterwards is known
    by its hash. `before_s` seconds, which are the command's own, and `after_s`, which are not, bound the two looks.
    """

    entries: int = 50_000
    files: int = 10_000
    file_bytes: int = 1_000_000
    all_bytes: int = 50_000_000
    hashed_bytes: int = LARGEST_BACKUP
    before_s: float = 2.0
    after_s: float = 1.0


class Content(NamedTuple):
    """The bytes of a file, and their hash. They hold as long as it has this status."""

    status: Status
    data: bytes
    sha256: str


class Snapshot(NamedTuple):
    """What was seen of a workspace, and the contents that are known."""

    tree: Tree
    contents: dict[str, Content]


@dataclass
class FileIndex:
    """What was seen of a workspace last. Whoever uses it takes its `turn`."""

    seen: Snapshot = field(default_factory=lambda: Snapshot(Tree(), {}))
    turn: threading.Lock = field(default_factory=threading.Lock)


@lru_cache(maxsize=2)  # each holds as many bytes as the limits allow
def file_index(root: str) -> FileIndex:  # noqa: ARG001 - it is the key of the cache
    """The index of the workspace with this real path."""
    return FileIndex()


class _ContentReader:
    """Reads contents for one look until one of the limits is reached, or the deadline."""

    def __init__(self, files: BeneathReader, limits: WatchLimits, deadline: float) -> None:
        self._reader = files
        self.limits = limits
        self._deadline = deadline
        self._files = limits.files
        self._bytes = limits.all_bytes

    def allows(self, status: Status) -> bool:
        size = status.size
        if not status.is_regular or self._files == 0 or size > min(self.limits.file_bytes, self._bytes):
            return False

        self._files = self._files - 1
        self._bytes = self._bytes - size
        return True

    def read(self, name: str, status: Status, most: int) -> Content | None:
        if not status.is_regular or status.size > most or time.monotonic() > self._deadline:
            return None

        data = self._reader.read(name, most)
        if data is None:
            return None

        return Content(status, data, hashlib.sha256(data).hexdigest())


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


def snapshot(paths: JudgedPaths, index: FileIndex, limits: WatchLimits, deadline: float) -> Snapshot | Unwatched:
    """The files that are there now, with the contents that the limits allow; what `index` has is not read again."""
    deadline = min(deadline, time.monotonic() + limits.before_s)
    try:
        with closing(open_root(paths.root)) as root, BeneathReader(paths, root) as files:
            tree = look_through(paths, root, most=limits.entries, deadline=deadline, known=index.seen.tree)
            if isinstance(tree, Unwatched):
                return tree

            reader = _ContentReader(files, limits, deadline)
            contents = dict[str, Content]()
            newest_first = sorted(tree.files.items(), key=lambda file: (-file[1].mtime_ns, file[0]))

            for name, status in sorted(file for file in newest_first if reader.allows(file[1])):
                known = index.seen.contents.get(name)
                unchanged = known is not None and known.status == status

                if unchanged:
                    content = known
                else:
                    content = reader.read(name, status, limits.file_bytes)

                if content is not None:
                    contents[name] = content
    except OSError:
        return _UNOPENED

    index.seen = Snapshot(tree, contents)
    return index.seen


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

            contents = dict(before.contents)
            changes = tuple(_compared(paths, before, after, _ContentReader(files, limits, deadline), contents))
    except OSError:
        return _UNOPENED

    index.seen = Snapshot(after, contents)
    folders_made = sorted(name[:-1] for name in after.folders.keys() - before.tree.folders.keys())
    return CommandChanges(changes, tuple(folders_made))


def _compared(
    paths: JudgedPaths, before: Snapshot, after: Tree, reader: _ContentReader, contents: dict[str, Content]
) -> Iterator[CommandChange]:
    origins = {_identity(status): name for name, status in before.tree.files.items()}

    for name in sorted(before.tree.files.keys() | after.files.keys()):
        was = before.tree.files.get(name)
        now = after.files.get(name)
        if was == now or (now is None and any(name.startswith(folder) for folder in after.closed)):
            continue

        old = before.contents.get(name)
        new = None
        if now is not None and reader.allows(now):
            new = reader.read(name, now, reader.limits.file_bytes)

        if new is not None:
            contents[name] = new

        if old is not None and paths.denial(name, for_write=False) is not None:
            old = None  # other rules held when it was read

        sha256 = None
        if now is not None and not _is_moved(name, now, origins, before, after):
            seen = new or reader.read(name, now, reader.limits.hashed_bytes)
            sha256 = seen and seen.sha256

        states = _state(was, old and old.sha256), _state(now, sha256)
        if states[0] != states[1] or old is None:
            if was is None:
                kind = ChangeKind.CREATED
            elif now is None:
                kind = ChangeKind.DELETED
            else:
                kind = ChangeKind.EDITED

            yield CommandChange(name, kind, *states, old and old.data, new.data if new and sha256 else None)


def _is_moved(name: str, status: Status, origins: Mapping[tuple[int, ...], str], before: Snapshot, after: Tree) -> bool:
    """Whether this is all that is left of a file whose content nobody has kept, so that nobody may take it back."""
    origin = origins.get(_identity(status), name)
    file_left = after.files.get(origin)
    return origin not in before.contents and (file_left is None or file_left.inode != status.inode)


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
    index = file_index(workspace.root)
    deadline = time.monotonic() + patience_s
    if not index.turn.acquire(timeout=min(max(patience_s, 0.0), threading.TIMEOUT_MAX)):
        return WatchedRun(run(), Unwatched("another command was at work in the workspace"))

    try:
        paths = workspace._paths.of_any_extension()  # noqa: SLF001 - what a program may change has any extension
        before = snapshot(paths, index, limits, deadline)
        problem = ""

        try:
            result = run()
        finally:
            changes = changed(paths, index, limits, before)
            try:
                record_changes(workspace.recorder, changes)
            except StoreError as error:
                problem = str(error)

        return WatchedRun(result, changes, problem)
    finally:
        index.turn.release()


def record_changes(recorder: ChangeRecorder | None, changes: CommandChanges | Unwatched) -> None:
    """Write down what has happened, with the bytes before, so that it can be taken back.

    Raises StoreError: it could not be written.
    """
    if recorder is None or isinstance(changes, Unwatched) or changes == CommandChanges():
        return

    effects = [FileEffect(file.path, file.before, file.after) for file in changes.files]
    backups = {file.before.sha256: file.before_data for file in changes.files if file.before_data is not None}
    recorder.add(secrets.token_hex(8), effects, backups, changes.made)
