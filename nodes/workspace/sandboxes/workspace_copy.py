"""A copy of a workspace without denied files, for a sandbox that cannot hide them.

Before a command the copy is updated; afterwards the changes of the command are applied to the workspace, or discarded
by the next update. All files are opened by handles, as a program may have replaced folders by links. In texts, the
absolute name of the workspace is translated, so that scripts and environments that contain it work in the copy.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final, Self

from mendgraph.nodes.workspace.files.atomic_write import PERMISSION_BITS, TEMPORARY_SUFFIX
from mendgraph.nodes.workspace.files.bare_repositories import is_bare_repository
from mendgraph.nodes.workspace.files.change_records import folders_above
from mendgraph.nodes.workspace.files.handles import closing, open_beneath, open_directory, open_root, status_beneath
from mendgraph.nodes.workspace.files.tree_walk import GIT_DIRECTORY
from mendgraph.nodes.workspace.sandboxes.private_folder import read_handle, remove_tree
from mendgraph.nodes.workspace.sandboxes.sandbox import DEEPEST, View

MOST_ENTRIES: Final = 200_000
"""Most files and folders of a workspace that is copied."""

LONGEST_COPY_S: Final = 60.0
"""Seconds for one update, or for applying changes. The next update continues."""

LARGEST_TEXT: Final = 1_000_000
"""Most bytes of a text in which the name of the workspace is translated."""

_OBJECTS: Final = "objects"
_PRIVATE: Final = 0o700
_CHUNK: Final = 1 << 24
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

State = tuple[int, ...]
"""Numbers of a file's status that differ after a change; no program can set the change time back."""


class NotCopiedError(Exception):
    """A workspace, or a changed copy, is too large to be copied."""


class WorkspaceCopy:
    """The copy, in the folder `root`.

    Repositories are links in it; their settings and references are copied to the folders `repositories`, and their
    `objects` are folders of the workspace. No program may be alive while a method runs.
    """

    def __init__(self, folder: str, workspace: str) -> None:
        self.root = os.path.join(folder, "root")
        self.repositories: dict[str, str] = {}
        self.objects: set[str] = set()
        self._folder = folder
        self._files = _TreeCopy((os.fsencode(workspace), os.fsencode(self.root)))
        self._repository_files: dict[str, _TreeCopy] = {}
        self._workspace = workspace
        os.mkdir(self.root, _PRIVATE)

    def update(self, view: View) -> None:
        """Make the copy equal to what the view shows of the workspace.

        Raises NotCopiedError, and OSError if the disk refuses.
        """
        self.objects.clear()
        with closing(open_root(self.root)) as copy:
            repositories = self._files.update(view.root_fd, "", copy, ViewNames.of(view))

        for name in repositories:
            self._update_repository(view, name)

    def translate(self, data: bytes) -> bytes:
        """Return a text with the name of the copy in place of the workspace's."""
        return self._files.translate(data)

    def apply_changes(self, view: View) -> list[str]:
        """Apply the changes of programs to the workspace; the names of those that were refused or failed.

        Raises NotCopiedError, with nothing changed, and OSError if the disk refuses.
        """
        with closing(open_root(self.root)) as copy:
            return self._files.apply_changes(copy, view.root_fd, ViewNames.of(view))

    def _update_repository(self, view: View, name: str) -> None:
        """Copy the repository `name`, and create a link to it in the copy of the workspace."""
        files = self._repository_files.setdefault(name, _TreeCopy())
        path = self.repositories.setdefault(name, os.path.join(self._folder, f"repository-{len(self.repositories)}"))
        os.makedirs(path, _PRIVATE, exist_ok=True)

        with closing(open_root(path)) as copy, closing(open_directory(view.root_fd, name.split("/"))) as original:
            for folder in files.update(original, f"{name}/", copy, ViewNames.of(view), links=_OBJECTS):
                objects = os.path.join(self._workspace, folder)
                _make_link(copy, folder.removeprefix(f"{name}/"), objects)
                self.objects.add(objects)

        with closing(open_root(self.root)) as copy:
            self._files.add_link(copy, name, path)


