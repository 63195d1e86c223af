"""The names in a workspace that no program may see or change: denied files, repositories and settings.

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
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.bare_repositories import is_bare_repository, is_repository_data
from mendgraph.nodes.workspace.files.change_records import folders_above
from mendgraph.nodes.workspace.files.handles import closing, open_beneath, read_beginning, status_beneath
from mendgraph.nodes.workspace.files.sandbox import ContentJudge
from mendgraph.nodes.workspace.files.tree_walk import GIT_DIRECTORY
from mendgraph.nodes.workspace.sandboxes.sandbox import DEEPEST
from mendgraph.nodes.workspace.store.user_files import SETTINGS_FILE

NameRule = Callable[[str], bool]
"""Returns whether a rule applies to a workspace-relative name."""

Version = tuple[int, int]
"""Inode number and change time: they differ from those of another file that takes the name, and perhaps the inode."""

MOST_COVERED: Final = 1_000
"""Hidden files, and hidden folders. Source: bubblewrap takes 9,000 arguments at most."""

MOST_READ_ONLY: Final = 200
"""Read-only names, and pinned folders; each needs an open handle."""

_MOST_CACHED: Final = 200_000
"""Files whose verdict is cached."""

_Inside = Literal["", "hidden", "shown"]
"""Whether a searched folder lies in one that is hidden or read-only."""


@dataclass
class Cover:
    """Names below the workspace: `files` and `folders` to be hidden, and `read_only` ones.

    `texts` are files of repositories that may hold logins, see `repository_texts`. `pinned` are the folders above what
    is read-only, outermost first: if one could be moved away, another one could take its name. `guarded` are guarded
    names that exist: a link with its version, None for a name that is made read-only.
    """

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    read_only: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    guarded: dict[str, Version | None] = field(default_factory=dict)


class SearchError(Exception):
    """A search was given up for this reason."""

    def __init__(self, code: ToolErrorCode, message: str) -> None:
        super().__init__(message)
        self.reason = ToolError(code=code, message=message)


def check_time(deadline: float, what: str) -> None:
    """Raise SearchError if the deadline (of the monotonic clock) of the search in `what` has passed."""
    if time.monotonic() > deadline:
        message = f"{what} is too large to be looked through for denied files in the time of one command."
        raise SearchError(ToolErrorCode.TIMEOUT, message)


def applies(rule: NameRule, name: str) -> bool:
    """Return whether the rule applies to the name; a rule that raises applies."""
    try:
        return rule(name)
    except Exception:  # noqa: BLE001 - a rule may be the user's code
        return True


def never(_: str) -> bool:
    """Apply to no name; a `NameRule`."""
    return False


class ContentRule:
    """Judges files by their content; a file is read again only after it has changed."""

    def __init__(self, judge: ContentJudge) -> None:
        self._judge = lru_cache(_MOST_CACHED)(judge)
        self._verdicts = StatusCache[bool](_MOST_CACHED)

    def judges(self, name: str) -> bool:
        """Return whether the content of a file with this name matters."""
        return applies(lambda judged_name: self._judge(judged_name) is not None, name)

    def denies(self, name: str, status: os.stat_result, read: Callable[[], bytes]) -> bool:
        """Return whether the regular file is denied; `read` returns its first `CONTENT_BYTES`."""
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


def find_cover(
    root_fd: int,
    denied: NameRule,
    deadline: float,
    content_rule: ContentRule | None = None,
    protected: Sequence[str] = (),
    guarded: NameRule = never,
) -> Cover | ToolError:
    """Return the names to cover now; TIMEOUT at `deadline` (of the monotonic clock), UNAVAILABLE for too many names.

    `protected` names can be neither created nor changed, see `make_protected_folders`. `guarded` names that exist
    cannot be changed; for others see `rename_guarded`.
    """
    search = _Search(denied, deadline, content_rule or ContentRule(lambda _: None), protected, guarded)
    cover = search.cover

    try:
        with closing(open_beneath(root_fd, (), os.O_RDONLY)) as top:
            search.search_folder(top, "", 0)

        search.add_hard_links(root_fd)
        for name in _existing_names(root_fd, protected):
            search.add_read_only(name)

        folders: set[str] = set()
        for name in cover.read_only:
            folders.update(folders_above(name))

        cover.pinned = sorted(folders)
        if max(len(cover.files), len(cover.folders)) > MOST_COVERED or len(cover.pinned) > MOST_READ_ONLY:
            raise _too_many()
    except OSError as error:
        return os_failure(error, "look through", ".")
    except SearchError as error:
        return error.reason

    return cover


def _existing_names(root_fd: int, protected: Sequence[str]) -> list[str]:
    """Return the protected names that exist; for one that does not, the folder in which a program could create it."""
    existing = set()

    for name in protected:
        for candidate in (name, *reversed(folders_above(name))):
            with suppress(OSError):
                status_beneath(root_fd, candidate.split("/"))
                existing.add(candidate)
                break

    return sorted(existing)


class _Search:
    def __init__(
        self,
        denied: NameRule,
        deadline: float,
        content_rule: ContentRule,
        protected: Sequence[str],
        guarded: NameRule,
    ) -> None:
        self._denied = denied
        self._deadline = deadline
        self._content_rule = content_rule
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
        self._check_time()
        with os.scandir(folder_fd) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)

        if prefix and not inside and is_bare_repository({entry.name for entry in entries}):
            self.add_read_only(prefix[:-1])
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

    def add_hard_links(self, root_fd: int) -> None:
        """Hide files that are hard links of a denied, protected or repository file."""
        if not self._hard_links:
            return

        for name in self._shown_files:
            self._check_time()
            with suppress(OSError):  # it was just removed
                status = os.stat(name, dir_fd=root_fd, follow_symlinks=False)
                if (status.st_dev, status.st_ino) in self._hard_links:
                    self.cover.files.append(name)

    def add_read_only(self, name: str) -> None:
        """Make a name read-only."""
        if name not in self.cover.read_only:
            self.cover.read_only.append(name)

        if len(self.cover.read_only) > MOST_READ_ONLY:
            raise _too_many()

    def _judge(self, folder_fd: int, entry: "os.DirEntry[str]", name: str, *, is_folder: bool) -> _Inside:
        """Add a denied or read-only name to the cover; returns how what lies in it is treated."""
        if entry.name == GIT_DIRECTORY:
            self.add_read_only(name)
            return "shown"

        if applies(self._denied, name):
            denied = self.cover.folders if is_folder else self.cover.files
            denied.append(name)
            return "hidden"

        if not is_folder and self._is_denied_by_content(folder_fd, entry, name):
            self.cover.files.append(name)
            return "hidden"

        is_outermost_guarded = self._guarded(name) and not any(map(self._guarded, folders_above(name)))
        if entry.name == SETTINGS_FILE or is_outermost_guarded:
            self.add_read_only(name)
            return "" if is_folder else "shown"  # other names of the file are read-only, too

        return ""

    def _is_denied_by_content(self, folder_fd: int, entry: "os.DirEntry[str]", name: str) -> bool:
        if not self._content_rule.judges(name):
            return False

        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # it was just removed
            return False

        return self._content_rule.denies(name, status, lambda: read_beginning(folder_fd, (entry.name,)))

    def _judge_repository_file(self, entry: "os.DirEntry[str]", name: str) -> None:
        """Hide a file of a repository whose name is that of a login; its other texts are read later."""
        if is_repository_data(name):
            return

        if applies(self._denied, f"git/{entry.name}"):
            self.cover.files.append(name)
        else:
            self.cover.texts.append(name)

    def _enter(self, parent_fd: int, entry: "os.DirEntry[str]", name: str, depth: int, inside: _Inside) -> None:
        """Search a folder; hide one that may not be read, as a program could change its mode."""
        if depth >= DEEPEST:
            message = f"The workspace has more than {DEEPEST} folders below each other, so no command is run in it."
            raise SearchError(ToolErrorCode.UNAVAILABLE, message)

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

    def _check_time(self) -> None:
        check_time(self._deadline, "The workspace")

    def _note_hard_link(self, entry: "os.DirEntry[str]") -> None:
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if status.st_nlink > 1:
                self._hard_links.add((status.st_dev, status.st_ino))


def version(status: os.stat_result) -> Version:
    """Return the version of a file."""
    return status.st_ino, status.st_ctime_ns


def _too_many() -> SearchError:
    message = (
        f"The workspace has more than {MOST_COVERED} denied files or folders, or {MOST_READ_ONLY} repositories,"
        " settings or folders around them, so no command is run in it: move what is not needed out of it."
    )

    return SearchError(ToolErrorCode.UNAVAILABLE, message)
