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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from mendgraph.nodes.execute_tools.files.bare_repositories import is_bare_repository, is_repository_data
from mendgraph.nodes.execute_tools.files.change_records import folders_above
from mendgraph.nodes.execute_tools.files.handles import (
    beginning,
    closing,
    lock_folder,
    open_beneath,
    open_directory,
    open_root,
    status_beneath,
)
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

MOST_REPOSITORIES: Final = 100
"""Each of them needs an open handle."""

MOST_PINNED: Final = 200
"""Folders that are mounted over themselves; the same."""

LOCK_WAIT_S: Final = 2.0
"""How long the lock of a workspace folder is waited for. Other runs share it; nobody else has a use for it."""

DEEPEST: Final = 200
"""Folders below each other that are looked into; each is an open handle meanwhile."""

_REMEMBERED: Final = 200_000
"""Files whose judgement is remembered."""

SETTLED_NS: Final = 1_000_000_000
"""After which a change of a file shows in its times. Source: file systems count in steps of up to a second."""

_Inside = Literal["", "hidden", "shown"]


@dataclass
class Cover:
    """Names below the workspace: `repositories` and `settings` to be read-only; denied `files` and `folders` hidden.

    `texts` are files of repositories that may hold logins, see `repository_texts`. `pinned` are the folders above what
    is read-only, outermost first. None of them may be moved away: another one could take its place. `guarded` are the
    guarded names that exist: a link with its number and time, None for what is made read-only.
    """

    repositories: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    guarded: dict[str, tuple[int, int] | None] = field(default_factory=dict)


