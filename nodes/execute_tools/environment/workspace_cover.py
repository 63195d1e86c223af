"""What of a workspace no program may see or change: files that are denied by name, and where git keeps its own.

The whole tree is looked through, ignored folders too, by handle and without following a link. A link is left alone:
where it leads has a name of its own if it lies in the workspace, and is not there for a program if it does not.
Only what is there can be covered; a denied name that a program makes is found by looking again.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodes.execute_tools.environment.failures import os_failure
from nodes.execute_tools.environment.handles import closing, open_beneath, open_regular, open_root
from nodes.execute_tools.environment.listing import GIT_DIRECTORY
from nodes.records import ToolError, ToolErrorCode

Denied = Callable[[str], bool]
"""Whether this workspace-relative name, with "/" between its parts, is to be kept from a program."""

MOST_COVERED: Final = 1_000
"""Names that are mounted over. Source: bubblewrap takes 9,000 arguments at most."""

MOST_REPOSITORIES: Final = 100
"""Each of them needs an open handle."""

DEEPEST: Final = 200
"""Folders below each other that are looked into; each is an open handle meanwhile."""

_LONGEST_POINTER = 10_000
"""Bytes of the small files in which git says where a linked worktree belongs."""


@dataclass
class Cover:
    """Names below the workspace: `repositories` to be read-only; denied `files` and `folders` to be hidden."""

    repositories: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*self.repositories, *self.files, *self.folders))


def find_cover(root_fd: int, denied: Denied, deadline: float) -> Cover | ToolError:
    """What is to be covered now; TIMEOUT at `deadline` (of the monotonic clock), UNAVAILABLE where it is too much."""
    search = _Search(denied, deadline)
    try:
        with closing(open_beneath(root_fd, (), os.O_RDONLY)) as top:
            search.look(top, "", 0)
    except OSError as error:
        return os_failure(error, "look through", ".")
    except _GivenUpError as error:
        return error.reason
    return search.cover


class _GivenUpError(Exception):
    def __init__(self, code: ToolErrorCode, message: str) -> None:
        super().__init__(message)
        self.reason = ToolError(code=code, message=message)


class _Search:
    def __init__(self, denied: Denied, deadline: float) -> None:
        self._denied, self._deadline = denied, deadline
        self.cover = Cover()

    def look(self, folder_fd: int, prefix: str, depth: int) -> None:
        """Look through one open folder; `prefix` is its own name with a "/" at the end, or ""."""
        if time.monotonic() > self._deadline:
            message = "The workspace is too large to be looked through for denied files in the time of one command."
            raise _GivenUpError(ToolErrorCode.TIMEOUT, message)
        with os.scandir(folder_fd) as found:
            entries = sorted(found, key=lambda each: each.name)
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.is_symlink():
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == GIT_DIRECTORY:
                self._add(self.cover.repositories, name)
            elif self._is_denied(name):
                self._add(self.cover.folders if is_folder else self.cover.files, name)
            elif is_folder:
                self._enter(folder_fd, entry.name, name, depth)

    def _enter(self, parent_fd: int, part: str, name: str, depth: int) -> None:
        """One folder further down. What we may not read is hidden: a program could change its mode."""
        if depth >= DEEPEST:
            message = f"The workspace has more than {DEEPEST} folders below each other, so no command is run in it."
            raise _GivenUpError(ToolErrorCode.UNAVAILABLE, message)
        try:
            folder = open_beneath(parent_fd, (part,), os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            self._add(self.cover.folders, name)
            return
        except OSError:  # it was there a moment ago
            return
        with closing(folder):
            self.look(folder, f"{name}/", depth + 1)

    def _is_denied(self, name: str) -> bool:
        try:
            return self._denied(name)
        except Exception:  # noqa: BLE001 - a rule that breaks must not open the door
            return True

    def _add(self, names: list[str], name: str) -> None:
        names.append(name)
        if len(names) > (MOST_REPOSITORIES if names is self.cover.repositories else MOST_COVERED):
            message = (
                f"The workspace has more than {MOST_COVERED} denied files or folders, or {MOST_REPOSITORIES}"
                " repositories, so no command is run in it: move what is not needed out of it."
            )
            raise _GivenUpError(ToolErrorCode.UNAVAILABLE, message)


def git_placeholder(root_fd: int) -> bool | ToolError:
    """Make an empty `.git` where there is none, so that it can be made read-only: True where it was made."""
    try:
        status = os.stat(GIT_DIRECTORY, dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        try:
            os.mkdir(GIT_DIRECTORY, dir_fd=root_fd)
        except OSError as error:
            return False if error.errno == errno.EROFS else os_failure(error, "protect", GIT_DIRECTORY)
        return True
    except OSError as error:
        return os_failure(error, "protect", GIT_DIRECTORY)
    if not stat.S_ISLNK(status.st_mode):
        return False
    message = "'.git' is a symbolic link, which cannot be made read-only, so no command is run in this workspace."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def remove_git_placeholder(root_fd: int) -> None:
    """Take the empty `.git` away again."""
    with suppress(OSError):
        os.rmdir(GIT_DIRECTORY, dir_fd=root_fd)


def linked_repository(root: str) -> str | None:
    """The repository elsewhere of which `root` is a linked worktree, if that repository says so itself.

    The pointer in the workspace could name any folder; only git has written the pointer back.
    """
    pointer = _line_of(os.path.join(root, GIT_DIRECTORY))
    own = os.path.realpath(os.path.join(root, pointer.removeprefix("gitdir:").strip()))
    if not pointer.startswith("gitdir:") or os.path.basename(os.path.dirname(own)) != "worktrees":
        return None
    repository = os.path.dirname(os.path.dirname(own))
    back = os.path.realpath(_line_of(os.path.join(own, "gitdir")) or "/")
    if back != os.path.join(root, GIT_DIRECTORY) or not os.path.isfile(os.path.join(repository, "HEAD")):
        return None
    return repository


def _line_of(path: str) -> str:
    """The text of a small regular file, "" where there is none."""
    folder, name = os.path.split(path)
    with suppress(OSError, ValueError), closing(open_root(folder)) as parent:
        handle, _ = open_regular(parent, (name,), os.O_RDONLY)
        with closing(handle):
            return os.fsdecode(os.read(handle, _LONGEST_POINTER)).strip().replace("\0", "")
    return ""
