"""What all processes of a sandboxed program may use together, and what is said where it uses more."""

import functools
import os
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from nodes.execute_tools.environment.control_groups import CGROUPS, own_groups

_MB: Final = 1_000_000
_GIB: Final = 1_073_741_824


@dataclass(frozen=True)
class ResourceLimits:
    """`processes` counts threads as well; `memory_bytes` includes what lies in `/tmp`, `/dev/shm` and the home.

    Each of those three holds `scratch_bytes` at most. A file may have `file_bytes`, and a process `open_files`. On the
    disk of the workspace a program may use `disk_bytes` and `files` more than when it was started, and print
    `output_bytes`.
    """

    processes: int
    memory_bytes: int
    scratch_bytes: int = _GIB
    file_bytes: int = 4 * _GIB
    open_files: int = 8_192
    disk_bytes: int = 8 * _GIB
    files: int = 1_000_000
    output_bytes: int = _GIB


class Limit(StrEnum):
    """Which limit a program has reached."""

    PROCESSES, MEMORY, MACHINE_MEMORY, OPEN_FILES = "processes", "memory", "machine_memory", "open_files"
    FILE_SIZE, SCRATCH, DISK, FILES, OUTPUT = "file_size", "scratch", "disk", "files", "output"


@dataclass(frozen=True)
class LimitReached:
    """A limit that a program has reached, with the figures; 0 where nobody knows what was reached."""

    limit: Limit
    reached: int
    allowed: int

    def __str__(self) -> str:
        """What follows the program's name, with the remedy."""
        reached, allowed = (
            f"{each:,}" if self.limit in _COUNTED else f"{each / _MB:,.0f} MB" for each in (self.reached, self.allowed)
        )
        return _WORDS[self.limit].format(reached=reached, allowed=allowed)


_COUNTED: Final = (Limit.PROCESSES, Limit.OPEN_FILES, Limit.FILES)
_WORDS: Final = {
    Limit.PROCESSES: "came to its limit of {allowed} processes and threads ({reached} were seen): let it do less at"
    " once (such as `-j 4`).",
    Limit.MEMORY: "was stopped: all its processes together used {reached} of memory, and may use {allowed}. Let it do"
    " less at once, or work on less data.",
    Limit.MACHINE_MEMORY: "was stopped: the machine had {reached} of memory left, and {allowed} have to stay free.",
    Limit.OPEN_FILES: "came to its limit of {allowed} open files in one process: let it close what it does not need.",
    Limit.FILE_SIZE: "came to its limit of {allowed} for one file: let it write several, or less.",
    Limit.SCRATCH: "filled its own `/tmp`, `/dev/shm` or home, which hold {allowed} each: let it write less there.",
    Limit.DISK: "was stopped: the disk of the workspace held {reached} more than before, and {allowed} are allowed.",
    Limit.FILES: "was stopped: the disk of the workspace held {reached} files more than before, and {allowed} are"
    " allowed.",
    Limit.OUTPUT: "was stopped: it printed {reached}, and may print {allowed}. Let it write to a file.",
}


@functools.cache
def command_limits() -> ResourceLimits:
    """Those of programs that a person allowed: room for `make -j`, `pytest -n auto`, and half of the memory."""
    return ResourceLimits(processes=512 + 64 * _cores(), memory_bytes=max(_GIB // 2, usable_memory() // 2))


@functools.cache
def evidence_limits() -> ResourceLimits:
    """Those of code that nobody allowed by name: enough for the tests of one module."""
    memory = min(max(_GIB // 2, usable_memory() // 8), 4 * _GIB)
    return ResourceLimits(
        processes=64 + 16 * _cores(),
        memory_bytes=memory,
        scratch_bytes=_GIB // 4,
        file_bytes=_GIB // 4,
        open_files=1_024,
    )


def usable_memory() -> int:
    """Bytes of memory of this machine, or of the container or service that we are in, where that has less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    names = [f"{folder}/memory.max" for folder in own_groups()]
    for name in (*names, f"{CGROUPS}/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no number
            found.append(int(Path(name).read_text()))
    return min(found)


def _cores() -> int:
    return os.cpu_count() or 1
