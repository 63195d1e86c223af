"""The memory, threads, handles and CPU time of processes, read from `/proc`. A figure without a source is 0."""

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
_RESET_PEAK: Final = b"5"
"""Source: proc_pid_clear_refs(5): writing 5 sets the peak of resident memory to its present value."""
_INTERVAL_S: Final = 0.25


def cpu_s() -> float:
    """Return the user and system CPU seconds of this process and of its completed child processes."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def resident_bytes() -> int:
    """Return the resident memory."""
    return _status("VmRSS") * 1_024


def peak_bytes() -> int:
    """Return the peak of resident memory since `reset_peak`."""
    return _status("VmHWM") * 1_024


def reset_peak() -> None:
    """Reset the peak of resident memory, if the system supports it."""
    with suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(_RESET_PEAK)


def process_ids() -> list[int]:
    """Return the ids of all processes."""
    if not os.path.isdir("/proc"):
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat_fields(process: int) -> list[str]:
    """Return the fields of a process's `stat` from the state on.

    Raises:
        OSError: The process does not exist.
    """
    stat = Path(f"/proc/{process}/stat").read_text("latin-1")
    return stat.rpartition(")")[2].split()


def _status(name: str, path: str = _STATUS) -> int:
    with suppress(OSError, ValueError), open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


@dataclass
class Peaks:
    """A context manager that samples the peak numbers of threads and handles of this process.

    Its own thread and the handle that it reads with are not counted.
    """

    threads: int = 0
    handles: int = 0

    def __enter__(self) -> Self:
        """Start the sampling thread."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peaks", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the sampling thread."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.threads = max(self.threads, _status("Threads") - 1)
            with suppress(OSError):
                self.handles = max(self.handles, len(os.listdir(_HANDLES)) - 1)
            if self._stop.wait(_INTERVAL_S):
                return


class _Usage(NamedTuple):
    """The last known CPU seconds of a process: its own, and those of children that it waited for."""

    parent: int
    process_s: float
    children_s: float


class Family:
    """All processes that have this text in their environment, independent of their parents.

    When a process is killed, its CPU time since the last update is lost. `peak` is the largest resident memory of a
    process.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._usages: dict[tuple[int, str], _Usage] = {}
        self.peak = 0
        self.update()
        self._start_s = self._total_s()

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of all processes and of their programs since the creation of this object."""
        return self._total_s() - self._start_s

    def update(self) -> None:
        """Read the usage of all processes. Frequent updates lose less CPU time."""
        for process in process_ids():
            with suppress(OSError, ValueError, IndexError):
                if self._mark in Path(f"/proc/{process}/environ").read_bytes():
                    self._update_process(process)

    def _update_process(self, process: int) -> None:
        fields = stat_fields(process)
        parent = int(fields[1])
        start_time = fields[19]
        ticks_a_second = os.sysconf("SC_CLK_TCK")
        process_s = sum(map(int, fields[11:13])) / ticks_a_second
        children_s = sum(map(int, fields[13:15])) / ticks_a_second

        self._usages[process, start_time] = _Usage(parent, process_s, children_s)
        self.peak = max(self.peak, _status("VmHWM", f"/proc/{process}/status") * 1_024)

    def workers(self, parent: int) -> list[int]:
        """Return the ids of the running workers: Ray's workers if there are any, otherwise the children of `parent`."""
        command_lines: dict[int, bytes] = {}
        for process, _ in self._usages:
            with suppress(OSError):
                command_lines[process] = Path(f"/proc/{process}/cmdline").read_bytes()

        ray_workers = [process for process, line in command_lines.items() if line.startswith(b"ray::by_name")]
        if ray_workers:
            return ray_workers

        children = {process for (process, _), usage in self._usages.items() if usage.parent == parent}
        return [process for process, line in command_lines.items() if line and process in children]

    def _total_s(self) -> float:
        """Return the CPU seconds of all processes. Children in the family are not counted again by their parents."""
        parents = {usage.parent for usage in self._usages.values()}
        total = 0.0
        for (process, _), usage in self._usages.items():
            total += usage.process_s
            if process not in parents:
                total += usage.children_s
        return total