@dataclass(frozen=True)
class ViewNames:
    """The names that a view hides, protects and replaces, relative to the workspace."""

    hidden: frozenset[str]
    protected: frozenset[str]
    replaced: Mapping[str, int]

    @classmethod
    def of(cls, view: View) -> Self:
        """Return the names of a view."""
        prefix = f"{view.root.rstrip('/')}/"

        def relative(names: Iterable[str]) -> frozenset[str]:
            return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))

        return cls(
            hidden=relative((*view.hidden_files, *view.hidden_folders)),
            protected=relative(name for _, name in view.read_only),
            replaced={
                name.removeprefix(prefix): handle for handle, name in view.replaced_files if name.startswith(prefix)
            },
        )

    def forbid(self, name: str) -> bool:
        """Return whether programs may not change, or create, what has this name; nor a repository."""
        if any(part.casefold() == GIT_DIRECTORY for part in name.split("/")):
            return True

        return any(path in self.hidden or path in self.protected for path in (*folders_above(name), name))


class _TreeCopy:
    """The copy of a folder and of all that is below it. In texts the first of the pair `names` becomes the second."""

    def __init__(self, names: tuple[bytes, bytes] | None = None) -> None:
        self._names = names
        self._states: dict[str, tuple[State, State]] = {}
        self._folders: dict[str, int] = {}

    def update(self, original: int, prefix: str, copy: int, names: ViewNames, links: str = "") -> list[str]:
        """Update the copy of an open folder; the names of the folders that become links in it.

        `prefix` is the folder's own name with a "/" at the end, or "". Repositories become links, or with `links` all
        folders of this name.
        """
        update = _Update(names, links)
        self._folders.clear()
        self._update_folder(original, copy, prefix, update)
        self._states = {name: states for name, states in self._states.items() if name in update.files}

        return update.linked

    def _update_folder(self, original: int, copy: int, prefix: str, update: "_Update") -> None:
        with os.scandir(original) as scan:
            entries = list(scan)

        update.progress.count(len(entries), prefix)

        present = set()

        for entry in entries:
            name = f"{prefix}{entry.name}"
            if name in update.names.hidden:
                continue

            # It was just removed, or programs may not read it either.
            with suppress(FileNotFoundError, PermissionError):
                if entry.is_symlink() or entry.is_file(follow_symlinks=False):
                    self._update_file(original, copy, entry, name, update)
                elif entry.is_dir(follow_symlinks=False):
                    self._update_subfolder(original, copy, entry.name, name, update)
                else:
                    continue

                present.add(entry.name)

        for entry_name in set(os.listdir(copy)) - present:
            _remove(copy, entry_name)

    def _update_subfolder(self, original: int, copy: int, entry_name: str, name: str, update: "_Update") -> None:
        with closing(open_beneath(original, (entry_name,), os.O_RDONLY | os.O_DIRECTORY)) as folder:
            if update.is_link(entry_name, name, folder):
                update.linked.append(name)
                return

            if not _is_folder(copy, entry_name):
                _remove(copy, entry_name)
                os.mkdir(entry_name, _PRIVATE, dir_fd=copy)

            os.chmod(entry_name, _PRIVATE, dir_fd=copy)  # a program may have locked it

            with closing(open_beneath(copy, (entry_name,), os.O_RDONLY | os.O_DIRECTORY)) as folder_copy:
                self._update_folder(folder, folder_copy, f"{name}/", update)
                mode = stat.S_IMODE(os.fstat(folder).st_mode) | _PRIVATE
                os.fchmod(folder_copy, mode)

        self._folders[name] = mode

    def _update_file(self, original: int, copy: int, entry: "os.DirEntry[str]", name: str, update: "_Update") -> None:
        update.files.add(name)
        replacement = update.names.replaced.get(name)
        state = _state(entry.stat(follow_symlinks=False))

        if replacement is None and self._states.get(name) == (state, _state_at(copy, entry.name)):
            return

        _remove(copy, entry.name)

        if replacement is None:
            copy_entry(original, copy, entry.name, entry.name, self._names, update.progress)
            self._states[name] = (state, _state_at(copy, entry.name) or ())
        else:
            self._states.pop(name, None)
            update.files.discard(name)
            mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & 0o755

            with closing(os.open(entry.name, NEW_FILE, mode, dir_fd=copy)) as file:
                write_all(file, _translated(read_handle(replacement), self._names))

    def apply_changes(self, copy: int, original: int, names: ViewNames) -> list[str]:
        """Apply the changes of the copy to the open folder `original`; the names of refused or failed ones."""
        entries = dict(_walk(copy, "", Progress()))
        files = {name: status for name, status in entries.items() if not stat.S_ISDIR(status.st_mode)}
        folders = {name: stat.S_IMODE(entries[name].st_mode) for name in entries.keys() - files.keys()}
        removed = self._states.keys() - files.keys()
        removed_folders = self._folders.keys() - folders.keys()
        changed = {name for name, status in files.items() if self._is_changed(name, status)}
        changed_folders = {name for name, mode in folders.items() if mode != self._folders.get(name)}
        refused = {name for name in removed | removed_folders | changed | changed_folders if names.forbid(name)}

        for name in sorted(removed - refused):
            del self._states[name]
            with suppress(FileNotFoundError), _collected(refused, name), _parent(original, name) as (folder, file_name):
                os.unlink(file_name, dir_fd=folder)

        for name in sorted(removed_folders - refused, reverse=True):
            with suppress(OSError), _parent(original, name) as (folder, file_name):  # not empty: another file is in it
                os.rmdir(file_name, dir_fd=folder)

        for name in sorted(changed_folders - refused):
            with _collected(refused, name):
                _make_folder(original, name, folders[name])

        for name in sorted(changed - refused):
            with (
                _collected(refused, name),
                _parent(copy, name) as (folder_copy, file_name),
                _parent(original, name) as (folder, _),
            ):
                _replace(folder_copy, folder, file_name, self._names)
                self._states[name] = (_state_at(folder, file_name) or (), _state_at(folder_copy, file_name) or ())

        return sorted(name for name in refused if refused.isdisjoint(folders_above(name)))

    def translate(self, data: bytes) -> bytes:
        """Return a text with the second of the names in place of the first."""
        return _translated(data, self._names)

    def add_link(self, copy: int, name: str, target: str) -> None:
        """Create a link in the copy that does not count as a change."""
        _make_link(copy, name, target)
        self._states[name] = ((), _state(status_beneath(copy, name.split("/"))))

    def _is_changed(self, name: str, status: os.stat_result) -> bool:
        states = self._states.get(name)
        return states is None or states[1] != _state(status)