class HeldSecrets:
    """Which files are denied for what they hold; each is read again only after it has changed."""

    def __init__(self, judge: ContentJudge) -> None:
        self._judge = lru_cache(_REMEMBERED)(judge)
        self._known: dict[tuple[str | int, ...], bool] = {}

    def __call__(self, folder_fd: int, entry: "os.DirEntry[str]", name: str) -> bool:
        """Whether the regular file `entry` of the open folder, `name` below the workspace, is denied."""
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # it was there a moment ago
            return False

        return self.of_file(name, status, lambda: beginning(folder_fd, (entry.name,)))

    def of_file(self, name: str, status: os.stat_result, read: Callable[[], bytes]) -> bool:
        """Whether the regular file of this name and status is denied; `read` gives its first `CONTENT_BYTES`."""
        try:
            judge = self._judge(name)
            return judge is not None and self._judged(judge, name, status, read)
        except FileNotFoundError:  # the same
            return False
        except Exception:  # noqa: BLE001 - a rule that breaks must not open the file; nor one that we may not read
            return True

    def _judged(
        self,
        judge: Callable[[bytes], ToolError | None],
        name: str,
        status: os.stat_result,
        read: Callable[[], bytes],
    ) -> bool:
        key = (name, *_identity(status), status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if key not in self._known:
            denied = judge(read()) is not None
            if time.time_ns() - status.st_ctime_ns < SETTLED_NS:  # it may change without its time telling
                return denied

            if len(self._known) >= _REMEMBERED:
                self._known.clear()

            self._known[key] = denied

        return self._known[key]


def find_cover(
    root_fd: int,
    denied: Denied,
    deadline: float,
    holds: Holds = lambda *_: False,
    protected: Sequence[str] = (),
    guarded: Denied = lambda _: False,
) -> Cover | ToolError:
    """What is to be covered now; TIMEOUT at `deadline` (of the monotonic clock), UNAVAILABLE where it is too much.

    `holds` says which files are denied for what they hold (see `HeldSecrets`). `protected` names can be neither made
    nor changed, see `make_protected_folders`. `guarded` names stay as they are where they exist; for others see
    `set_aside`.
    """
    search = _Search(denied, deadline, holds, protected, guarded)
    try:
        with closing(open_beneath(root_fd, (), os.O_RDONLY)) as top:
            search.look(top, "", 0)

        search.add_other_names(root_fd)
        cover = search.cover
        cover.settings += _existing_names(root_fd, protected)
    except OSError as error:
        return os_failure(error, "look through", ".")
    except _GivenUpError as error:
        return error.reason

    read_only = (*cover.repositories, *cover.settings)
    cover.pinned = sorted({folder for name in read_only for folder in folders_above(name)})
    most = max(len(cover.files), len(cover.folders))

    if most > MOST_COVERED or len(cover.pinned) > MOST_PINNED:
        return _too_much()

    return cover


def _existing_names(root_fd: int, protected: Sequence[str]) -> list[str]:
    """The protected names that exist; for one that does not, the folder in which a program could make it."""
    existing = set()

    for name in protected:
        for place in (name, *reversed(folders_above(name))):
            with suppress(OSError):
                status_beneath(root_fd, place.split("/"))
                existing.add(place)
                break

    return sorted(existing)


def too_late(what: str) -> ToolError:
    """The error where looking for denied files in `what` takes more than the time of a command."""
    message = f"{what} is too large to be looked through for denied files in the time of one command."
    return ToolError(code=ToolErrorCode.TIMEOUT, message=message)


class _GivenUpError(Exception):
    def __init__(self, reason: ToolError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class _Search:
    def __init__(
        self, denied: Denied, deadline: float, holds: Holds, protected: Sequence[str], guarded: Denied
    ) -> None:
        self._denied = denied
        self._deadline = deadline
        self._holds = holds
        self._guarded = guarded
        self._protected = {*protected}
        self._protected_folders = tuple(f"{name}/" for name in protected)
        self.cover = Cover()
        self._seen: list[str] = []
        self._linked: set[tuple[int, int]] = set()

    def look(self, folder_fd: int, prefix: str, depth: int, inside: _Inside = "") -> None:
        """Look through one open folder; `prefix` is its own name with a "/" at the end, or "".

        `inside` a folder that is hidden, or is shown read-only, only ways around that are looked for.
        """
        entries = self._entries(folder_fd)
        if prefix and not inside and is_bare_repository({entry.name for entry in entries}):
            self._list(self.cover.repositories, prefix[:-1])
            inside = "shown"

        for entry in entries:
            name = f"{prefix}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            is_guarded = self._guarded(name)

            if is_guarded:
                is_link = entry.is_symlink()
                self.cover.guarded[name] = _version(entry.stat(follow_symlinks=False)) if is_link else None

            if entry.is_symlink():
                continue

            if not is_folder and not entry.is_file(follow_symlinks=False):
                self.cover.files += [name] * (inside != "hidden")
                continue

            below = inside or self._judge(folder_fd, entry, name, is_folder=is_folder)

            if is_folder:
                self._enter(folder_fd, entry, name, depth, below)
            elif below or is_guarded or name in self._protected or name.startswith(self._protected_folders):
                self._note(entry)
                if inside == "shown":
                    self._look_at_repository_file(entry, name)
            else:
                self._seen.append(name)

    def _look_at_repository_file(self, entry: "os.DirEntry[str]", name: str) -> None:
        """Hide a file of git's own that is called as logins are; its settings are looked at later."""
        if is_repository_data(name):
            return

        if self._is_denied(f"git/{entry.name}"):
            self.cover.files.append(name)
        else:
            self.cover.texts.append(name)

    def add_other_names(self, root_fd: int) -> None:
        """Hide what is the same file as one that is denied, protected or git's own."""
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
            listed = cover.repositories
            below = "shown"
        elif self._is_denied(name) or (not is_folder and self._holds(folder_fd, entry, name)):
            listed = cover.folders if is_folder else cover.files
        elif entry.name == SETTINGS_FILE or self._is_outermost_guarded(name):  # it stays as it is, under all its names
            listed = cover.settings
            below = "" if is_folder else "shown"
        else:
            return ""

        self._list(listed, name)
        return below

    def _is_outermost_guarded(self, name: str) -> bool:
        return self._guarded(name) and not any(map(self._guarded, folders_above(name)))

    def _list(self, listed: list[str], name: str) -> None:
        listed.append(name)
        if max(len(self.cover.repositories), len(self.cover.settings)) > MOST_REPOSITORIES:
            raise _GivenUpError(_too_much())

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
        with os.scandir(folder_fd) as scan:
            return sorted(scan, key=lambda entry: entry.name)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _GivenUpError(too_late("The workspace"))

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


def _version(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from another one that takes its name, also where that gets its number."""
    return status.st_ino, status.st_ctime_ns


def _too_much() -> ToolError:
    message = (
        f"The workspace has more than {MOST_COVERED} denied files or folders, {MOST_REPOSITORIES} repositories, or"
        f" {MOST_PINNED} folders around them, so no command is run in it: move what is not needed out of it."
    )

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def make_protected_folders(root_fd: int, protected: Sequence[str]) -> None:
    """Make the folders in which the `protected` names belong, so that they can be made read-only while a command runs.

    They are the agent's own, and stay. For a name directly in the workspace see `kept_settings`.
    """
    for name in protected:
        with suppress(OSError), closing(open_directory(root_fd, name.split("/")[:-1], made=[])):
            pass


@contextmanager
def protected_git(root_fd: int, deadline: float) -> Iterator[ToolError | None]:
    """See to it that there is a `.git` that can be made read-only, or say why there is none.

    Where there is no repository it is an empty folder, which commands of several runs share by a lock on `root_fd`; the
    last one takes it away. On a file system without locks it stays. UNAVAILABLE where somebody else does not let go of
    the lock: whoever can open the folder can lock it.
    """
    if not _lacks_repository(root_fd):
        yield _git_problem(root_fd)
        return

    if not lock_folder(root_fd, fcntl.LOCK_SH, min(deadline, time.monotonic() + LOCK_WAIT_S)):
        message = (
            "Another program has locked the workspace's folder (flock), so no command is run in it: end that program,"
            " or make the workspace a repository (git init)."
        )
        yield ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

        return

    try:
        yield _made_placeholder(root_fd)
    finally:
        _remove_placeholder(root_fd)
        with suppress(OSError):
            fcntl.flock(root_fd, fcntl.LOCK_UN)  # closing is not enough: a copy of this process may have the handle


def _lacks_repository(root_fd: int) -> bool:
    """Whether `.git` is absent, or the empty folder of another run's command."""
    try:
        with closing(open_directory(root_fd, (GIT_DIRECTORY,))) as folder:
            return not os.listdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False


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
    except OSError as error:
        if error.errno == errno.EROFS:
            return None
        return os_failure(error, "protect", GIT_DIRECTORY)

    return _git_problem(root_fd)


def _git_problem(root_fd: int) -> ToolError | None:
    """Why the `.git` that is there cannot be made read-only, or None."""
    try:
        status = os.stat(GIT_DIRECTORY, dir_fd=root_fd, follow_symlinks=False)
    except OSError as error:
        return os_failure(error, "protect", GIT_DIRECTORY)

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
    is_linked = back == os.path.join(root, GIT_DIRECTORY) and os.path.isfile(os.path.join(repository, "HEAD"))
    return repository if is_linked else None


def _line_of(folder: str, name: str) -> str:
    with suppress(OSError, ValueError), closing(open_root(folder)) as parent:
        return os.fsdecode(beginning(parent, (name,))).strip().replace("\0", "")

    return ""


UNTRUSTED: Final = ".untrusted"
"""The end of the name of what a command, or somebody else meanwhile, has made under a name that it may not have."""


@contextmanager
def kept_settings(root_fd: int, protected: Sequence[str] = ()) -> Iterator[None]:
    """Set aside what a command has made in the place of settings, where none could be made read-only.

    Those are the workspace's own, and the `protected` files that belong directly into it.
    """
    settings_files = (name for name in protected if "/" not in name and name.endswith(".toml"))
    before = {name: _unmounted(root_fd, name) for name in (SETTINGS_FILE, *settings_files)}

    try:
        yield
    finally:
        for name, identity in before.items():
            if identity is not None and _unmounted(root_fd, name) != identity:
                with suppress(OSError):
                    os.rename(name, f"{name}{UNTRUSTED}", src_dir_fd=root_fd, dst_dir_fd=root_fd)


def set_aside(root_fd: int, guarded: Denied, before: Mapping[str, tuple[int, int] | None]) -> None:
    """Rename what a command has made under a guarded name; `before` are those that existed, see `Cover`.

    What was made read-only no command has changed, so a change of it is somebody else's, and stays.
    """
    for folder, folders, files, handle in os.fwalk(".", dir_fd=root_fd):
        place = folder.removeprefix(".").removeprefix("/")
        prefix = f"{place}/" if place else ""
        protected_names = {file: f"{prefix}{file}" for file in (*folders, *files) if guarded(f"{prefix}{file}")}
        folders[:] = [
            folder_name
            for folder_name in folders
            if folder_name != GIT_DIRECTORY and folder_name not in protected_names
        ]

        for entry_name, name in protected_names.items():
            if name in before and before[name] is None:
                continue

            with suppress(OSError):
                if _version(os.stat(entry_name, dir_fd=handle, follow_symlinks=False)) != before.get(name):
                    os.rename(entry_name, f"{entry_name}{UNTRUSTED}", src_dir_fd=handle, dst_dir_fd=handle)


def _unmounted(root_fd: int, name: str) -> int | None:
    """The number of the link in the settings' place, 0 for nothing; None for what can be, and so is, made read-only."""
    try:
        status = os.stat(name, dir_fd=root_fd, follow_symlinks=False)
    except OSError:
        return 0

    if stat.S_ISLNK(status.st_mode):
        return status.st_ino

    return None
