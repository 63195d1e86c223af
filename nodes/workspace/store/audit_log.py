"""The audit log: one event per line, in files that are rotated before they grow too large."""

import json
import os
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from math import isfinite
from typing import Final

from mendgraph.nodes.records import JsonMap
from mendgraph.nodes.workspace.files.handles import closing

FILE_NAME = "audit.jsonl"

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class AuditLog:
    """Appends to `audit.jsonl` in `folder`; `keep` files in all include `audit.jsonl.1` and so on with older lines.

    Any thread may write. It never raises and keeps no file open; `lost` counts the events that could not be written.
    The caller has removed secrets.
    """

    def __init__(self, folder: str, max_bytes: int = 5_000_000, keep: int = 3) -> None:
        """A file is rotated before it would exceed `max_bytes`."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock = threading.Lock()
        self.lost = 0

    def write(self, record: JsonMap) -> None:
        """Append one event."""
        line = audit_line(record)
        with self._lock:
            try:
                with closing(os.open(self._folder, _DIRECTORY)) as folder_fd:
                    self._rotate(folder_fd, len(line))
                    is_complete = _append(folder_fd, line)
            except Exception:  # noqa: BLE001 - the run continues without its log
                is_complete = False

            self.lost += not is_complete

    def _rotate(self, folder_fd: int, more: int) -> None:
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


def _append(folder_fd: int, line: bytes) -> bool:
    """Write the line in one call and return whether it is complete; an incomplete line before it is ended first."""
    with closing(os.open(FILE_NAME, _APPEND, 0o600, dir_fd=folder_fd)) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return False

        torn = status.st_size > 0 and os.pread(descriptor, 1, status.st_size - 1) != b"\n"
        data = b"\n" + line if torn else line
        return os.write(descriptor, data) == len(data)


LONGEST_LINE = 16 * 1024
"""Bytes of a line with its end."""

_SIZES: Final = ((4_000, 1_000, 12), (400, 100, 6), (40, 10, 3), (8, 2, 2))
"""Limits that are tried in this order: characters of a string, values of a collection, and depth."""


def audit_line(record: JsonMap) -> bytes:
    r"""Return the record as one line of JSON of at most `LONGEST_LINE` bytes. Never raises.

    Other characters than ASCII are escaped, as in \u202e, so that none controls a terminal. A value without a form in
    JSON is shown by its type, like <bytes>. Long strings and large collections are cut.
    """
    try:
        lines = (_line(_plain(record, *size)) for size in _SIZES)
        return next(line for line in lines if len(line) <= LONGEST_LINE)
    except Exception as error:  # noqa: BLE001 - a value may raise anything
        return _line({"unloggable": type(error).__name__})


def _line(plain: object) -> bytes:
    text = json.dumps(plain, ensure_ascii=True, separators=(",", ":"))
    return text.encode() + b"\n"


def _plain(value: object, characters: int, values: int, depth: int) -> object:
    if isinstance(value, Enum):
        value = value.value

    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value)):
        return value

    if isinstance(value, str):
        cut = f"{value[:characters]}… ({len(value)} characters)"
        return value if len(value) <= characters else cut

    if depth and isinstance(value, Mapping):
        entry = {
            str(_plain(str(key), characters, 0, 0)): _plain(value[key], characters, values, depth - 1)
            for key in [*value][:values]
        }

        if len(value) <= values:
            return entry
        return {**entry, "…": f"{len(value) - values} more"}

    if depth and isinstance(value, list | tuple):
        items = [_plain(item, characters, values, depth - 1) for item in value[:values]]
        if len(value) <= values:
            return items
        return [*items, f"… {len(value) - values} more"]

    return f"<{type(value).__name__[:100]}>"