@dataclass
class Progress:
    """Counts entries and bytes, and ends an update that has too many or takes more than `seconds`."""

    seconds: float = LONGEST_COPY_S
    most_bytes: float = inf
    started: float = field(default_factory=time.monotonic)
    entries: int = 0
    bytes: int = 0

    def count(self, entries: int, prefix: str) -> None:
        """Count the entries of a folder. Raises NotCopiedError."""
        self.entries += entries
        if self.entries > MOST_ENTRIES:
            raise NotCopiedError(f"there are more than {MOST_ENTRIES:,} files and folders")
        if prefix.count("/") > DEEPEST:
            raise NotCopiedError(f"there are more than {DEEPEST} folders below each other")

        self.count_bytes(0)

    def count_bytes(self, size: int) -> None:
        """Count bytes that were copied. Raises NotCopiedError."""
        self.bytes += size
        if self.bytes > self.most_bytes:
            raise NotCopiedError(f"its files have more than {self.most_bytes / 1e9:g} GB")
        if time.monotonic() > self.started + self.seconds:
            raise NotCopiedError(f"copying takes more than {self.seconds:.3g} s")


@dataclass
class _Update:
    """The state of one update: the `files` and links that exist, and the folders that become links (`linked`)."""

    names: ViewNames
    links: str
    progress: Progress = field(default_factory=Progress)
    files: set[str] = field(default_factory=set)
    linked: list[str] = field(default_factory=list)

    def is_link(self, entry_name: str, name: str, folder: int) -> bool:
        """Return whether this folder becomes a link in the copy."""
        if self.links:
            return entry_name == self.links

        if entry_name == GIT_DIRECTORY:
            return True

        return name in self.names.protected and is_bare_repository(os.listdir(folder))


