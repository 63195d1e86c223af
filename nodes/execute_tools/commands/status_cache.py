"""A cache of what was computed from a file, valid as long as the file's status stays the same."""

import os
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

SETTLED_NS: Final = 1_000_000_000
"""Age of a change from which on a further change shows in the times. Source: file systems count in up to a second."""

Value = TypeVar("Value")


class StatusCache(Generic[Value]):
    """Values by file name; a changed file's value is computed again. It is emptied when it holds `most` values."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[str, tuple[tuple[int, ...], Value]] = {}

    def value(self, name: str, status: os.stat_result, compute: Callable[[], Value]) -> Value:
        """Return the value of the file with this name and status, from `compute` if it is not in the cache.

        A file that has just changed is not cached: it could change again and keep its times.
        """
        stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        entry = self._entries.get(name)
        if entry is not None and entry[0] == stamp:
            return entry[1]

        value = compute()
        self._entries.pop(name, None)
        if time.time_ns() - status.st_ctime_ns > SETTLED_NS:
            if len(self._entries) >= self._most:
                self._entries.clear()

            self._entries[name] = (stamp, value)

        return value
