"""What a directory holds."""

import os
from dataclasses import dataclass
from typing import Literal

from nodes.execute_tools.environment.handles import closing, open_directory, open_root
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.sandbox import Place
from nodes.records import ToolError

GIT_DIRECTORY = ".git"

EntryKind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True)
class Entry:
    """One name in a directory. `path` is relative to the workspace, `size` in bytes (0 for what is no file)."""

    path: str
    kind: EntryKind
    size: int


def read_entries(directory_fd: int, prefix: str) -> list[Entry]:
    """What the open directory holds, without `.git`; `prefix` is its own path with a "/" at the end, or ""."""
    with os.scandir(directory_fd) as found:
        return [_entry(each, prefix) for each in found if each.name.casefold() != GIT_DIRECTORY]


def _entry(found: os.DirEntry[str], prefix: str) -> Entry:
    path = f"{prefix}{found.name}".encode(errors="backslashreplace").decode()
    try:
        if found.is_symlink():
            return Entry(path, "link", 0)
        if found.is_dir(follow_symlinks=False):
            return Entry(path, "directory", 0)
        if found.is_file(follow_symlinks=False):
            return Entry(path, "file", found.stat(follow_symlinks=False).st_size)
    except OSError:  # it was there a moment ago
        pass
    return Entry(path, "other", 0)


def judged_entries(paths: JudgedPaths, place: Place) -> list[Entry] | ToolError:
    """What the directory holds, or the judge's denial of the one that was opened, whatever it was called before.

    Raises:
        OSError: it is no directory, or it cannot be read.
    """
    with closing(open_root(paths.root)) as top, closing(open_directory(top, place.parts)) as directory:
        name = paths.opened_name(directory, top, place, for_write=False)
        return name if isinstance(name, ToolError) else read_entries(directory, _prefix(name))


def _prefix(directory: str) -> str:
    return "" if directory == "." else f"{directory}/"
