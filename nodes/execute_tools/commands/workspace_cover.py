"""The names in a workspace that no program may see or change: denied files, by name or content, and repositories.

The whole tree is searched by handle, without following links. All hard links of denied files and of git's files are
hidden, and sockets, pipes and devices, which lead out of the sandbox. A folder that may not be read is hidden, but not
other names of its files.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from mendgraph.nodes.execute_tools.commands.status_cache import StatusCache
from mendgraph.nodes.execute_tools.files.bare_repositories import is_bare_repository, is_repository_data
from mendgraph.nodes.execute_tools.files.change_records import folders_above
from mendgraph.nodes.execute_tools.files.handles import beginning, closing, open_beneath, status_beneath
from mendgraph.nodes.execute_tools.files.sandbox import ContentJudge
from mendgraph.nodes.execute_tools.files.tree_walk import GIT_DIRECTORY
from mendgraph.nodes.execute_tools.sandboxes.sandbox import DEEPEST
from mendgraph.nodes.execute_tools.store.user_files import SETTINGS_FILE
from mendgraph.nodes.records import ToolError, ToolErrorCode, os_failure

NameRule = Callable[[str], bool]
"""Whether a rule applies to this workspace-relative name, with "/" between its parts."""

EntryRule = Callable[[int, "os.DirEntry[str]", str], bool]
"""Whether a rule applies to a file: the handle of its folder, its entry and its workspace-relative name."""

Version = tuple[int, int]
"""Inode number and change time: they tell a file from another one that takes its name, and perhaps its inode."""

MOST_COVERED: Final = 1_000
"""Files, and folders, that are mounted over. Source: bubblewrap takes 9,000 arguments at most."""

MOST_REPOSITORIES: Final = 100
"""Each of them needs an open handle."""

MOST_PINNED: Final = 200
"""Folders that are mounted over themselves; each needs an open handle."""

_MOST_CACHED: Final = 200_000
"""Files whose verdict is cached."""

_Inside = Literal["", "hidden", "shown"]
"""Whether a searched folder lies in one that is hidden or shown read-only."""


@dataclass
class Cover:
    """Names below the workspace: `repositories` and `settings` to be read-only; denied `files` and `folders` hidden.

    `texts` are files of repositories that may hold logins, see `repository_texts`. `pinned` are the folders above what
    is read-only, outermost first: if one could be moved away, another one could take its name. `guarded` are guarded
    names that exist: a link with its version, None for what is made read-only.
    """

    repositories: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    guarded: dict[str, Version | None] = field(default_factory=dict)


def applies(rule: NameRule, name: str) -> bool:
    """Whether the rule applies to the name; a rule that raises applies, so that a broken rule opens nothing."""
    try:
        return rule(name)
    except Exception:  # noqa: BLE001 - a rule may be the user's code
        return True


class ContentRule:
    """Whether files are denied because of their content; a file is read again only after it has changed."""

    def __init__(self, judge: ContentJudge) -> None:
        self._judge = lru_cache(_MOST_CACHED)(judge)
        self._verdicts = StatusCache[bool](_MOST_CACHED)

    def __call__(self, folder_fd: int, entry: "os.DirEntry[str]", name: str) -> bool:
        """Whether the regular file `entry` of the open folder, `name` below the workspace, is denied."""
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # it was just removed
            return False

        return self.denies(name, status, lambda: beginning(folder_fd, (entry.name,)))

    def denies(self, name: str, status: os.stat_result, read: Callable[[], bytes]) -> bool:
        """Whether the regular file of this name and status is denied; `read` returns its first `CONTENT_BYTES`."""
        try:
            judge = self._judge(name)
            if judge is None:
                return False

            key = f"{status.st_dev}:{status.st_ino}:{name}"  # names of two readable folders may be the same
            return self._verdicts.value(key, status, lambda: judge(read()) is not None)
        except FileNotFoundError:  # it was just removed
            return False
        except Exception:  # noqa: BLE001 - a rule may be the user's code; and what we cannot read stays hidden
            return True


def never(*_: object) -> bool:
    """A rule that applies to nothing."""
    return False


def find_cover(
    root_fd: int,
    denied: NameRule,
    deadline: float,
    denied_content: EntryRule = never,
    protected: Sequence[str] = (),
    guarded: NameRule = never,
) -> Cover | ToolError:
    """The names to cover now; TIMEOUT at `deadline` (of the monotonic clock), UNAVAILABLE where there are too many.

    `denied_content` is a `ContentRule`. `protected` names can be neither created nor changed, see
    `make_protected_folders`. `guarded` names cannot be changed where they exist; for others see `rename_guarded`.
    """
    search = _Search(denied, deadline, denied_content, protected, guarded)
    try:
        with closing(open_beneath(root_fd, (), os.O_RDONLY)) as top:
            search.search_folder(top, "", 0)

        search.add_hard_links(root_fd)
        cover = search.cover
        cover.settings += _existing_names(root_fd, protected)
    except OSError as error:
        return os_failure(error, "look through", ".")
    except _SearchError as error:
        return error.reason

    folders: set[str] = set()
    for name in (*cover.repositories, *cover.settings):
        folders.update(folders_above(name))

    cover.pinned = sorted(folders)
    most = max(len(cover.files), len(cover.folders))

    if most > MOST_COVERED or len(cover.pinned) > MOST_PINNED:
        return _too_many()

    return cover


def _existing_names(root_fd: int, protected: Sequence[str]) -> list[str]:
    """The protected names that exist; for one that does not, the folder in which a program could create it."""
    existing = set()

    for name in protected:
        for candidate in (name, *reversed(folders_above(name))):
            with suppress(OSError):
                status_beneath(root_fd, candidate.split("/"))
                existing.add(candidate)
                break

    return sorted(existing)


def too_late(what: str) -> ToolError:
    """The error where the search in `what` takes more than the time of a command."""
    message = f"{what} is too large to be looked through for denied files in the time of one command."
    return ToolError(code=ToolErrorCode.TIMEOUT, message=message)


class _SearchError(Exception):
    def __init__(self, reason: ToolError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class _Search:
    def __init__(
        self, denied: NameRule, deadline: float, denied_content: EntryRule, protected: Sequence[str], guarded: NameRule
    ) -> None:
        self._denied = denied
        self._deadline = deadline
        self._denied_content = denied_content
        self._guarded = guarded
        self._protected = {*protected}
        self._protected_folders = tuple(f"{name}/" for name in protected)
        self.cover = Cover()
        self._shown_files: list[str] = []
        self._hard_links: set[tuple[int, int]] = set()

    def search_folder(self, folder_fd: int, prefix: str, depth: int, inside: _Inside = "") -> None:
        """Search one open folder; `prefix` is its own name with a "/" at the end, or "".

        Inside of a hidden or read-only folder only hard links and special files are searched for.
        """
        entries = self._entries(folder_fd)
        if prefix and not inside and is_bare_repository({entry.name for entry in entries}):
            self._add_read_only(self.cover.repositories, prefix[:-1])
            inside = "shown"

        for entry in entries:
            name = f"{prefix}{entry.name}"
            is_guarded = self._guarded(name)

            if entry.is_symlink():
                if is_guarded:
                    self.cover.guarded[name] = version(entry.stat(follow_symlinks=False))

                continue

            if is_guarded:
                self.cover.guarded[name] = None

            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not entry.is_file(follow_symlinks=False):
                if inside != "hidden":
                    self.cover.files.append(name)

                continue

            below = inside or self._judge(folder_fd, entry, name, is_folder=is_folder)

            if is_folder:
                self._enter(folder_fd, entry, name, depth, below)
            elif below or is_guarded or name in self._protected or name.startswith(self._protected_folders):
                self._note_hard_link(entry)
                if inside == "shown":
                    self._judge_repository_file(entry, name)
            else:
                self._shown_files.append(name)

    def _judge_repository_file(self, entry: "os.DirEntry[str]", name: str) -> None:
        """Hide a file of a repository whose name is that of a login; its other texts are read later."""
        if is_repository_data(name):
            return

        if applies(self._denied, f"git/{entry.name}"):
            self.cover.files.append(name)
        else:
            self.cover.texts.append(name)

    def add_hard_links(self, root_fd: int) -> None:
        """Hide files that are hard links of a denied, protected or repository file."""
        if not self._hard_links:
            return

        for name in self._shown_files:
            self._check_time()
            with suppress(OSError):  # it was just removed
                if _identity(os.stat(name, dir_fd=root_fd, follow_symlinks=False)) in self._hard_links:
                    self.cover.files.append(name)

    def _judge(self, folder_fd: int, entry: "os.DirEntry[str]", name: str, *, is_folder: bool) -> _Inside:
        """Add a denied or read-only name to the cover; returns how what lies in it is treated."""
        cover = self.cover

        if entry.name == GIT_DIRECTORY:
            self._add_read_only(cover.repositories, name)
            return "shown"

        if applies(self._denied, name):
            denied = cover.folders if is_folder else cover.files
            denied.append(name)
            return "hidden"

        if not is_folder and self._denied_content(folder_fd, entry, name):
            cover.files.append(name)
            return "hidden"

        if entry.name == SETTINGS_FILE or self._is_outermost_guarded(name):
            self._add_read_only(cover.settings, name)
            return "" if is_folder else "shown"  # other names of the file are read-only, too

        return ""

    def _is_outermost_guarded(self, name: str) -> bool:
        return self._guarded(name) and not any(map(self._guarded, folders_above(name)))

    def _add_read_only(self, names: list[str], name: str) -> None:
        names.append(name)
        if len(names) > MOST_REPOSITORIES:
            raise _SearchError(_too_many())

    def _enter(self, parent_fd: int, entry: "os.DirEntry[str]", name: str, depth: int, inside: _Inside) -> None:
        """Search a folder; hide one that may not be read, as a program could change its mode."""
        if depth >= DEEPEST:
            message = f"The workspace has more than {DEEPEST} folders below each other, so no command is run in it."
            raise _SearchError(ToolError(code=ToolErrorCode.UNAVAILABLE, message=message))

        try:
            folder = open_beneath(parent_fd, (entry.name,), os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            if inside != "hidden":
                self.cover.folders.append(name)
        except OSError:  # it was just removed
            return
        else:
            with closing(folder):
                self.search_folder(folder, f"{name}/", depth + 1, inside)

    def _entries(self, folder_fd: int) -> "list[os.DirEntry[str]]":
        self._check_time()
        with os.scandir(folder_fd) as scan:
            return sorted(scan, key=lambda entry: entry.name)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _SearchError(too_late("The workspace"))

    def _note_hard_link(self, entry: "os.DirEntry[str]") -> None:
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if status.st_nlink > 1:
                self._hard_links.add(_identity(status))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def version(status: os.stat_result) -> Version:
    """The version of a file."""
    return status.st_ino, status.st_ctime_ns


def _too_many() -> ToolError:
    message = (
        f"The workspace has more than {MOST_COVERED} denied files or folders, {MOST_REPOSITORIES} repositories, or"
        f" {MOST_PINNED} folders around them, so no command is run in it: move what is not needed out of it."
    )

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
