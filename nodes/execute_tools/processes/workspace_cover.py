"""What of a workspace no program may see or change: denied files, by name or for what they hold, and git's own.

The whole tree is looked through by handle, without following links. All names (hard links) of denied files and of git's
own are hidden, and sockets, pipes and devices, which lead out of the sandbox. A folder that we may not read is hidden,
but not the other names of its files.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from mendgraph.nodes.execute_tools.files.handles import beginning, closing, open_beneath, open_root
from mendgraph.nodes.execute_tools.files.sandbox import ContentJudge
from mendgraph.nodes.execute_tools.files.tree_walk import GIT_DIRECTORY
from mendgraph.nodes.execute_tools.store.user_files import SETTINGS_FILE
from mendgraph.nodes.records import ToolError, ToolErrorCode, os_failure

Denied = Callable[[str], bool]
"""Whether this workspace-relative name, with "/" between its parts, is to be kept from a program."""

Holds = Callable[[int, "os.DirEntry[str]", str], bool]
"""The same of what a file holds; see `HeldSecrets`."""

MOST_COVERED: Final = 1_000
"""Files, and folders, that are mounted over. Source: bubblewrap takes 9,000 arguments at most."""

MOST_ELSEWHERE: Final = 100
"""The same for what is shown beside the workspace."""

MOST_REPOSITORIES: Final = 100
"""Each of them needs an open handle."""

DEEPEST: Final = 200
"""Folders below each other that are looked into; each is an open handle meanwhile."""

_REMEMBERED: Final = 200_000
"""Files whose judgement is remembered."""

_SETTLED_NS: Final = 1_000_000_000
"""After which a change of a file shows in its times. Source: file systems count in steps of up to a second."""

_Inside = Literal["", "hidden", "shown"]


@dataclass
class Cover:
    """Names below the workspace: `repositories` and `settings` to be read-only; denied `files` and `folders` hidden."""

    repositories: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)


class HeldSecrets:
    """Which files are denied for what they hold; each is read again only after it has changed."""

    def __init__(self, judge: ContentJudge) -> None:
        self._judge = lru_cache(_REMEMBERED)(judge)
        self._known: dict[tuple[str | int, ...], bool] = {}

    def __call__(self, folder_fd: int, entry: "os.DirEntry[str]", name: str) -> bool:
        """Whether the regular file `entry` of the open folder, `name` below the workspace, is denied."""
        try:
            judge = self._judge(name)
            return judge is not None and self._judged(judge, folder_fd, entry, name)
        except FileNotFoundError:  # it was there a moment ago
            return False
        except Exception:  # noqa: BLE001 - a rule that breaks must not open the file; nor one that we may not read
            return True

    def _judged(
        self, judge: Callable[[bytes], ToolError | None], folder_fd: int, entry: "os.DirEntry[str]", name: str
    ) -> bool:
        status = entry.stat(follow_symlinks=False)
        key = (name, *_identity(status), status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if key not in self._known:
            denied = judge(beginning(folder_fd, (entry.name,))) is not None
            if time.time_ns() - status.st_ctime_ns < _SETTLED_NS:  # it may change without its time telling
                return denied
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = denied
        return self._known[key]


def find_cover(root_fd: int, denied: Denied, deadline: float, holds: Holds = lambda *_: False) -> Cover | ToolError:
    """What is to be covered now; TIMEOUT at `deadline` (of the monotonic clock), UNAVAILABLE where it is too much.

    `holds` says which files are denied for what they hold (see `HeldSecrets`).
    """
    search = _Search(denied, deadline, holds)
    try:
        with closing(open_beneath(root_fd, (), os.O_RDONLY)) as top:
            search.look(top, "", 0)
        search.add_other_names(root_fd)
    except OSError as error:
        return os_failure(error, "look through", ".")
    except _GivenUpError as error:
        return error.reason
    most = max(len(search.cover.files), len(search.cover.folders))
    return search.cover if most <= MOST_COVERED else _too_much()


def find_ways_out(folders: Iterable[str], root: str, deadline: float) -> tuple[str, ...] | ToolError:
    """The sockets, pipes and devices in folders that are shown beside the workspace `root`; failures as above."""
    found: list[str] = []
    waiting = [*folders]
    while waiting:
        folder = waiting.pop()
        if time.monotonic() > deadline:
            return _too_late(f"One of the folders shown beside {root}")
        with suppress(PermissionError, NotADirectoryError, FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting += [entry.path] * (entry.path != root)
                elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                    found.append(entry.path)
    if len(found) <= MOST_ELSEWHERE:
        return tuple(sorted(found))
    message = (
        f"The folders that commands are shown have more than {MOST_ELSEWHERE} sockets, pipes or devices, so no command"
        " is run: name smaller folders in `readable_folders`."
    )
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def _too_late(what: str) -> ToolError:
    message = f"{what} is too large to be looked through for denied files in the time of one command."
    return ToolError(code=ToolErrorCode.TIMEOUT, message=message)


class _GivenUpError(Exception):
    def __init__(self, reason: ToolError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class _Search:
    def __init__(self, denied: Denied, deadline: float, holds: Holds) -> None:
        self._denied, self._deadline, self._holds = denied, deadline, holds
        self.cover = Cover()
        self._seen: list[str] = []
        self._linked: set[tuple[int, int]] = set()

    def look(self, folder_fd: int, prefix: str, depth: int, inside: _Inside = "") -> None:
        """Look through one open folder; `prefix` is its own name with a "/" at the end, or "".

        `inside` a folder that is hidden, or is shown read-only, only ways around that are looked for.
        """
        for entry in self._entries(folder_fd):
            name, is_folder = f"{prefix}{entry.name}", entry.is_dir(follow_symlinks=False)
            if entry.is_symlink():
                continue
            if not is_folder and not entry.is_file(follow_symlinks=False):
                self.cover.files += [name] * (inside != "hidden")
                continue
            below = inside or self._judge(folder_fd, entry, name, is_folder=is_folder)
            if is_folder:
                self._enter(folder_fd, entry, name, depth, below)
            elif below:
                self._note(entry)
            else:
                self._seen.append(name)

    def add_other_names(self, root_fd: int) -> None:
        """Hide what is the same file as one that is denied or git's own."""
        for name in self._seen if self._linked else ():
            self._check_time()
            with suppress(OSError):  # it was there a moment ago
                if _identity(os.stat(name, dir_fd=root_fd, follow_symlinks=False)) in self._linked:
                    self.cover.files.append(name)

    def _judge(self, folder_fd: int, entry: "os.DirEntry[str]", name: str, *, is_folder: bool) -> _Inside:
        """Put it on its list, if it is denied, git's own or the settings; what that makes of what is inside of it."""
        cover = self.cover
        below: _Inside = "hidden"
        if entry.name == GIT_DIRECTORY:
            listed, below = cover.repositories, "shown"
        elif self._is_denied(name) or (not is_folder and self._holds(folder_fd, entry, name)):
            listed = cover.folders if is_folder else cover.files
        elif entry.name == SETTINGS_FILE:  # what the agent is set by stays as it is, under all of its names
            listed, below = cover.settings, "" if is_folder else "shown"
        else:
            return ""
        listed.append(name)
        if max(len(cover.repositories), len(cover.settings)) > MOST_REPOSITORIES:
            raise _GivenUpError(_too_much())
        return below

    def _enter(self, parent_fd: int, entry: "os.DirEntry[str]", name: str, depth: int, inside: _Inside) -> None:
        """One folder further down; hide it if we may not read it, because a program could change its mode."""
        if depth >= DEEPEST:
            message = f"The workspace has more than {DEEPEST} folders below each other, so no command is run in it."
            raise _GivenUpError(ToolError(code=ToolErrorCode.UNAVAILABLE, message=message))
        try:
            folder = open_beneath(parent_fd, (entry.name,), os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            if inside != "hidden":
                self.cover.folders.append(name)
        except OSError:  # it was there a moment ago
            return
        else:
            with closing(folder):
                self.look(folder, f"{name}/", depth + 1, inside)

    def _entries(self, folder_fd: int) -> "list[os.DirEntry[str]]":
        self._check_time()
        with os.scandir(folder_fd) as found:
            return sorted(found, key=lambda each: each.name)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _GivenUpError(_too_late("The workspace"))

    def _is_denied(self, name: str) -> bool:
        try:
            return self._denied(name)
        except Exception:  # noqa: BLE001 - a rule that breaks must not open the door
            return True

    def _note(self, entry: "os.DirEntry[str]") -> None:
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if status.st_nlink > 1:
                self._linked.add(_identity(status))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _too_much() -> ToolError:
    message = (
        f"The workspace has more than {MOST_COVERED} denied files or folders, or {MOST_REPOSITORIES}"
        " repositories, so no command is run in it: move what is not needed out of it."
    )
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


@contextmanager
def protected_git(root_fd: int) -> Iterator[ToolError | None]:
    """See to it that there is a `.git` that can be made read-only, or say why there is none.

    Where there is no repository it is an empty folder, which commands of several runs share by a lock on `root_fd`; the
    last one takes it away. On a file system without locks it stays.
    """
    with suppress(OSError):  # a file system without locks
        fcntl.flock(root_fd, fcntl.LOCK_SH)
    try:
        yield _made_placeholder(root_fd)
    finally:
        _remove_placeholder(root_fd)
        with suppress(OSError):
            fcntl.flock(root_fd, fcntl.LOCK_UN)  # closing is not enough: a copy of this process may have the handle


def remove_placeholder(root: str) -> None:
    """Take away the empty `.git` that a command left whose run was killed, unless another command needs it."""
    with suppress(OSError), closing(open_root(root)) as root_fd:
        _remove_placeholder(root_fd)


def _remove_placeholder(root_fd: int) -> None:
    with suppress(OSError):
        fcntl.flock(root_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else needs it
        os.rmdir(GIT_DIRECTORY, dir_fd=root_fd)


def _made_placeholder(root_fd: int) -> ToolError | None:
    """Make an empty `.git` where there is none; why not, if it cannot be made or protected."""
    try:
        with suppress(FileExistsError):
            os.mkdir(GIT_DIRECTORY, dir_fd=root_fd)
        status = os.stat(GIT_DIRECTORY, dir_fd=root_fd, follow_symlinks=False)
    except OSError as error:
        return None if error.errno == errno.EROFS else os_failure(error, "protect", GIT_DIRECTORY)
    if not stat.S_ISLNK(status.st_mode):
        return None
    message = "'.git' is a symbolic link, which cannot be made read-only, so no command is run in this workspace."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def linked_repository(root: str) -> str | None:
    """The repository elsewhere of which `root` is a linked worktree, if that repository says so itself.

    The pointer in the workspace could name any folder; only git has written the pointer back.
    """
    pointer = _line_of(root, GIT_DIRECTORY)
    own = os.path.realpath(os.path.join(root, pointer.removeprefix("gitdir:").strip()))
    repository, kind = os.path.split(os.path.dirname(own))
    if not pointer.startswith("gitdir:") or kind != "worktrees":
        return None
    back = os.path.realpath(_line_of(own, "gitdir") or "/")
    known = back == os.path.join(root, GIT_DIRECTORY) and os.path.isfile(os.path.join(repository, "HEAD"))
    return repository if known else None


def _line_of(folder: str, name: str) -> str:
    with suppress(OSError, ValueError), closing(open_root(folder)) as parent:
        return os.fsdecode(beginning(parent, (name,))).strip().replace("\0", "")
    return ""


SET_ASIDE: Final = f"{SETTINGS_FILE}.untrusted"
"""The name of what a command, or somebody else meanwhile, has made in place of the settings. Nobody reads it."""


@contextmanager
def kept_settings(root_fd: int) -> Iterator[None]:
    """Set aside what a command has made in the place of the settings, where none could be made read-only."""
    before = _unmounted(root_fd)
    try:
        yield
    finally:
        if before is not None and _unmounted(root_fd) != before:
            with suppress(OSError):
                os.rename(SETTINGS_FILE, SET_ASIDE, src_dir_fd=root_fd, dst_dir_fd=root_fd)


def _unmounted(root_fd: int) -> int | None:
    """The number of the link in the settings' place, 0 for nothing; None for what can be, and so is, made read-only."""
    try:
        status = os.stat(SETTINGS_FILE, dir_fd=root_fd, follow_symlinks=False)
    except OSError:
        return 0
    return status.st_ino if stat.S_ISLNK(status.st_mode) else None
