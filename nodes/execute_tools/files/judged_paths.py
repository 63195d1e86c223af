"""Each name is judged twice: as it was asked for, and as the real name of what is then opened.

A hard link (`ln .env notes.txt`) has no target that could be judged; it is the same file. So a file with several names
is refused, for reading and for writing, if the judge denies one that it has inside the workspace. To know its names,
the workspace is gone through once, by handles, denied directories included, and not before such a file is asked for.
What cannot be gone through to the end counts as denied.

A name that the file has outside the workspace is not looked for: package managers (uv, pnpm) link thousands of files
into a project, and only who may read a file can make a link to it. A write never changes the file outside, because it
puts a new file at the name instead of writing into the old one. Against a program that moves files about at this very
moment the rule is no defence; that program can read the file itself.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import (
    beginning,
    closing,
    handle_name,
    open_directory,
    open_root,
    status_beneath,
)
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, PathSandbox, Place, extension_denial
from mendgraph.nodes.records import CONTENT_BYTES, JsonMap, ToolError, ToolErrorCode

MOST_ENTRIES: Final = 500_000
"""Files and directories that are looked at: a monorepo with its packages has fewer."""
DEEPEST: Final = 256
"""Directories below each other."""
ATTEMPTS: Final = 3
"""A build changes the workspace while it is gone through; then that begins anew."""

_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_Inode = tuple[int, int]
"""Device and number: what two names of one file have in common."""


@dataclass(frozen=True)
class _LinkedFile:
    """The names of one file inside the workspace, as of looking, and how many it has in all."""

    count: int
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Links:
    """Every file with several names; `gap` says why some may be missing, "" if none is."""

    files: dict[_Inode, _LinkedFile]
    gap: str = ""


class _GapError(Exception):
    """The workspace cannot be gone through; the message says why."""


class HardLinks:
    """The files of one workspace that have several names.

    `judge` answers about one name, relative to the workspace, and whether it is wanted for writing. May be asked by
    several threads.
    """

    def __init__(self, root: str, judge: Callable[[str, bool], ToolError | None]) -> None:
        self._root = root
        self._judge = judge
        self._lock = threading.Lock()
        self._links: _Links | None = None

    def denial(
        self,
        name: str,
        status: Callable[[], os.stat_result],
        *,
        for_write: bool,
        holds: Callable[[str], ToolError | None] = lambda _: None,
    ) -> ToolError | None:
        """Why the file that is open or was found under `name` may not be used because of another name, or None.

        `status` gives what the file is now; its OSError is passed on. `holds` denies a name for what the file holds.
        """
        found = status()
        if not _has_several_names(found):
            return None
        with self._lock:
            links, fresh = self._links_as_of(name, found)
        if fresh and not _knows(links, name, found):
            found = status()  # a file that is made may have a second name for a moment
            if not _has_several_names(found):
                return None
        linked = links.files.get(_inode(found))
        for other in linked.names if linked else ():
            if self._judge(other, for_write) is not None or holds(other) is not None:
                message = f"{quoted(name)} is the same file as {quoted(other)}, which is denied. Go on without it."
                return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
        gap = links.gap or ("" if _knows(links, name, found) else "it is not where it was a moment ago")
        return _unknown(name, gap) if gap else None

    def _links_as_of(self, name: str, status: os.stat_result) -> tuple[_Links, bool]:
        """What is known, and whether it was looked for just now: if this file has got or lost a name since."""
        links = self._links
        if links is not None and (links.gap or _knows(links, name, status, status.st_nlink)):
            return links, False
        self._links = _look(self._root)
        return self._links, True


def _has_several_names(status: os.stat_result) -> bool:
    return status.st_nlink > 1 and stat.S_ISREG(status.st_mode)


def _knows(links: _Links, name: str, status: os.stat_result, count: int | None = None) -> bool:
    linked = links.files.get(_inode(status))
    return linked is not None and name in linked.names and count in {None, linked.count}


def _look(root: str) -> _Links:
    for _ in range(ATTEMPTS):
        try:
            return _Links(_linked_files(root))
        except _GapError as gap:
            return _Links({}, str(gap))
        except OSError:  # somebody took something away meanwhile
            continue
    return _Links({}, "the workspace is changing all the time")


def _linked_files(root: str) -> dict[_Inode, _LinkedFile]:
    files: dict[_Inode, _LinkedFile] = {}
    pending: list[tuple[str, ...]] = [()]
    seen = 0
    with closing(open_root(root)) as top:
        while pending:
            parts = pending.pop()
            with _entries(top, parts) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((*parts, entry.name))
                    elif not entry.is_symlink():
                        _note(files, entry.stat(follow_symlinks=False), "/".join((*parts, entry.name)))
                    if seen > MOST_ENTRIES or len(parts) > DEEPEST:
                        raise _GapError("the workspace is too large to look for them")
    return files


@contextmanager
def _entries(top: int, parts: tuple[str, ...]) -> Iterator[Iterator[os.DirEntry[str]]]:
    try:
        with closing(open_directory(top, parts)) as here, os.scandir(here) as entries:
            yield entries
    except OSError as error:
        if error.errno in _GONE:
            raise
        name = quoted("/".join(parts) or ".")
        raise _GapError(f"{name} cannot be looked through ({os.strerror(error.errno or 0)})") from error


def _note(files: dict[_Inode, _LinkedFile], status: os.stat_result, name: str) -> None:
    if status.st_nlink > 1:
        files.setdefault(_inode(status), _LinkedFile(status.st_nlink)).names.append(name)


def _inode(status: os.stat_result) -> _Inode:
    return status.st_dev, status.st_ino


def _unknown(name: str, reason: str) -> ToolError:
    message = (
        f"{quoted(name)} has other names (hard links), and whether one of them is denied cannot be told, because "
        f"{reason}. Go on without it."
    )
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


PathJudge = Callable[[str, bool], ToolError | None]
"""(workspace-relative posix path, for writing?) -> the denial, or None. Guard's rules, handed in by `build`."""

