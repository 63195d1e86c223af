"""What a directory holds."""

import os
from dataclasses import dataclass
from typing import Literal

from nodes.execute_tools.environment.handles import closing, open_beneath, open_root
from nodes.execute_tools.environment.sandbox import Place

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


def entries_of(root: str, place: Place) -> list[Entry]:
    """What the directory holds; OSError where it is none or cannot be read."""
    directory_flags = os.O_RDONLY | os.O_DIRECTORY
    with closing(open_root(root)) as top, closing(open_beneath(top, place.parts, directory_flags)) as directory:
        return read_entries(directory, "" if place.real == "." else f"{place.real}/")
