"""What the operating system says of processes: memory, threads and handles, and the CPU that they have used.

Linux tells all of it below `/proc`; elsewhere a figure that nobody tells is 0.
"""

import os
import resource
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

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


def _status(name: str, path: str = _STATUS) -> int:
    with suppress(OSError, ValueError), open(path, encoding="ascii", errors="replace") as file:
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


class _Seen(NamedTuple):
    """A process when it was last looked at: CPU seconds of its own and of children that it has waited for."""

    parent: int
    own_s: float
    waited_s: float


class Family:
    """All processes that have this text in their environment, whoever started them and however they end.

    What one has used since it was last looked at is lost when it is killed. `peak` is the most resident memory of one.
    """

    def __init__(self, mark: str) -> None:
        self._mark, self._seen = mark.encode(), dict[tuple[int, str], _Seen]()
        self.peak = 0
        self.look()
        self._before_s = self._used_s()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all since this was made, with the programs that they have started."""
        return self._used_s() - self._before_s

    def look(self) -> None:
        """See what they have used by now; this has to be asked often."""
        for name in filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc") else ():
            with suppress(OSError, ValueError, IndexError):
                if self._mark in Path(f"/proc/{name}/environ").read_bytes():
                    fields = Path(f"/proc/{name}/stat").read_text("latin-1").rpartition(")")[2].split()
                    own, waited = (sum(map(int, fields[at : at + 2])) / os.sysconf("SC_CLK_TCK") for at in (11, 13))
                    self._seen[int(name), fields[19]] = _Seen(int(fields[1]), own, waited)
                    self.peak = max(self.peak, _status("VmHWM", f"/proc/{name}/status") * 1_024)

    def workers(self, parent: int) -> list[int]:
        """Those that are there now and do tasks: on Ray those that call our function, else the children of `parent`."""
        titles = {}
        for number, _ in self._seen:
            with suppress(OSError):
                titles[number] = Path(f"/proc/{number}/cmdline").read_bytes()
        on_ray = [number for number, title in titles.items() if title.startswith(b"ray::by_name")]
        children = {number for (number, _), seen in self._seen.items() if seen.parent == parent}
        return on_ray or [number for number, title in titles.items() if title and number in children]

    def _used_s(self) -> float:
        parents = {each.parent for each in self._seen.values()}
        own = sum(each.own_s for each in self._seen.values())
        return own + sum(each.waited_s for (number, _), each in self._seen.items() if number not in parents)
