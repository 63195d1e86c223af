"""The tools' access to files, with a dry workspace for previews, and one that makes only approved changes."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from posixpath import basename
from typing import BinaryIO, NamedTuple, Self, TypeVar

from mendgraph.nodes.language.names import names_elsewhere
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.change_records import ChangeRecorder
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from mendgraph.nodes.workspace.files.file_changes import (
    Change,
    ChangedFile,
    DeleteFile,
    MoveFile,
    WriteFile,
    change_files,
    placed_changes,
)
from mendgraph.nodes.workspace.files.handles import closing, open_regular, open_root
from mendgraph.nodes.workspace.files.sandbox import ContentJudge, JudgedPaths, PathAccess, PathJudge, Place
from mendgraph.nodes.workspace.files.tree_walk import LARGEST_IGNORE_FILE, Entry, judged_entries, walk

__all__ = ["Change", "ChangedFile", "DeleteFile", "Entry", "MoveFile", "PathJudge", "Workspace", "WriteFile"]


@dataclass(frozen=True)
class FileContent:
    """A whole file. `path` is its real name relative to the workspace, `sha256` the hash of `data` in hex."""

    path: str
    data: bytes
    sha256: str

    @classmethod
    def of(cls, path: str, data: bytes) -> "FileContent":
        """Return the content with its hash."""
        return cls(path, data, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class OpenedFile:
    """A file to read piece by piece, in a `with` statement. `size` is in bytes, as of opening."""

    path: str
    size: int
    stream: BinaryIO

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()


def open_file(paths: JudgedPaths, path: str) -> OpenedFile | ToolError:
    """Open the file for reading. Pipes, sockets and devices are refused without waiting."""
    place = paths.existing(path, PathAccess.READ_FILE)
    if isinstance(place, ToolError):
        return place

    try:
        with closing(open_root(paths.root)) as root, ExitStack() as refused:
            descriptor, status = open_regular(root, place.parts, os.O_RDONLY)
            stream = refused.enter_context(os.fdopen(descriptor, "rb"))
            name = paths.opened_name(descriptor, root, place, for_write=False)

            if isinstance(name, ToolError):
                return name

            refused.pop_all()  # the caller closes it
            return OpenedFile(name, status.st_size, stream)
    except OSError as error:
        return os_failure(error, "read", place.requested)


def read_whole(opened: OpenedFile, max_bytes: int) -> FileContent | ToolError:
    """Read and close an opened file; IO_ERROR with its size if it is larger than `max_bytes`."""
    with opened:
        try:
            data = b""
            if opened.size <= max_bytes:
                data = opened.stream.read(max_bytes + 1)
        except OSError as error:
            return os_failure(error, "read", opened.path)

    size = max(opened.size, len(data))
    if size <= max_bytes:
        return FileContent.of(opened.path, data)

    message = f"{quoted(opened.path)} is too large to read at once: {size} bytes, and {max_bytes} are allowed."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def read_beneath(paths: JudgedPaths, root_fd: int, name: str, most: int) -> bytes | None:
    """Return the bytes of a regular file below the open root, by its real name; no link is followed.

    None for a file that is denied, under this or another name, or for what it holds, that is larger than `most` bytes,
    or that cannot be read.
    """
    if paths.denial(name, for_write=False) is not None:
        return None

    try:
        descriptor, status = open_regular(root_fd, name.split("/"), os.O_RDONLY)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            if paths.opened_name(descriptor, root_fd, Place(name, name), for_write=False) != name:
                return None
            if status.st_size > most:
                return None

            data = stream.read(status.st_size + 1)
    except OSError:
        return None

    return data if len(data) == status.st_size else None  # it is being written


class DryChange(NamedTuple):
    """A change that was not made. `path` is the requested name, `name` the real one, `target` that of a move.

    `before` and `after` are None without a file; `sha256` is the hash of the file on the disk, "" without one.
    """

    path: str
    name: str
    target: str
    before: bytes | None
    after: bytes | None
    sha256: str


MOST_SUGGESTIBLE = 5_000
"""Entries that are searched for files with the name of a missing one."""

_NOT_CHANGEABLE = ToolError(
    code=ToolErrorCode.PERMISSION_DENIED,
    message="A tool that was registered with an effect of none, read or network may change no file.",
)


class Workspace:
    """Reads, writes and lists below one root.

    Paths are those of a model: relative to the root, or absolute inside it. Results have real names relative to the
    root. Every failure is a ToolError. The judge judges the requested name, before the file system is accessed, and the
    real name of the opened file; a file with several names (hard links) is denied if one of them is. `observe` receives
    each refusal of the sandbox as a map. `allowed_extensions` are those of the files that may be used, in lower case
    with the dot; empty allows all. `contents` judges the old and the new content of files.
    """

    def __init__(
        self,
        root: str,
        judge: PathJudge,
        *,
        observe: Callable[[JsonMap], None] | None = None,
        allowed_extensions: frozenset[str] = frozenset(),
        contents: ContentJudge = lambda _: None,
    ) -> None:
        self._paths = JudgedPaths(root, judge, observe, allowed_extensions, contents, self._namesakes)
        self._scope = CancellationScope()
        self._changeable = True
        self.recorder: ChangeRecorder | None = None
        self.root = self._paths.root

    def in_scope(self, scope: CancellationScope) -> Self:
        """Return a view of the workspace for one call, which makes no change after `scope` is revoked."""
        view = copy(self)
        view._scope = scope  # noqa: SLF001 - its own kind
        return view

    def recorded(self, recorder: ChangeRecorder | None) -> Self:
        """Return a view of the workspace for one call, whose changes `recorder` records before they begin.

        A file of more than 10 MB can then be neither replaced, deleted nor moved (IO_ERROR).
        """
        view = copy(self)
        view.recorder = recorder
        return view

    def unchangeable(self) -> Self:
        """Return a view of the workspace that refuses changes (PERMISSION_DENIED), for a tool without that effect.

        This enforces the declared effect; whether a call is permitted is decided in `CallPolicy.permit`.
        """
        view = copy(self)
        view._changeable = False  # noqa: SLF001 - its own kind
        return view

    def read_file(self, path: str, max_bytes: int = 10_000_000) -> FileContent | ToolError:
        """Read the whole file; IO_ERROR with its size if it is larger than `max_bytes`."""
        opened = self.open_file(path)
        if isinstance(opened, ToolError):
            return opened

        return read_whole(opened, max_bytes)

    def open_file(self, path: str) -> OpenedFile | ToolError:
        """Open the file for reading in a `with` statement."""
        return open_file(self._paths, path)

    def write_file(self, path: str, data: bytes, *, expected_sha256: str) -> FileContent | ToolError:
        """Write the file atomically.

        `expected_sha256` is the hash of the present file, "" if none may exist; CONFLICT otherwise. Missing directories
        are created. A link is followed to its real file inside the workspace.
        """
        done = self.change_files((WriteFile(path, data, expected_sha256),))
        if isinstance(done, ToolError):
            return done

        return FileContent(done[0].path, data, done[0].sha256)

    def change_files(self, changes: Sequence[Change]) -> tuple[ChangedFile, ...] | ToolError:
        """Make all changes and return their results; on a failure none is made.

        There may be 200 changes, each of another file; INVALID_ARGUMENT for more, or for two changes of one file (also
        through links). CONFLICT if a file does not have the expected hash, or exists unexpectedly. Missing directories
        are created, none are removed. A write follows links; a link itself can neither be deleted nor moved. A moved
        file keeps mode and owner.
        """
        if not self._changeable:
            return _NOT_CHANGEABLE

        with self._scope.effect():
            return change_files(self._paths, changes, self.recorder)

    def list_directory(self, path: str) -> tuple[Entry, ...] | ToolError:
        """Return the entries of the directory without `.git`, directories first, then by name."""
        place = self._paths.existing(path, PathAccess.LIST_DIR)
        if isinstance(place, ToolError):
            return place

        try:
            entries = judged_entries(self._paths, place)
        except NotADirectoryError:
            return invalid(f"{quoted(place.requested)} is a file, not a directory: read it instead.")
        except OSError as error:
            return os_failure(error, "list", place.requested)

        if isinstance(entries, ToolError):
            return entries

        return tuple(sorted(entries, key=lambda entry: (entry.kind != "directory", entry.path)))

    def walk(self, path: str = ".") -> Iterator[Entry]:
        """Yield everything below the directory, by name, each directory before its entries.

        Links are not followed. `.git` and ignored files are left out, unless `path` itself is ignored. Yields nothing
        if it is not a directory, and skips directories that cannot be read.
        """
        place = self._paths.existing(path, PathAccess.LIST_DIR)
        if isinstance(place, Place):
            yield from walk(self._paths, place, self._ignore_file)

    def exists(self, path: str) -> bool:
        """Return whether something exists at the path inside the workspace that may be read."""
        place = self._paths.place(path, PathAccess.LIST_DIR)
        return isinstance(place, Place) and not place.missing

    def leads_to(self, path: str, *, for_write: bool = False) -> str | ToolError:
        """Return the real name of the target of a path, which may be missing and is not judged.

        PERMISSION_DENIED, with suggestions, for a path that leads out of the workspace.
        """
        return self._paths.leads_to(path, PathAccess.WRITE_FILE if for_write else PathAccess.LIST_DIR)

    def denied(self, path: str, *, for_write: bool = False) -> ToolError | None:
        """Return the refusal of this file, which may be missing, or None."""
        return self._paths.denied_file(path, for_write=for_write)

    def dry_change(self, change: Change) -> DryChange | ToolError:
        """Return what a change would do; CONFLICT if the file does not have the expected hash."""
        place = self._paths.place(change.path, PathAccess.WRITE_FILE)
        if isinstance(place, ToolError):
            return place

        before: bytes | None = None
        sha256 = ""
        file = self.read_file(change.path)
        if isinstance(file, FileContent):
            before = file.data
            sha256 = file.sha256

        if sha256 != change.expected_sha256:
            message = f"{quoted(place.real)} is not what this change is for."
            return ToolError(code=ToolErrorCode.CONFLICT, message=message)

        target = ""
        after = None if isinstance(change, DeleteFile) else change.data

        if isinstance(change, MoveFile):
            goal = self._paths.place(change.target, PathAccess.WRITE_FILE)
            if isinstance(goal, ToolError):
                return goal

            target = goal.real
            if after is None:
                after = before

        return DryChange(change.path, place.real, target, before, after, sha256)

    def _namesakes(self, name: str) -> tuple[str, ...]:
        """Return up to three readable files with this name, in any case, in any folder."""
        names: list[str] = []

        for entry in islice(self.walk(), MOST_SUGGESTIBLE):
            same = entry.kind == "file" and basename(entry.path).casefold() == name.casefold()
            if same and self.denied(entry.path) is None:
                names.append(entry.path)
            if len(names) == 3:
                break

        return tuple(names)

    def _ignore_file(self, path: str) -> bytes:
        if not self.exists(path):
            return b""

        opened = open_file(self._paths.of_any_extension(), path)
        if isinstance(opened, ToolError):
            return b""

        content = read_whole(opened, LARGEST_IGNORE_FILE)
        return b"" if isinstance(content, ToolError) else content.data


def relative_glob(workspace: Workspace, pattern: str) -> str | ToolError:
    """Return the pattern relative to the workspace, or the refusal of one that leads out of it."""
    if not pattern.startswith("/") and not names_elsewhere(pattern):
        return pattern

    inside: str | ToolError = pattern.removeprefix(f"{workspace.root.rstrip('/')}/")
    if inside == pattern:
        inside = workspace.leads_to(pattern, for_write=True)

    return inside if isinstance(inside, ToolError) else f"./{inside}"


# --- For approvals

Pin = tuple[str, str, str]
"""An approved change: the path, the hash of the file then ("": none), and the mark of the change ("": any)."""


def change_mark(before: bytes | None, after: bytes | None, target: str = "") -> str:
    """Return a hash of the changed lines, which does not depend on their place in the file."""
    old = _lines(before)
    new = _lines(after)
    start = 0

    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1

    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1

    parts = [b"" if after is not None else b"gone", b"" if before is not None else b"new", target.encode()]
    digest = hashlib.sha256()
    for part in (*parts, b"".join(old[start : len(old) - end]), b"".join(new[start : len(new) - end])):
        digest.update(len(part).to_bytes(8, "big") + part)

    return digest.hexdigest()[:32]


_View = TypeVar("_View", bound=Workspace)


def _view(kind: type[_View], workspace: Workspace) -> _View:
    """Return a workspace of another class with the same files, judge and scope."""
    view = kind.__new__(kind)
    view.__dict__.update(workspace.__dict__)
    return view


PartOf = Callable[[Sequence[DryChange]], Sequence[DryChange | None]]
"""Returns the part of each change that is made, None for one that is not."""


class ApprovedWorkspace(Workspace):
    """A workspace that refuses (CONFLICT) all changes but the pinned ones, also if a file has changed since."""

    _pins: dict[str, Pin]
    _changed: Mapping[str, str]

    @classmethod
    def of(cls, workspace: Workspace, pins: Sequence[Pin], changed: Mapping[str, str]) -> Self:
        """Return a view of the workspace. `changed` has the hashes of files that this step has changed, by name."""
        view = _view(cls, workspace)
        view._pins = {pin[0]: pin for pin in pins}  # noqa: SLF001 - its own kind
        view._changed = changed  # noqa: SLF001 - its own kind
        return view

    def change_files(self, changes: Sequence[Change]) -> tuple[ChangedFile, ...] | ToolError:
        """Like `Workspace.change_files`, if all changes are approved."""
        for change in changes:
            refusal = self._refusal(change)
            if refusal is not None:
                return refusal

        return super().change_files(changes)

    def _refusal(self, change: Change) -> ToolError | None:
        dry = self.dry_change(change)
        if isinstance(dry, ToolError):
            return dry

        pin = self._pins.get(change.path) or self._pins.get(dry.name)
        if pin is None:
            any_change_allowed = bool(self._pins) and not any(mark for _, _, mark in self._pins.values())
            if any_change_allowed:
                return None
            return _conflict(f"A person did not see a change of {quoted(dry.name)} in this call")

        _, sha256, mark = pin
        if change.expected_sha256 != self._changed.get(dry.name, sha256):
            return _conflict(f"{quoted(dry.name)} has changed since a person was shown this call")
        if mark and mark != change_mark(dry.before, dry.after, dry.target):
            return _conflict(f"This call would change {quoted(dry.name)} in another way than a person was shown")

        return None


class PartlyApprovedWorkspace(ApprovedWorkspace):
    """A workspace that makes only a part of the changes of a call; `effects` are those that it has made.

    The tool gets the results of all its changes.
    """

    effects: list[DryChange]
    _part: PartOf

    @classmethod
    def of_part(cls, workspace: Workspace, pins: Sequence[Pin], changed: Mapping[str, str], part: PartOf) -> Self:
        """Do the same as `of`; `part` returns the approved part of each change, or None."""
        view = cls.of(workspace, pins, changed)
        view.effects = []
        view._part = part  # noqa: SLF001 - its own kind
        return view

    def change_files(self, changes: Sequence[Change]) -> tuple[ChangedFile, ...] | ToolError:
        """Make the part of the changes that is approved: exactly the pinned ones."""
        planned: list[DryChange] = []
        for change in changes:
            dry = self.dry_change(change)
            if isinstance(dry, ToolError):
                return dry

            planned.append(dry)

        approved: list[Change] = []
        effects: list[DryChange] = []

        for change, part in zip(changes, self._part(planned), strict=True):
            if part is None:
                continue

            effects.append(part)
            if isinstance(change, WriteFile) and part.after is not None:
                approved.append(replace(change, data=part.after))
            else:
                approved.append(change)

        if len(effects) != len(self._pins):
            return _conflict("The hunks that a person approved are not in the diff of this call any more")

        done = super().change_files(approved)
        if isinstance(done, ToolError):
            return done

        self.effects.extend(effects)
        return tuple(map(_changed_file, planned))


def _lines(data: bytes | None) -> list[bytes]:
    return (data or b"").splitlines(keepends=True)


def _conflict(reason: str) -> ToolError:
    message = f"{reason}, so nothing was changed: read_file it, and make the call anew."
    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


class DryWorkspace(Workspace):
    """A workspace that collects changes without making them; `planned` are the changes in order."""

    planned: list[DryChange]
    _files: dict[str, bytes | None]

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return a dry view of the workspace."""
        dry = _view(cls, workspace)
        dry.recorder = None
        dry.planned = []
        dry._files = {}  # noqa: SLF001 - its own kind
        return dry

    def real_name(self, path: str) -> str:
        """Return the real name of the path, "" if it may not be used."""
        place = self._paths.place(path, PathAccess.READ_FILE)
        return place.real if isinstance(place, Place) else ""

    def on_disk(self, name: str) -> str:
        """Return the hash of a file on the disk, "" if it cannot be read."""
        file = super().read_file(name)
        return file.sha256 if isinstance(file, FileContent) else ""

    def read_file(self, path: str, max_bytes: int = 10_000_000) -> FileContent | ToolError:
        """Read the file as it would be after the changes so far."""
        name = self.real_name(path)
        if name not in self._files:
            return super().read_file(path, max_bytes)

        data = self._files[name]
        if data is None:
            message = f"{quoted(name)} would be gone: an earlier call of this reply takes it away."
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

        return FileContent.of(name, data)

    def exists(self, path: str) -> bool:
        """Return whether something would exist there after the changes so far."""
        name = self.real_name(path)
        if name in self._files:
            return self._files[name] is not None

        return super().exists(path)

    def change_files(self, changes: Sequence[Change]) -> tuple[ChangedFile, ...] | ToolError:
        """Collect all changes, or none."""
        names = {self.real_name(change.path) for change in changes}
        if names.isdisjoint(self._files):
            placed = placed_changes(self._paths, changes)
            if isinstance(placed, ToolError):
                return placed

        planned: list[DryChange] = []
        for change in changes:
            one = self.dry_change(change)
            if isinstance(one, ToolError):
                return one

            planned.append(one._replace(sha256=self.on_disk(one.name)))

        for dry_change in planned:
            self._files[dry_change.name] = None if dry_change.target else dry_change.after
            if dry_change.target:
                self._files[dry_change.target] = dry_change.after

        self.planned += planned
        return tuple(map(_changed_file, planned))


def _changed_file(change: DryChange) -> ChangedFile:
    sha256 = ""
    if change.after is not None:
        sha256 = FileContent.of(change.name, change.after).sha256

    return ChangedFile(change.name, change.target, sha256)
