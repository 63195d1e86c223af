"""What the operating system says of this process: memory, threads and handles, and the CPU that it has used.

Linux tells all of it below `/proc`; elsewhere a figure that nobody tells is 0.
"""

import os
import resource
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

_STATUS: Final = "/proc/self/status"
_HANDLES: Final = "/proc/self/fd"
_FORGET_THE_PEAK: Final = b"5"
"""Source: proc_pid_clear_refs(5): writing 5 sets the peak of resident memory to its present value."""
_LOOK_S: Final = 0.25


def cpu_s() -> float:
    """CPU seconds, user and system, of this process and of those that it started and that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def resident_bytes() -> int:
    """Resident memory now."""
    return _status("VmRSS") * 1_024


def peak_bytes() -> int:
    """The most resident memory since `forget_the_peak`, where the system can forget it."""
    return _status("VmHWM") * 1_024


def forget_the_peak() -> None:
    """Let the peak of resident memory begin anew."""
    with suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(_FORGET_THE_PEAK)


def _status(name: str) -> int:
    with suppress(OSError, ValueError), open(_STATUS, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


@dataclass
class Peaks:
    """The most threads and handles at once, as far as a look four times a second can tell; a context manager.

    Its own thread and the handle with which it looks do not count.
    """

    threads: int = 0
    handles: int = 0

    def __enter__(self) -> Self:
        """Begin to look."""
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, name="peaks", daemon=True)
        self._looking.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Look once more."""
        self._ended.set()
        self._looking.join()

    def _look(self) -> None:
        while True:
            self.threads = max(self.threads, _status("Threads") - 1)
            with suppress(OSError):
                self.handles = max(self.handles, len(os.listdir(_HANDLES)) - 1)
            if self._ended.wait(_LOOK_S):
                return
