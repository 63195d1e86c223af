"""What a tree of files was at one time, to tell later which of its files may have changed without reading the others.

Only what a patch can speak of counts: regular files and links, without `.git` and what `.gitignore` files hide. A file
that was recorded stays in view, though it may be ignored later; one that was ignored stays out of it.
"""

import os
import stat
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from nodes.execute_tools.environment.handles import closing, open_directory, open_regular
from nodes.execute_tools.environment.tree_walk import IGNORE_FILE, LARGEST_IGNORE_FILE, Entry, IgnoreRules

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

    Raises:
        OSError: a folder cannot be looked into.
    """
    if tracked is not None:
        return TreeRecord(_stamps(root_fd, tracked))
    look = _Look(root_fd, TreeRecord({}))
    look.run()
    return TreeRecord(look.files, frozenset(look.hidden))


def changes_since(root_fd: int, before: TreeRecord) -> TreeChanges:
    """What may be different now.

    Raises:
        OSError: a folder cannot be looked into.
    """
    look = _Look(root_fd, before)
    look.run()
    touched = (name for name, stamp in look.files.items() if stamp == _UNSURE or before.files.get(name) != stamp)
    return TreeChanges(tuple(sorted(before.files.keys() - look.files.keys())), tuple(sorted(touched)))


class _Look:
    """Goes through a tree with what is known of it."""

    def __init__(self, root_fd: int, known: TreeRecord) -> None:
        self.files: dict[str, Stamp] = {}
        self.hidden: list[str] = []
        self._root_fd, self._known = root_fd, known
        self._known_folders = _folders_of(known.files)

    def run(self) -> None:
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
    """What the kernel says of a file or a link; None for anything else."""
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        return None
    if max(status.st_ctime_ns, status.st_mtime_ns) > time.time_ns() - _TICK_NS:
        return _UNSURE
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _folders_of(files: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for name in files:
        end = name.rfind("/")
        while end > 0 and name[: end + 1] not in found:
            found.add(name[: end + 1])
            end = name.rfind("/", 0, end)
    return frozenset(found)


def _stamp(values: Iterable[int]) -> Stamp:
    mode, size, mtime, ctime, number = map(int, values)
    return mode, size, mtime, ctime, number
