"""Finds the changes of a command in the workspace by two snapshots, before and after it.

Changes of other programs meanwhile count as the command's. `.git`, denied directories and what git ignores are not
watched. The former bytes of small files are stored for an undo, up to a limit; of other files only the names are
reported. What the first snapshot ignored, or could not read, the second one ignores as well.
"""

import hashlib
import os
import secrets
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Generic, NamedTuple, Self, TypeVar

from mendgraph.nodes.records import FileChange
from mendgraph.nodes.workspace.files.change_records import (
    UNKNOWN_SHA256,
    ChangeRecorder,
    ChangeState,
    FileEffect,
    FileState,
)
from mendgraph.nodes.workspace.files.file_changes import LARGEST_BACKUP
from mendgraph.nodes.workspace.files.handles import closing, open_directory, open_root
from mendgraph.nodes.workspace.files.sandbox import JudgedPaths
from mendgraph.nodes.workspace.files.text_files import escaped_name
from mendgraph.nodes.workspace.files.tree_walk import (
    DEEPEST,
    GIT_DIRECTORY,
    IGNORE_FILE,
    LARGEST_IGNORE_FILE,
    Entry,
    IgnoreRules,
    is_bytecode,
    is_installed,
)
from mendgraph.nodes.workspace.files.workspace import Workspace, read_beneath
from mendgraph.nodes.workspace.store.database import StoreError

# --- The files of a workspace that git would see, and their status


class Status(NamedTuple):
    """A status that differs after every change of a file; no program can set the ctime back."""

    device: int
    inode: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return the status that `os.stat` has returned."""
        return cls(status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @property
    def is_regular(self) -> bool:
        """Whether it is a regular file: no link, pipe, socket or device."""
        return stat.S_ISREG(self.mode)


class Folder(NamedTuple):
    """The ignore rules of a directory, and their verdicts: whether a name (a directory's with "/") is ignored."""

    rules: IgnoreRules
    verdicts: dict[str, bool]


@dataclass(frozen=True)
class Tree:
    """The entries of a workspace, by their relative names.

    `files` are all entries but directories. In `folders` and `closed` a name ends with "/", and "" is the workspace;
    `closed` are directories that could not be read.
    """

    files: dict[str, Status] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)


class Unwatched(NamedTuple):
    """Why a workspace cannot be watched, as a clause: "the workspace ..."."""

    reason: str


def read_tree(
    paths: JudgedPaths, root_fd: int, *, most: int, deadline: float, earlier: Tree, keep_rules: bool = False
) -> Tree | Unwatched:
    """Return the current entries, without `.git`, denied directories, bytecode, and ignored files.

    It ends after `most` entries, and at `deadline` (of the monotonic clock). Verdicts of the `earlier` tree under the
    same rules are used again; with `keep_rules` its rules stay valid in every directory that it has.
    """
    tree = Tree()
    pending: list[tuple[str, IgnoreRules]] = [("", IgnoreRules())]
    room = most

    while pending:
        folder, above = pending.pop()
        entries = None
        if not (keep_rules and folder in earlier.closed):
            entries = _entries(root_fd, folder)

        if entries is None:
            tree.closed.add(folder)
            continue

        room -= len(entries)
        if room < 0:
            return Unwatched(f"the workspace has more than {most:,} files and directories")

        before = earlier.folders.get(folder)
        rules = before.rules if keep_rules and before else _rules(paths, root_fd, folder, entries, above)

        verdicts: dict[str, bool] = {}
        if before is not None and before.rules == rules:
            rules, verdicts = before

        tree.folders[folder] = Folder(rules, verdicts)

        for entry_name, status in entries.items():
            if time.monotonic() > deadline:
                return Unwatched("the workspace could not be looked through in time")

            name = f"{folder}{entry_name}"
            is_folder = stat.S_ISDIR(status.mode)
            full_name = f"{entry_name}/" if is_folder else entry_name

            if full_name not in verdicts:  # a verdict of the rules takes longer than all other steps
                entry = Entry(name, "directory" if is_folder else "file", 0)
                verdicts[full_name] = is_bytecode([entry_name]) or rules.ignores(entry)

            if verdicts[full_name]:
                continue

            if not is_folder:
                tree.files[name] = status
            elif paths.denial(name, for_write=False) is None:
                pending.append((f"{name}/", rules))

    return tree


