"""The contents of a workspace's files as they were seen last, so that only what is new since has to be read."""

import hashlib
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.files.file_changes import LARGEST_BACKUP
from mendgraph.nodes.execute_tools.files.file_reads import BeneathReader
from mendgraph.nodes.execute_tools.processes.tree_status import Status, Tree

COARSEST_CLOCK_NS: Final = 2_000_000_000
"""Two writes within this time may leave the same times on a file. Source: FAT counts 2 s, Linux ticks up to 10 ms."""

_MOST_INDEXES: Final = 2
"""Workspaces whose files are remembered; each holds as many bytes as the limits allow."""


class WatchLimits(NamedTuple):
    """How much is done for the sake of one command.

    A workspace with more than `entries` files and directories is not watched: two looks at 20,000 of them take 0.3 s.
    The contents of at most `files` files of at most `file_bytes` are known, `all_bytes` together, those that were
    changed last first: to read 10,000 takes about 0.5 s, once, and they stay in memory. What is there afterwards is
    known by its hash at least, up to `hashed_bytes`, so that a large file that is new can be removed again. `before_s`
    seconds, which are the command's own, and `after_s`, which come on top, bound the two looks with what they read.
    """

    entries: int = 50_000
    files: int = 10_000
    file_bytes: int = 1_000_000
    all_bytes: int = 50_000_000
    hashed_bytes: int = LARGEST_BACKUP
    before_s: float = 2.0
    after_s: float = 1.0


class Content(NamedTuple):
    """The bytes of a file, and their hash. They hold as long as it has this status, if that is `sure`."""

    status: Status
    data: bytes
    sha256: str
    sure: bool


@dataclass
class FileIndex:
    """What was seen of a workspace last. Whoever uses it takes its `turn`."""

    tree: Tree | None = None
    contents: dict[str, Content] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def read(self, tree: Tree, reader: "ContentReader") -> dict[str, Content]:
        """Remember a tree and the contents of its files, as far as the reader goes. Only what is new is read."""
        newest_first = sorted(tree.files.items(), key=lambda file: (-file[1].mtime_ns, file[0]))
        contents: dict[str, Content] = {}
        for name, status in sorted(file for file in newest_first if reader.allows(file[1])):
            known = self.contents.get(name)
            still = known is not None and known.sure and known.status == status
            content = known if still else reader.read(name, status)
            if content is not None:
                contents[name] = content
        self.tree, self.contents = tree, contents
        return contents


@lru_cache(maxsize=_MOST_INDEXES)
def file_index(root: str) -> FileIndex:  # noqa: ARG001 - it is the key of the cache
    """The index of the workspace with this real path."""
    return FileIndex()


class ContentReader:
    """Reads contents for one look, which began at `began_ns`, until one of the limits is reached, or the deadline."""

    def __init__(self, files: BeneathReader, limits: WatchLimits, deadline: float, began_ns: int) -> None:
        self._reader, self._limits, self._deadline = files, limits, deadline
        self._sure_until_ns = began_ns - COARSEST_CLOCK_NS
        self._files, self._bytes = limits.files, limits.all_bytes

    def allows(self, status: Status) -> bool:
        """Whether the content of this file may be known as well; if so, it counts."""
        size = status.size
        if not status.is_regular or self._files == 0 or size > min(self._limits.file_bytes, self._bytes):
            return False
        self._files, self._bytes = self._files - 1, self._bytes - size
        return True

    def read(self, name: str, status: Status) -> Content | None:
        """The content of a file that is allowed; None where it cannot be had, or there is no time for it."""
        if time.monotonic() > self._deadline:
            return None
        data = self._reader.read(name, self._limits.file_bytes)
        if data is None:
            return None
        return Content(status, data, hashlib.sha256(data).hexdigest(), status.ctime_ns < self._sure_until_ns)

    def sha256(self, name: str, status: Status) -> str | None:
        """The hash of a file whose content is not allowed; None where it cannot be had, or there is no time for it."""
        if not status.is_regular or status.size > self._limits.hashed_bytes or time.monotonic() > self._deadline:
            return None
        data = self._reader.read(name, self._limits.hashed_bytes)
        return None if data is None else hashlib.sha256(data).hexdigest()
