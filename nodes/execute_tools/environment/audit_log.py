"""What was done, written down: one event, one line, in files that are turned over before they grow too large."""

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nodes.execute_tools.environment.handles import closing
from nodes.execute_tools.policy.audit_lines import audit_line
from nodes.records import JsonMap

FILE_NAME = "audit.jsonl"
LOCK_NAME = ".audit.lock"

LONGEST_WAIT_S = 2.0
"""How long a write waits for its turn. After that it appends all the same, and leaves the rest to others."""

_POLL_S = 0.002
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class AuditLog:
    """Appends to `audit.jsonl` in `folder`; older lines are in `audit.jsonl.1`, `.2` and so on, `keep` files in all.

    Any number of threads and processes may write. It never raises and holds nothing open; the events that could not
    be written are counted in `lost`. Secrets have to be taken out before.
    """

    def __init__(self, folder: str, max_bytes: int = 5_000_000, keep: int = 3) -> None:
        """Touches nothing yet. A file is turned over before it would pass `max_bytes`."""
        self._folder, self._max_bytes, self._keep = folder, max_bytes, keep
        self._lock = threading.Lock()
        self.lost = 0

    def write(self, record: JsonMap) -> None:
        """Append one event, as `audit_line` writes it."""
        line = audit_line(record)
        with self._lock:
            try:
                with closing(os.open(self._folder, _DIRECTORY)) as folder_fd, self._turn() as ours:
                    if ours:
                        self._turn_over(folder_fd, len(line))
                    whole = _append(folder_fd, line, mend=ours)
            except Exception:  # noqa: BLE001 - whatever stands in the way, the run goes on
                whole = False
            self.lost += not whole

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Keeps other processes out; False where that took too long."""
        from filelock import FileLock, Timeout

        path = os.path.join(self._folder, LOCK_NAME)
        lock = FileLock(path, timeout=LONGEST_WAIT_S, mode=0o600, poll_interval=_POLL_S)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _turn_over(self, folder_fd: int, more: int) -> None:
        try:
            size = os.stat(FILE_NAME, dir_fd=folder_fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return
        if size == 0 or size + more <= self._max_bytes:
            return
        names = [FILE_NAME, *(f"{FILE_NAME}.{number}" for number in range(1, self._keep))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            with suppress(FileNotFoundError):
                os.rename(newer, older, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        if self._keep <= 1:
            os.unlink(FILE_NAME, dir_fd=folder_fd)


def _append(folder_fd: int, line: bytes, *, mend: bool) -> bool:
    """Write the line in one call; says whether all of it is there.

    With `mend`, what a full disk or a kill has torn is ended first, so that it spoils no line but its own.
    """
    with closing(os.open(FILE_NAME, _APPEND, 0o600, dir_fd=folder_fd)) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return False
        torn = mend and status.st_size > 0 and os.pread(descriptor, 1, status.st_size - 1) != b"\n"
        data = b"\n" + line if torn else line
        return os.write(descriptor, data) == len(data)