def _entries(root_fd: int, folder: str) -> dict[str, Status] | None:
    """Return the entries of a directory, none if it does not exist; None if it cannot be read."""
    entries: dict[str, Status] = {}
    parts = folder[:-1].split("/") if folder else []
    if len(parts) > DEEPEST:
        return None

    try:
        with closing(open_directory(root_fd, parts)) as folder_fd, os.scandir(folder_fd) as scan:
            for entry in scan:
                if entry.name.casefold() != GIT_DIRECTORY:
                    with suppress(FileNotFoundError):  # it was just removed
                        entries[entry.name] = Status.of(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return {}
    except OSError:
        return None

    return entries


def _rules(
    paths: JudgedPaths, root_fd: int, folder: str, entries: Mapping[str, Status], above: IgnoreRules
) -> IgnoreRules:
    def read(name: str) -> bytes:
        return read_beneath(paths, root_fd, name, LARGEST_IGNORE_FILE) or b""

    ignore_files = []
    if IGNORE_FILE in entries and entries[IGNORE_FILE].is_regular:
        ignore_files.append(Entry(f"{folder}{IGNORE_FILE}", "file", 0))

    return above.within(folder[:-1] or ".", ignore_files, read)


# --- The changes of a command

_UNOPENED: Final = Unwatched("the workspace cannot be opened")


class WatchLimits(NamedTuple):
    """The costs of watching one command.

    A workspace with more than `entries` files and directories is not watched: two snapshots of 20,000 take 0.3 s. The
    contents of at most `files` files of at most `file_bytes` are read, `all_bytes` together, newest files first and
    installed packages last: 10,000 files take about a second, once. Changed files of at most `hashed_bytes` are hashed
    afterwards. The first snapshot may take `before_s` seconds of the command's time, the second one `after_s` more.
    """

    entries: int = 50_000
    files: int = 10_000
    file_bytes: int = 1_000_000
    all_bytes: int = 50_000_000
    hashed_bytes: int = LARGEST_BACKUP
    before_s: float = 2.0
    after_s: float = 1.0


class Content(NamedTuple):
    """The bytes of a file with this status, and their hash."""

    status: Status
    data: bytes
    sha256: str


class Snapshot(NamedTuple):
    """The tree of a workspace, and the contents that were read."""

    tree: Tree
    contents: dict[str, Content]


@dataclass
class FileIndex:
    """The last snapshot of a workspace. It may be used only under its `lock`."""

    last: Snapshot = field(default_factory=lambda: Snapshot(Tree(), {}))
    lock: threading.Lock = field(default_factory=threading.Lock)


@lru_cache(maxsize=2)  # each may hold all bytes that the limits allow
def file_index(root: str) -> FileIndex:  # noqa: ARG001 - it is the key of the cache
    """Return the index of the workspace with this real path."""
    return FileIndex()


class _ContentReader:
    """Reads contents for one snapshot until one of the limits, or the deadline, is reached."""

    def __init__(self, paths: JudgedPaths, root_fd: int, limits: WatchLimits, deadline: float) -> None:
        self._paths = paths
        self._root_fd = root_fd
        self.limits = limits
        self._deadline = deadline
        self._files_left = limits.files
        self._bytes_left = limits.all_bytes

    def allows(self, status: Status) -> bool:
        most = min(self.limits.file_bytes, self._bytes_left)
        if not status.is_regular or self._files_left == 0 or status.size > most:
            return False

        self._files_left -= 1
        self._bytes_left -= status.size
        return True

    def read(self, name: str, status: Status, most: int) -> Content | None:
        if not status.is_regular or status.size > most or time.monotonic() > self._deadline:
            return None

        data = read_beneath(self._paths, self._root_fd, name, most)
        if data is None:
            return None

        return Content(status, data, hashlib.sha256(data).hexdigest())


class CommandChange(NamedTuple):
    """The change of one file. The hash of a state is `UNKNOWN_SHA256` if its bytes were not read.

    A change can be undone if both hashes are known; then `before_data` has the former bytes. `after_data` has the new
    bytes of a small file.
    """

    effect: FileEffect
    before_data: bytes | None = None
    after_data: bytes | None = None


class CommandChanges(NamedTuple):
    """All files that differ, ordered by name, and the new directories, outermost first."""

    files: tuple[CommandChange, ...] = ()
    new_folders: tuple[str, ...] = ()


def snapshot(paths: JudgedPaths, index: FileIndex, limits: WatchLimits, deadline: float) -> Snapshot | Unwatched:
    """Take a snapshot with the contents that the limits allow; unchanged files of `index` are not read again."""
    deadline = min(deadline, time.monotonic() + limits.before_s)
    try:
        with closing(open_root(paths.root)) as root:
            tree = read_tree(paths, root, most=limits.entries, deadline=deadline, earlier=index.last.tree)
            if isinstance(tree, Unwatched):
                return tree

            reader = _ContentReader(paths, root, limits, deadline)
            contents = dict[str, Content]()
            newest_first = sorted(
                tree.files.items(), key=lambda file: (is_installed(file[0]), -file[1].mtime_ns, file[0])
            )
            allowed = [file for file in newest_first if reader.allows(file[1])]

            for name, status in sorted(allowed, key=lambda file: (is_installed(file[0]), file[0])):
                content = index.last.contents.get(name)
                if content is None or content.status != status:
                    content = reader.read(name, status, limits.file_bytes)

                if content is not None:
                    contents[name] = content
    except OSError:
        return _UNOPENED

    index.last = Snapshot(tree, contents)
    return index.last


class Comparison(NamedTuple):
    """The changes between two snapshots, and the second one."""

    changes: CommandChanges
    after: Snapshot


def changes_since(paths: JudgedPaths, limits: WatchLimits, before: Snapshot | Unwatched) -> Comparison | Unwatched:
    """Return the changes since the snapshot `before`."""
    if isinstance(before, Unwatched):
        return before

    deadline = time.monotonic() + limits.after_s
    try:
        with closing(open_root(paths.root)) as root:
            after = read_tree(paths, root, most=limits.entries, deadline=deadline, earlier=before.tree, keep_rules=True)
            if isinstance(after, Unwatched):
                return after

            contents = dict(before.contents)
            changes = tuple(_compared(paths, before, after, _ContentReader(paths, root, limits, deadline), contents))
    except OSError:
        return _UNOPENED

    new_folders = sorted(name[:-1] for name in after.folders.keys() - before.tree.folders.keys())
    return Comparison(CommandChanges(changes, tuple(new_folders)), Snapshot(after, contents))


def _compared(
    paths: JudgedPaths, before: Snapshot, after: Tree, reader: _ContentReader, contents: dict[str, Content]
) -> Iterator[CommandChange]:
    """Yield the changed files; their new contents are added to `contents`."""
    origins = {_identity(status): name for name, status in before.tree.files.items()}

    for name in sorted(before.tree.files.keys() | after.files.keys()):
        status_before = before.tree.files.get(name)
        status_after = after.files.get(name)
        is_unreadable = status_after is None and any(name.startswith(folder) for folder in after.closed)
        if status_before == status_after or is_unreadable:
            continue

        old = before.contents.get(name)
        if old is not None and paths.denial(name, for_write=False) is not None:
            old = None  # the rules have changed since it was read

        new = None
        sha256 = None
        if status_after is not None:
            if reader.allows(status_after):
                new = reader.read(name, status_after, reader.limits.file_bytes)

            if new is not None:
                contents[name] = new

            if not _is_moved(name, status_after, origins, before, after):
                hashed = new or reader.read(name, status_after, reader.limits.hashed_bytes)
                sha256 = hashed and hashed.sha256

        state_before = _state(status_before, old and old.sha256)
        state_after = _state(status_after, sha256)
        if state_before == state_after and old is not None:
            continue

        after_data = new.data if new and sha256 else None
        yield CommandChange(FileEffect(name, state_before, state_after), old and old.data, after_data)


def _is_moved(name: str, status: Status, origins: Mapping[tuple[int, ...], str], before: Snapshot, after: Tree) -> bool:
    """Return whether this is the only copy of a moved file, whose content is not stored: an undo may not remove it."""
    origin = origins.get(_identity(status), name)
    original = after.files.get(origin)
    return origin not in before.contents and (original is None or original.inode != status.inode)


def _identity(status: Status) -> tuple[int, ...]:
    """Numbers that stay the same when a file is moved; the inode alone may belong to a new file."""
    return status.device, status.inode, status.size, status.mtime_ns


def _state(status: Status | None, sha256: str | None) -> FileState:
    if status is None:
        return FileState()

    mode = stat.S_IMODE(status.mode) if status.is_regular else None
    return FileState(UNKNOWN_SHA256 if sha256 is None else sha256, mode)


Result = TypeVar("Result")

_LIMITS: Final = WatchLimits()


class WatchedRun(NamedTuple, Generic[Result]):
    """The result of a function, its changes, and the snapshot after it.

    `unrecorded` says why the changes could not be recorded, "" if they were.
    """

    result: Result
    changes: CommandChanges | Unwatched
    after: Snapshot | Unwatched
    unrecorded: str = ""


def watched(
    workspace: Workspace, run: Callable[[], Result], patience_s: float, limits: WatchLimits = _LIMITS
) -> WatchedRun[Result]:
    """Call `run`, and record its changes in the workspace, also if it raises.

    It starts after at most `patience_s` seconds, in which another command of this workspace may end and the first
    snapshot is taken.
    """
    index = file_index(workspace.root)
    deadline = time.monotonic() + patience_s
    if not index.lock.acquire(timeout=min(max(patience_s, 0.0), threading.TIMEOUT_MAX)):
        unwatched = Unwatched("another command was at work in the workspace")
        return WatchedRun(run(), unwatched, unwatched)

    try:
        paths = workspace._paths.of_any_extension()  # noqa: SLF001 - what a program may change has any extension
        before = snapshot(paths, index, limits, deadline)
        problem = ""

        try:
            result = run()
        finally:
            compared = changes_since(paths, limits, before)
            changes: CommandChanges | Unwatched
            after: Snapshot | Unwatched
            if isinstance(compared, Unwatched):
                changes = after = compared
            else:
                changes, after = compared
                index.last = after

            try:
                record_changes(workspace.recorder, changes)
            except StoreError as error:
                problem = str(error)

        return WatchedRun(result, changes, after, problem)
    finally:
        index.lock.release()


def changes_beside(
    workspace: Workspace, before: Snapshot | Unwatched, edits: Iterable[FileChange], limits: WatchLimits = _LIMITS
) -> Comparison | Unwatched:
    """Return the changes since the snapshot `before`, without the `edits` of the run since then, oldest first.

    A file that was changed after an edit has changed from its state after the edit.
    """
    paths = workspace._paths.of_any_extension()  # noqa: SLF001 - what a program may change has any extension
    compared = changes_since(paths, limits, before)
    if isinstance(compared, Unwatched):
        return compared

    edits_by_path = defaultdict[str, list[FileChange]](list)
    for edit in edits:
        edits_by_path[edit.path].append(edit)

    files: list[CommandChange] = []
    for change in compared.changes.files:
        rest = _without_edits(change, edits_by_path[escaped_name(change.effect.path)])
        if rest is not None:
            files.append(rest)

    return compared._replace(changes=compared.changes._replace(files=tuple(files)))


def _without_edits(change: CommandChange, edits: Sequence[FileChange]) -> CommandChange | None:
    """Return what has changed in a file after the edits that begin at its former state, or None."""
    before = change.effect.before
    for edit in edits:
        if before.sha256 in (UNKNOWN_SHA256, edit.sha256_before):
            before = FileState(edit.sha256_after, before.mode if edit.sha256_after else None)

    if before.sha256 == change.effect.before.sha256:
        return change
    if before.sha256 == change.effect.after.sha256:
        return None

    return CommandChange(change.effect._replace(before=before), after_data=change.after_data)


def record_changes(recorder: ChangeRecorder | None, changes: CommandChanges | Unwatched) -> None:
    """Record the changes, with the former bytes, so that they can be undone.

    Raises StoreError if they cannot be written.
    """
    if recorder is None or isinstance(changes, Unwatched) or changes == CommandChanges():
        return

    effects = [change.effect for change in changes.files]
    backups: dict[str, bytes] = {}
    for change in changes.files:
        if change.before_data is not None:
            backups[change.effect.before.sha256] = change.before_data

    recorder.intend(secrets.token_hex(8), effects, backups, changes.new_folders, ChangeState.DONE)