ContentJudge = Callable[[str], Callable[[bytes], ToolError | None] | None]
"""The same for what a file of this name holds: what judges its first `CONTENT_BYTES`, or None where nothing does."""


class JudgedPaths:
    """The sandbox and the judge together. `observe` receives the sandbox's refusals.

    `allowed_extensions` are those of the files that may be read or written, in lower case with the dot; empty allows
    all. Directories have none. Source: spec 4, `allowed_exts`. `contents` judges what the files hold, `namesakes` are
    the sandbox's.
    """

    def __init__(
        self,
        root: str,
        judge: PathJudge,
        observe: Callable[[JsonMap], None] | None = None,
        allowed_extensions: frozenset[str] = frozenset(),
        contents: ContentJudge = lambda _: None,
        namesakes: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        self._judge, self._contents = judge, contents
        self._extensions = allowed_extensions
        self._sandbox = PathSandbox(root, may_name=self._may_name, namesakes=namesakes, observe=observe)
        self.root = self._sandbox.root
        self._hard_links = HardLinks(self.root, lambda name, for_write: self.denial(name, for_write=for_write))

    def of_any_extension(self) -> Self:
        """The same for files that are read for our own use, such as `.gitignore`: without the extensions."""
        view = copy(self)
        view._extensions = frozenset()  # noqa: SLF001 - its own kind
        return view

    def place(self, path: str, access: PathAccess) -> Place | ToolError:
        """Where the path leads, if the name asked for and the real one may both be used.

        The name asked for is judged before anything is looked up, so a denial does not tell what is there.
        """
        requested = self._sandbox.requested_name(path)
        denial = None if requested is None else self._denial_for(requested, access)
        if denial is not None:
            return denial
        place = self._sandbox.locate(path, access)
        if isinstance(place, ToolError):
            return place
        names = {place.requested, place.real} - {requested}
        denials = (self._denial_for(name, access) for name in sorted(names))
        return next((each for each in denials if each is not None), place)

    def existing(self, path: str, access: PathAccess) -> Place | ToolError:
        """The same, or NOT_FOUND with what may have been meant."""
        place = self.place(path, access)
        if isinstance(place, Place) and place.missing:
            return self._sandbox.not_found(path, place.requested, access)
        return place

    def leads_to(self, path: str, access: PathAccess) -> str | ToolError:
        r"""The real name of where a path leads, of which nothing is judged, or why it may not go there.

        `src\a.py` is refused where no file is called so: `src/a.py` is meant.
        """
        place = self._sandbox.locate(path, access)
        if isinstance(place, ToolError) or not (place.missing and "\\" in path):
            return place if isinstance(place, ToolError) else place.real
        return self._sandbox.outside(path, access, "does not exist, and '/' stands between names")

    def opened_name(self, descriptor: int, root_fd: int, place: Place, *, for_write: bool) -> str | ToolError:
        """The real name of the file or directory that is open, judged; the walked name where the kernel knows none."""
        root, absolute = handle_name(root_fd), handle_name(descriptor)
        name = place.real if root is None or absolute is None else os.path.relpath(absolute, root)
        if name == ".." or name.startswith("../"):
            return os_failure(OSError(errno.ESTALE, ""), "open", place.requested)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return self.denial(name, for_write=for_write) or name
        denial = self._denial_for(name, PathAccess.WRITE_FILE if for_write else PathAccess.READ_FILE)
        held = partial(self.held_denial, read=lambda: os.pread(descriptor, CONTENT_BYTES, 0))
        denial = denial or held(place.requested) or held(name)
        status = partial(os.fstat, descriptor)
        return denial or self._hard_links.denial(name, status, for_write=for_write, holds=held) or name

    def denied_file(self, path: str, *, for_write: bool = False) -> ToolError | None:
        """Why a file may not be used under this path, whether or not it is there, or None.

        For those who read files in another way than by opening them here: the file's other names count as well.
        """
        place = self.place(path, PathAccess.WRITE_FILE if for_write else PathAccess.READ_FILE)
        if isinstance(place, ToolError):
            return place
        if place.missing:
            return None
        try:
            with closing(open_root(self.root)) as root:
                status = partial(status_beneath, root, place.parts)
                if not stat.S_ISREG(status().st_mode):
                    return None
                held = partial(self.held_denial, read=partial(beginning, root, place.parts))
                denial = held(place.requested) or held(place.real)
                return denial or self._hard_links.denial(place.real, status, for_write=for_write, holds=held)
        except OSError as error:
            return os_failure(error, "look at", place.requested)

    def denial(self, name: str, *, for_write: bool) -> ToolError | None:
        """The judge's answer about a workspace-relative name; a judge that breaks denies."""
        try:
            return self._judge(name, for_write)
        except Exception as error:  # noqa: BLE001 - a rule that breaks must not open the door
            return _unjudged(name, error)

    def held_denial(self, name: str, read: Callable[[], bytes]) -> ToolError | None:
        """Why a file may not be used under this workspace-relative name for what it holds, or None.

        `read` gives its first `CONTENT_BYTES`, and is called only where they matter; where it fails, that denies.
        """
        try:
            judge = self._contents(name)
            return None if judge is None else judge(read())
        except Exception as error:  # noqa: BLE001 - a rule that breaks must not open the file
            return _unjudged(name, error)

    def suggest(self, path: str) -> tuple[str, ...]:
        """Up to three closest existing names that may be read, best first."""
        return self._sandbox.suggest(path)

    def _denial_for(self, name: str, access: PathAccess) -> ToolError | None:
        denial = self.denial(name, for_write=access is PathAccess.WRITE_FILE)
        if denial is not None or access is PathAccess.LIST_DIR:
            return denial
        return extension_denial(name, self._extensions)

    def _may_name(self, name: str) -> bool:
        if self._denial_for(name, PathAccess.READ_FILE) is None:
            return True
        return self.denial(name, for_write=False) is None and self._is_directory(name)

    def _is_directory(self, name: str) -> bool:
        with suppress(OSError), closing(open_root(self.root)) as root:
            return stat.S_ISDIR(status_beneath(root, name.split("/")).st_mode)
        return False


def _unjudged(name: str, error: Exception) -> ToolError:
    message = f"{quoted(name)} could not be judged ({type(error).__name__}), so it is denied."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