@contextmanager
def _collected(failed: set[str], name: str) -> Iterator[None]:
    """Add the name to `failed` on an error; only a full or broken disk ends the other changes."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise

        failed.add(name)


def _walk(folder: int, prefix: str, progress: Progress) -> Iterator[tuple[str, os.stat_result]]:
    """Name and status of all folders, files and links below an open folder; each folder before its content."""
    names = os.listdir(folder)
    progress.count(len(names), prefix)

    for name in names:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            yield f"{prefix}{name}", status
            os.chmod(name, stat.S_IMODE(status.st_mode) | _PRIVATE, dir_fd=folder)  # a program may have locked it
            with closing(open_beneath(folder, (name,), os.O_RDONLY | os.O_DIRECTORY)) as below:
                yield from _walk(below, f"{prefix}{name}/", progress)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            yield f"{prefix}{name}", status


@contextmanager
def _parent(root: int, name: str) -> Iterator[tuple[int, str]]:
    """A handle of the parent folder, and the last part of the name."""
    *parts, file_name = name.split("/")
    with closing(open_directory(root, parts)) as folder:
        yield folder, file_name


def _state(status: os.stat_result) -> State:
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _state_at(folder: int, entry_name: str) -> State | None:
    with suppress(FileNotFoundError):
        return _state(os.stat(entry_name, dir_fd=folder, follow_symlinks=False))

    return None


def _is_folder(folder: int, entry_name: str) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(entry_name, dir_fd=folder, follow_symlinks=False).st_mode)

    return False


def _remove(folder: int, entry_name: str) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if _is_folder(folder, entry_name):
        # Programs that remove what Python cannot have another table of handles.
        remove_tree(os.path.join(os.readlink(f"/proc/self/fd/{folder}"), entry_name))
        return

    with suppress(FileNotFoundError):
        os.unlink(entry_name, dir_fd=folder)


def _make_link(root: int, name: str, target: str) -> None:
    with _parent(root, name) as (folder, file_name):
        _remove(folder, file_name)
        os.symlink(target, file_name, dir_fd=folder)


def _make_folder(root: int, name: str, mode: int) -> None:
    with _parent(root, name) as (folder, file_name):
        with suppress(FileExistsError):
            os.mkdir(file_name, dir_fd=folder)

        with closing(open_beneath(folder, (file_name,), os.O_RDONLY | os.O_DIRECTORY)) as handle:
            os.fchmod(handle, mode & PERMISSION_BITS)


def _replace(source: int, target: int, entry_name: str, names: tuple[bytes, bytes] | None) -> None:
    """Replace a file or a link in `target` by that in `source`, in one step; `names` is translated backwards."""
    temporary = f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    try:
        copy_entry(source, target, entry_name, temporary, names and (names[1], names[0]))
        with suppress(OSError):  # it does not exist, or belongs to another user
            status = os.stat(entry_name, dir_fd=target, follow_symlinks=False)
            os.chown(temporary, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)

        os.rename(temporary, entry_name, src_dir_fd=target, dst_dir_fd=target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=target)

        raise


def copy_entry(
    source: int,
    target: int,
    entry_name: str,
    new: str,
    names: tuple[bytes, bytes] | None = None,
    progress: Progress | None = None,
) -> None:
    """Copy a file or link to the new name `new` in `target`, with its mode, times and holes.

    In a text, and in a link, the first of the `names` becomes the second. `progress` counts the bytes.
    """
    status = os.stat(entry_name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        link_target = os.readlink(os.fsencode(entry_name), dir_fd=source)
        os.symlink(_translated(link_target, names), os.fsencode(new), dir_fd=target)
        return

    with (
        closing(open_beneath(source, (entry_name,), os.O_RDONLY)) as reader,
        closing(os.open(new, NEW_FILE, _PRIVATE, dir_fd=target)) as writer,
    ):
        if status.st_size <= LARGEST_TEXT:
            data = os.pread(reader, status.st_size, 0)
            write_all(writer, _translated(data, names))
            if progress is not None:
                progress.count_bytes(len(data))
        else:
            _copy_data(reader, writer, progress)

        os.fchmod(writer, stat.S_IMODE(status.st_mode) & PERMISSION_BITS)
        os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_data(reader: int, writer: int, progress: Progress | None) -> None:
    """Copy an open file to an empty one, without its holes."""
    size = os.fstat(reader).st_size
    end = 0

    while end < size:
        try:
            start = os.lseek(reader, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise

            break  # the rest is a hole

        end = os.lseek(reader, start, os.SEEK_HOLE)
        while start < end and (data := os.pread(reader, min(_CHUNK, end - start), start)):
            os.lseek(writer, start, os.SEEK_SET)
            write_all(writer, data)
            start += len(data)
            if progress is not None:
                progress.count_bytes(len(data))

    os.ftruncate(writer, size)


def _translated(data: bytes, names: tuple[bytes, bytes] | None) -> bytes:
    """Return a text with the second of the names in place of the first; binary data stays the same."""
    if names is None or b"\0" in data:
        return data
    return data.replace(*names)


def write_all(handle: int, data: bytes) -> None:
    """Write all of the data to an open file."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(handle, remaining) :]
