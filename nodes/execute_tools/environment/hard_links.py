"""Denied files under their other names: hard links.

A link (`ln .env notes.txt`) has no target that could be judged; it is the same file. So a file with several names is
refused, for reading and for writing, if the judge denies one that it has inside the workspace. To know its names, the
workspace is gone through once, by handles, denied directories included, and not before such a file is asked for. What
cannot be gone through to the end counts as denied.

A name that the file has outside the workspace is not looked for: package managers (uv, pnpm) link thousands of files
into a project, and only who may read a file can make a link to it. A write never changes the file outside, because it
puts a new file at the name instead of writing into the old one. Against a program that moves files about at this very
moment the rule is no defence; that program can read the file itself.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.handles import closing, open_directory, open_root
from nodes.records import ToolError, ToolErrorCode

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
