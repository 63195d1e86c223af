"""The requests that a person has typed in the chats of a workspace, kept in its data folder for the next chat.

A file of JSON lines that only its owner may read. What cannot be read or written costs the history and nothing else.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from mendgraph.nodes.execute_tools.files.failures import os_failure
from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.records import ToolError

FILE_NAME: Final = "requests.jsonl"

MOST_REQUESTS: Final = 1_000
MOST_BYTES: Final = 1_000_000
"""What a chat begins with; twice of either in the file, and the oldest requests are dropped from it."""

LONGEST_REQUEST: Final = 20_000
"""Characters: a longer one is not kept, as nobody would leaf to it line by line."""

_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class RequestHistory:
    """The requests of one workspace; whoever adds one has taken its secrets out. `problem` says why none is kept."""

    def __init__(self, root: str, base: str | None = None) -> None:
        """`root` is the workspace; `base` as in `run_folder`. Nothing is opened yet."""
        self._root, self._base = root, base
        self.problem = ""

    def load(self) -> list[str]:
        """The requests, oldest first."""
        found: list[str] = []
        self._with_file(lambda path, descriptor: found.extend(_load(path, descriptor)))
        return found

    def add(self, request: str) -> None:
        """Keep one more."""
        if len(request) <= LONGEST_REQUEST:
            self._with_file(lambda _, descriptor: _write(descriptor, _lines([request])))

    def _with_file(self, use: Callable[[str, int], None]) -> None:
        """Use the file, which is made where there is none; after the first problem nothing is tried any more."""
        folder = None if self.problem else workspace_folder(self._root, self._base)
        if folder is None:
            return
        if isinstance(folder, ToolError):
            self.problem = folder.message
            return
        path = os.path.join(folder, FILE_NAME)
        try:
            with closing(os.open(path, _OPEN, 0o600)) as descriptor:
                _make_private(descriptor)
                use(path, descriptor)
        except OSError as error:
            self.problem = os_failure(error, "keep requests in", path).message


def _make_private(descriptor: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if stat.S_IMODE(status.st_mode) != 0o600:
        os.fchmod(descriptor, 0o600)


def _load(path: str, descriptor: int) -> list[str]:
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, MOST_BYTES, max(0, size - MOST_BYTES))
    found = list(_requests(data))
    if size > 2 * MOST_BYTES or len(found) > 2 * MOST_REQUESTS:
        _replace(path, found[-MOST_REQUESTS:])
    return found[-MOST_REQUESTS:]


def _replace(path: str, requests: list[str]) -> None:
    """Put these in the file's place at once; of two chats that do so the later one counts."""
    new = f"{path}.{os.getpid()}"
    try:
        with closing(os.open(new, _NEW, 0o600)) as descriptor:
            _write(descriptor, _lines(requests))
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise


def _lines(requests: Iterable[str]) -> bytes:
    return b"".join(json.dumps(storable(request)).encode("ascii") + b"\n" for request in requests)


def _write(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _requests(data: bytes) -> Iterable[str]:
    """What the lines hold; one that was cut is passed over."""
    for line in data.split(b"\n"):
        with suppress(ValueError, RecursionError):
            request = json.loads(line)
            if isinstance(request, str):
                yield request
