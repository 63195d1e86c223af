"""The folder of one copy of a workspace: who may use it now, what it began with, and how it goes away.

It holds a `workspace`, what belongs to the copy beside it, and a note of what it is, which is written last. A folder
that is neither empty nor ours is never touched.

What the workspace began with is in a private repository and in a record of its files. Git never sees the workspace
itself: it is told the files byte for byte, so that neither attributes nor filters nor another repository inside change
what a patch says. The record tells which files and links may have changed without reading the others. A file that was
recorded stays in view, though it may be ignored later; one that was ignored stays out of it.
"""

import fcntl
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from mendgraph.nodes.execute_tools.files.atomic_write import sync_folder
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_beneath, open_directory, open_regular, open_root
from mendgraph.nodes.execute_tools.files.tree_walk import IGNORE_FILE, LARGEST_IGNORE_FILE, Entry, IgnoreRules
from mendgraph.nodes.execute_tools.processes.git import init_repository, run_git, succeeded
from mendgraph.nodes.execute_tools.processes.processes import ProcessResult
from mendgraph.nodes.records import ToolError, ToolErrorCode

WORKSPACE: Final = "workspace"
FINISHED: Final = "copy.json"
BEGUN: Final = "copy.begun.json"

_LARGEST_NOTE: Final = 1_000_000
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class CopyFolder:
    """An open folder that nobody else prepares or removes meanwhile."""

    def __init__(self, path: str, handle: int) -> None:
        self.path, self.handle = path, handle

    def note(self, name: str = FINISHED) -> Mapping[str, Any] | None:
        """What is noted of the copy; None where it is not finished, or with `BEGUN` not even begun."""
        try:
            with closing(open_beneath(self.handle, (name,), os.O_RDONLY)) as handle:
                found = json.loads(os.read(handle, _LARGEST_NOTE))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def write_note(self, note: Mapping[str, Any], name: str = FINISHED) -> None:
        """Note what the copy is; it is on the disk when this returns. Raises OSError: it could not be written."""
        temporary = f".{name}.new"
        self.write(temporary, json.dumps(note, ensure_ascii=True, indent=1).encode(), sync=True)
        os.rename(temporary, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        sync_folder(self.handle)

    def write(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Write a file beside the workspace; with `sync` its bytes are on the disk when this returns.

        Raises OSError: it could not be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(name, flags, 0o600, dir_fd=self.handle)) as handle:
            with open(handle, "wb", closefd=False) as file:
                file.write(data)
            if sync:
                os.fsync(handle)

    def empty(self) -> ToolError | None:
        """Take away all that is in it; CONFLICT, and nothing is touched, where this is no folder of a copy.

        Raises OSError: something could not be taken away.
        """
        names = os.listdir(self.handle)
        if names and not {FINISHED, BEGUN, f".{BEGUN}.new"} & set(names):
            message = (
                f"{quoted(self.path)} is not empty and holds no copy of a workspace: name another folder, or remove it."
            )
            return ToolError(code=ToolErrorCode.CONFLICT, message=message)
        if FINISHED in names and BEGUN not in names:
            self.write_note(self.note() or {}, BEGUN)
        if FINISHED in names:
            os.unlink(FINISHED, dir_fd=self.handle)
        for name in sorted(os.listdir(self.handle), key=BEGUN.__eq__):
            _remove(self.handle, name)
        return None

    def remove(self) -> ToolError | None:
        """Take away the folder with all that is in it; cut off in the middle, it holds a half-made copy.

        Raises OSError: something could not be taken away.
        """
        problem = self.empty()
        if problem is None:
            os.rmdir(self.path)
        return problem


@contextmanager
def copy_folder(path: str, *, make: bool) -> Iterator[CopyFolder | ToolError]:
    """The folder at this absolute path, made where there is none if `make` says so; NOT_FOUND otherwise."""
    try:
        if make:
            os.makedirs(path, mode=0o700, exist_ok=True)
        handle = open_root(path)
    except OSError as error:
        yield os_failure(error, "use for a copy of a workspace", path)
        return
    with closing(handle):
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield CopyFolder(os.path.realpath(path), handle)
        finally:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a copy of this process may have the handle


def _remove(folder_fd: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=folder_fd)
    else:
        os.unlink(name, dir_fd=folder_fd)


BASE: Final = "refs/heads/base"
NOW: Final = "refs/heads/now"

MOST_PATCH_BYTES: Final = 500_000_000
"""A patch is held in memory."""

_CHUNK: Final = 1_048_576
_SETTINGS: Final = (("core.compression", "1"), ("core.bigFileThreshold", "16m"), ("fastimport.unpackLimit", "0"))
_DIFF: Final = (
    *("diff-tree", "-r", "-p", "--binary", "--full-index", "--find-renames", "-l400"),
    *("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", BASE, NOW),
)


class PrivateGit:
    """The private repository in the folder `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def make(self, objects: str = "", object_format: str = "sha1") -> ToolError | None:
        """Make it; it has what the repository with the folder `objects` has, if one is named.

        Raises OSError: the disk refuses.
        """
        problem = init_repository(self.path, object_format, _SETTINGS)
        if problem is not None:
            return problem
        if objects:
            with open(os.path.join(self.path, "objects", "info", "alternates"), "wb") as file:
                file.write((_path(objects) if "\n" in objects else os.fsencode(objects)) + b"\n")
        return None

    def keep(self, root_fd: int, names: Iterable[str], *, tree: str = "", gone: Iterable[str] = ()) -> str | ToolError:
        """Remember the beginning: these files as they are, on top of the known `tree` without `gone`; its own tree."""
        problem = self._store(root_fd, BASE, f'M 040000 {tree} ""\n' if tree else "", gone, names)
        if problem is not None:
            return problem
        found = self._run("read", "rev-parse", "--verify", f"{BASE}^{{tree}}")
        return found if isinstance(found, ToolError) else found.stdout.decode().strip()

    def patch(self, root_fd: int, gone: Iterable[str], names: Iterable[str]) -> bytes | ToolError:
        """How the beginning becomes what is now: `gone` are not there any more, `names` are told as they are."""
        problem = self._store(root_fd, NOW, f"from {BASE}^0\n", gone, names)
        if problem is not None:
            return problem
        found = self._run("compare", *_DIFF)
        if isinstance(found, ToolError):
            return found
        if found.truncated:
            message = f"The patch has more than {MOST_PATCH_BYTES:,} bytes: what was changed is in the copy itself."
            return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
        return found.stdout

    def _run(self, doing: str, *arguments: str) -> ProcessResult | ToolError:
        argv = (f"--git-dir={self.path}", *arguments)
        found = run_git(argv, cwd="/", settings=_SETTINGS, max_output_bytes=MOST_PATCH_BYTES)
        cut = isinstance(found, ProcessResult) and found.truncated
        return found if cut else succeeded(found, doing, self.path)

    def _store(
        self, root_fd: int, reference: str, beginning: str, gone: Iterable[str], names: Iterable[str]
    ) -> ToolError | None:
        """Make a commit of files. They are written down for git first, on the disk where it keeps them."""
        with tempfile.TemporaryFile(dir=self.path) as stream:
            head = f"commit {reference}\ncommitter mendgraph <mendgraph@localhost> 0 +0000\ndata 0\n{beginning}"
            stream.write(head.encode())
            stream.writelines(b"D " + _path(name) + b"\n" for name in gone)
            for name in names:
                try:
                    stream.writelines(_content_for_git(root_fd, name))
                except OSError as error:
                    return os_failure(error, "read", name)
            stream.write(b"\ndone\n")
            stream.seek(0)
            argv = (f"--git-dir={self.path}", "fast-import", "--quiet", "--force", "--done", "--depth=0")
            stored = succeeded(run_git(argv, cwd="/", settings=_SETTINGS, given=stream), "store files in", self.path)
        return stored if isinstance(stored, ToolError) else None


def _content_for_git(root_fd: int, name: str) -> Iterator[bytes]:
    """A file or a link as git is told it. Raises OSError: it cannot be read."""
    *above, last = name.split("/")
    with closing(open_directory(root_fd, above)) as folder:
        if stat.S_ISLNK(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
            target = os.fsencode(os.readlink(last, dir_fd=folder))
            yield b"M 120000 inline %s\ndata %d\n%s\n" % (_path(name), len(target), target)
            return
        handle, status = open_regular(folder, (last,), os.O_RDONLY)
    with closing(handle):
        mode = b"100755" if status.st_mode & stat.S_IXUSR else b"100644"
        yield b"M %s inline %s\ndata %d\n" % (mode, _path(name), status.st_size)
        left = status.st_size
        while left:
            chunk = os.read(handle, min(left, _CHUNK))
            if not chunk:
                raise OSError(0, f"{quoted(name)} became shorter while it was read")
            left -= len(chunk)
            yield chunk
        yield b"\n"


def _path(name: str) -> bytes:
    """The name between quotes, as C writes it. Source: git-fast-import(1)."""
    letters = (
        _ESCAPED.get(byte) or (b"%c" % byte if 32 <= byte < 127 else b"\\%03o" % byte) for byte in os.fsencode(name)
    )
    return b'"' + b"".join(letters) + b'"'


_ESCAPED: Final = {ord('"'): b'\\"', ord("\\"): b"\\\\"}


NEVER_IN_GIT: Final = frozenset({".git", "git~1"})
"""Names, in lower case, that git keeps out of every tree. Source: verify_path in git's read-cache.c."""

_TICK_NS: Final = 20_000_000
"""Within this time a file system's clock may stand still, so that a second change leaves no trace."""

Stamp = tuple[int, int, int, int, int]
"""Mode, size, times of the last change of bytes and of anything in ns, number; all 0 where these would not be enough.
No program can set the second time back."""

_UNSURE: Final[Stamp] = (0, 0, 0, 0, 0)


class TreeRecord(NamedTuple):
    """The `files` of a tree, and the `hidden` names in it that were ignored, with a "/" after those of folders."""

    files: dict[str, Stamp]
    hidden: frozenset[str] = frozenset()

    def as_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {"files": {name: list(stamp) for name, stamp in self.files.items()}, "hidden": sorted(self.hidden)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TreeRecord":
        """The record that `as_json` gave."""
        files = {str(name): _stamp(stamp) for name, stamp in values["files"].items()}
        return cls(files, frozenset(map(str, values["hidden"])))


class TreeChanges(NamedTuple):
    """Names that are gone, and names of files and links that are new or may have changed, both sorted."""

    gone: tuple[str, ...]
    touched: tuple[str, ...]


def record_tree(root_fd: int, *, tracked: Iterable[str] | None = None) -> TreeRecord:
    """The tree as it is now; with `tracked`, all of these files that are there and no others.

    Raises OSError: a folder cannot be looked into.
    """
    if tracked is not None:
        return TreeRecord(_stamps(root_fd, tracked))
    look = _Look(root_fd, TreeRecord({}))
    return TreeRecord(look.files, frozenset(look.hidden))


def changes_since(root_fd: int, before: TreeRecord) -> TreeChanges:
    """What may be different now. Raises OSError: a folder cannot be looked into."""
    look = _Look(root_fd, before)
    touched = (name for name, stamp in look.files.items() if stamp == _UNSURE or before.files.get(name) != stamp)
    return TreeChanges(tuple(sorted(before.files.keys() - look.files.keys())), tuple(sorted(touched)))


class _Look:
    def __init__(self, root_fd: int, known: TreeRecord) -> None:
        self.files: dict[str, Stamp] = {}
        self.hidden: list[str] = []
        self._root_fd, self._known = root_fd, known
        self._known_folders = {f"{folder}/" for name in known.files for folder in _folders_around(name)}
        pending = [("", IgnoreRules(), False)]
        while pending:
            pending += self._enter(*pending.pop())

    def _enter(self, folder: str, above: IgnoreRules, ignored: bool) -> list[tuple[str, IgnoreRules, bool]]:
        """Look into one folder; in one that is `ignored` only what is known counts. The folders to look into next."""
        found: list[tuple[str, IgnoreRules, bool]] = []
        with closing(open_directory(self._root_fd, folder.split("/")[:-1])) as here:
            with os.scandir(here) as scanned:
                entries = [each for each in scanned if each.name.lower() not in NEVER_IN_GIT]
            rules = above if ignored else self._rules(folder, entries, above)
            for entry in entries:
                name, is_folder = f"{folder}{entry.name}", entry.is_dir(follow_symlinks=False)
                hides = self._hides(name, rules, is_folder=is_folder, ignored=ignored)
                if is_folder and (not hides or f"{name}/" in self._known_folders):
                    found.append((f"{name}/", rules, hides))
                elif hides:
                    self.hidden.append(f"{name}/" if is_folder else name)
                elif not is_folder:
                    stamp = _stamp_at(here, entry.name)
                    if stamp is not None:
                        self.files[name] = stamp
        return found

    def _hides(self, name: str, rules: IgnoreRules, *, is_folder: bool, ignored: bool) -> bool:
        if not is_folder and name in self._known.files:
            return False
        whole = f"{name}/" if is_folder else name
        if ignored or whole in self._known.hidden:
            return True
        return bool(rules.specs) and rules.ignores(Entry(name, "directory" if is_folder else "file", 0))

    def _rules(self, folder: str, entries: "list[os.DirEntry[str]]", above: IgnoreRules) -> IgnoreRules:
        own = [entry for entry in entries if entry.name == IGNORE_FILE and entry.is_file(follow_symlinks=False)]
        listed = [Entry(f"{folder}{IGNORE_FILE}", "file", 0)] if own else []
        return above.within(folder[:-1] or ".", listed, self._read)

    def _read(self, name: str) -> bytes:
        try:
            handle, _ = open_regular(self._root_fd, name.split("/"), os.O_RDONLY)
        except OSError:
            return b""
        with closing(handle):
            return os.read(handle, LARGEST_IGNORE_FILE + 1)


def _stamps(root_fd: int, names: Iterable[str]) -> dict[str, Stamp]:
    by_folder: dict[str, list[str]] = {}
    for name in names:
        folder, _, last = name.rpartition("/")
        by_folder.setdefault(folder, []).append(last)
    found: dict[str, Stamp] = {}
    for folder, lasts in by_folder.items():
        try:
            handle = open_directory(root_fd, folder.split("/") if folder else [])
        except (FileNotFoundError, NotADirectoryError):
            continue
        with closing(handle) as here:
            for last in lasts:
                stamp = _stamp_at(here, last)
                if stamp is not None:
                    found[f"{folder}/{last}" if folder else last] = stamp
    return found


def _stamp_at(folder_fd: int, name: str) -> Stamp | None:
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        return None
    if max(status.st_ctime_ns, status.st_mtime_ns) > time.time_ns() - _TICK_NS:
        return _UNSURE
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _folders_around(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _stamp(values: Iterable[int]) -> Stamp:
    mode, size, mtime, ctime, number = map(int, values)
    return mode, size, mtime, ctime, number
