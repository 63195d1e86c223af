"""What lies in a workspace at one time, as git would see it, and what the kernel says of each file without opening it.

Two looks at the same workspace tell which files somebody has changed in between. The second one sees with the eyes of
the first: what was ignored then, or could not be looked into, stays out of sight, so that no file seems to be new
because somebody has changed a `.gitignore` or opened a folder.
"""

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mendgraph.nodes.execute_tools.files.file_reads import BeneathReader
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.tree_walk import (
    DEEPEST,
    GIT_DIRECTORY,
    IGNORE_FILE,
    LARGEST_IGNORE_FILE,
    Entry,
    IgnoreRules,
)


class Status(NamedTuple):
    """What changes when a file does, and when another one takes its name; no program can set its ctime back."""

    device: int
    inode: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def is_regular(self) -> bool:
        """Whether it is a file with bytes: no link, pipe, socket or device."""
        return stat.S_ISREG(self.mode)


class Folder(NamedTuple):
    """The rules that hold in a directory, and what they hide there: names, with a "/" after those of directories."""

    rules: IgnoreRules
    ignored: frozenset[str]


@dataclass(frozen=True)
class Tree:
    """What one look saw. Names are relative to the workspace.

    `files` are all that is no directory. In `folders` and `closed` a name ends with "/", and "" is the workspace;
    `closed` are directories that could not be looked into. `began_ns` is the wall clock before the first file.
    """

    began_ns: int
    files: dict[str, Status] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def hides(self, name: str) -> bool:
        """Whether it lies below a directory that could not be looked into."""
        return bool(self.closed) and any(name.startswith(folder) for folder in self.closed)


class Unwatched(NamedTuple):
    """Why a workspace cannot be looked through, as a clause: "the workspace ..."."""

    reason: str


def look_through(
    paths: JudgedPaths, root_fd: int, *, most: int, deadline: float, known: Tree | None = None, again: bool = False
) -> Tree | Unwatched:
    """All that is there now, without `.git`, denied directories and what `.gitignore` files hide.

    It ends after `most` entries, and at `deadline` (of the monotonic clock). What `known` says of names under the same
    rules is not asked again; with `again` its rules hold on in every directory that it knows.
    """
    look = _Look(paths, root_fd, most, deadline, known or Tree(0), again=again)
    pending: list[tuple[str, IgnoreRules]] = [("", IgnoreRules())]
    try:
        while pending:
            pending += look.enter(*pending.pop())
    except _GivenUpError as error:
        return Unwatched(str(error))
    return look.tree


class _GivenUpError(Exception):
    """The message says why."""


class _Look:
    def __init__(
        self, paths: JudgedPaths, root_fd: int, most: int, deadline: float, known: Tree, *, again: bool
    ) -> None:
        self.tree = Tree(time.time_ns())
        self._paths, self._root_fd, self._known, self._again = paths, root_fd, known, again
        self._left, self._most, self._deadline = most, most, deadline

    def enter(self, folder: str, above: IgnoreRules) -> list[tuple[str, IgnoreRules]]:
        self._keep_time()
        parts = folder[:-1].split("/") if folder else []
        if len(parts) > DEEPEST or (self._again and folder in self._known.closed):
            self.tree.closed.add(folder)
            return []
        try:
            with closing(open_directory(self._root_fd, parts)) as here, os.scandir(here) as found:
                return self._note(folder, list(found), above)
        except FileNotFoundError:  # it was there a moment ago
            return []
        except OSError:
            self.tree.closed.add(folder)
            return []

    def _note(
        self, folder: str, entries: "list[os.DirEntry[str]]", above: IgnoreRules
    ) -> list[tuple[str, IgnoreRules]]:
        self._left -= len(entries)
        if self._left < 0:
            raise _GivenUpError(f"the workspace has more than {self._most:,} files and directories")
        rules = self._rules(folder, entries, above)
        hidden = self._verdicts(folder, rules)
        ignored: list[str] = []
        inside: list[tuple[str, IgnoreRules]] = []
        for entry in entries:
            if entry.name.casefold() == GIT_DIRECTORY:
                continue
            self._keep_time()
            is_folder = entry.is_dir(follow_symlinks=False)
            if hidden(entry.name, is_folder):
                ignored.append(f"{entry.name}/" if is_folder else entry.name)
            elif not is_folder:
                self._note_file(f"{folder}{entry.name}", entry)
            elif self._paths.denial(f"{folder}{entry.name}", for_write=False) is None:
                inside.append((f"{folder}{entry.name}/", rules))
        self.tree.folders[folder] = Folder(rules, frozenset(ignored))
        return inside

    def _keep_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _GivenUpError("the workspace could not be looked through in time")

    def _note_file(self, name: str, entry: "os.DirEntry[str]") -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        self.tree.files[name] = Status(
            found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        )

    def _rules(self, folder: str, entries: "list[os.DirEntry[str]]", above: IgnoreRules) -> IgnoreRules:
        """The rules in a directory: the very ones that are known of it, where they are the same."""
        known = self._known.folders.get(folder)
        if known is not None and self._again:
            return known.rules
        own = [entry for entry in entries if entry.name == IGNORE_FILE and entry.is_file(follow_symlinks=False)]
        rules = above.within(
            folder[:-1] or ".", [Entry(f"{folder}{IGNORE_FILE}", "file", 0)] if own else [], self._read
        )
        return known.rules if known is not None and known.rules == rules else rules

    def _read(self, name: str) -> bytes:
        with BeneathReader(self._paths, self._root_fd) as reader:
            return reader.read(name, LARGEST_IGNORE_FILE) or b""

    def _verdicts(self, folder: str, rules: IgnoreRules) -> Callable[[str, bool], bool]:
        """(name, is it a directory?) -> whether it is hidden. To ask the rules takes longer than all else here."""
        known = self._known.folders.get(folder)
        same = known if known is not None and known.rules is rules else None
        seen_files, seen_folders = self._known.files, self._known.folders

        def hidden(name: str, is_folder: bool) -> bool:
            if same is not None:
                whole = f"{name}/" if is_folder else name
                if whole in same.ignored:
                    return True
                if f"{folder}{whole}" in (seen_folders if is_folder else seen_files):
                    return False
            return rules.ignores(Entry(f"{folder}{name}", "directory" if is_folder else "file", 0))

        return hidden
