"""What the processes of one command may use together: the limits, and the watcher that enforces them.

Limits that a process inherits are set on a sandbox's first process before the program starts. Linux 5.14 and newer
count processes for each user namespace, but never those of root. A watcher bounds the sum of all processes: every 50 ms
it adds up the processes that the sandbox's own `/proc` lists and the sizes of its file systems in memory. A fork bomb
of root makes 250 to 500 processes before it is ended, and up to 10,000 on a busy machine; one of an ordinary user makes
none beyond the limit. Source: getrlimit(2), proc(5); measured with Linux 6.18 and 6.1.
"""

import os
import re
import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from mendgraph.nodes.workspace.files.handles import closing

_MB: Final = 1_000_000
_GIB: Final = 1_073_741_824


@dataclass(frozen=True)
class ResourceLimits:
    """Limits of one command; sizes are bytes.

    `processes` counts threads as well. `memory_bytes` includes the files in `/tmp`, `/dev/shm` and the home, each of
    which holds at most `scratch_bytes`. `file_bytes` and `open_files` bound each file and each process. `disk_bytes` is
    the growth of the workspace's disk during the command, `output_bytes` what it prints.
    """

    processes: int
    memory_bytes: int
    scratch_bytes: int = _GIB
    file_bytes: int = 4 * _GIB
    open_files: int = 8_192
    disk_bytes: int = 8 * _GIB
    output_bytes: int = _GIB


class Limit(StrEnum):
    """The limits that a program can reach."""

    PROCESSES, MEMORY, MACHINE_MEMORY = "processes", "memory", "machine_memory"
    FILE_SIZE, DISK, OUTPUT = "file_size", "disk", "output"


@dataclass(frozen=True)
class LimitReached:
    """A limit that a program has reached: the measured amount and the allowed one."""

    limit: Limit
    reached: int
    allowed: int

    def __str__(self) -> str:
        """The end of a sentence that begins with the program's name, with the remedy."""
        reached = self._formatted(self.reached)
        allowed = self._formatted(self.allowed)
        return _MESSAGES[self.limit].format(reached=reached, allowed=allowed)

    def _formatted(self, amount: int) -> str:
        if self.limit is Limit.PROCESSES:
            return f"{amount:,}"
        return f"{amount / _MB:,.0f} MB"


_MESSAGES: Final = {
    Limit.PROCESSES: "came to its limit of {allowed} processes and threads ({reached} were seen): let it do less at"
    " once (such as `-j 4`).",
    Limit.MEMORY: "was stopped: all its processes together used {reached} of memory, and may use {allowed}. Let it do"
    " less at once, or work on less data.",
    Limit.MACHINE_MEMORY: "was stopped: the machine had {reached} of memory left, and {allowed} must stay free.",
    Limit.FILE_SIZE: "came to its limit of {allowed} for one file: let it write several, or less.",
    Limit.DISK: "was stopped: the disk of the workspace held {reached} more than before, and {allowed} are allowed.",
    Limit.OUTPUT: "was stopped: it printed {reached}, and may print {allowed}. Let it write to a file.",
}


@cache
def command_limits() -> ResourceLimits:
    """The limits of a program that a person allowed: enough for `make -j` and `pytest -n auto`, half of the memory."""
    return ResourceLimits(processes=512 + 64 * (os.cpu_count() or 1), memory_bytes=max(_GIB // 2, usable_memory() // 2))


@cache
def evidence_limits() -> ResourceLimits:
    """The limits of code that no person allowed by name: enough for the tests of one module."""
    memory = min(max(_GIB // 2, usable_memory() // 8), 4 * _GIB)
    return ResourceLimits(
        processes=64 + 16 * (os.cpu_count() or 1),
        memory_bytes=memory,
        scratch_bytes=_GIB // 4,
        file_bytes=_GIB // 4,
        open_files=1_024,
    )


_CGROUPS: Final = "/sys/fs/cgroup"


def usable_memory() -> int:
    """Bytes of memory of this machine, or of its container or service where that has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    files = [Path(folder, "memory.max") for folder in _control_groups()]
    for file in (*files, Path(_CGROUPS, "memory/memory.limit_in_bytes")):
        with suppress(OSError, ValueError):  # "max" is no number
            limits.append(int(file.read_text()))

    return min(limits)


def _control_groups() -> list[str]:
    """The folders of the control groups of this process, innermost first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []

    group = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = Path(f"{_CGROUPS}{group}")
    paths = map(str, (folder, *folder.parents))
    return [path for path in paths if path.startswith(_CGROUPS)]


_INTERVAL_S: Final = 0.05
_PAUSE_FACTOR: Final = 4
"""A check that took long is followed by a pause this many times as long, so that it costs a fifth of a core at most."""
_INIT_PROCESSES: Final = 1
"""Bubblewrap's own process in the sandbox, with the number 1."""
_FILE_IN_MEMORY: Final = 1_024
"""Bytes of kernel memory for each file of a file system in memory. Source: slabinfo(5), 720 and 192 for inode, name."""
_RESERVED_PART: Final = 32
"""One part in so many of the machine's memory has to stay free: the kernel uses memory that no process list shows."""
_NICE: Final = 5
"""The niceness of a sandbox: the watcher comes first, but on a busy machine the program still makes progress."""
_COUNTS_NAMESPACES: Final = (5, 14)
"""From this Linux on, RLIMIT_NPROC counts the processes of a user namespace, not all of a user."""

_MEMORY_USED = re.compile(rb"^(Threads|RssAnon|RssShmem|VmSwap|VmPTE):\s+(\d+)", re.MULTILINE)
_PROPORTIONAL_MEMORY = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)
_BYTES_WRITTEN = re.compile(rb"^write_bytes: (\d+)", re.MULTILINE)
_FORK_FAILED = re.compile(
    rb"[Cc]annot fork|fork: .*temporarily unavailable|BlockingIOError: \[Errno 11\]|start new thread|native thread"
    rb"|new OS thread"
)
"""Messages of common programs that cannot start a further process."""
_FILE_TOO_LARGE: Final = b"File too large"
"""The message of the C library."""


class _Usage(NamedTuple):
    """Threads of a process, bytes of its memory, and the folder of `/proc` that reports the memory."""

    threads: int
    memory_bytes: int
    folder: str


class Watch:
    """Enforces the limits of one sandbox, whose first process is `first`, until it is closed.

    Create it while that process waits, before the program starts. `in_memory` names the file systems in memory that the
    program may write to, `disk_fd` is a handle on the disk that it may write to. For a sandbox without a process
    namespace `list_processes` returns the numbers of its processes.
    """

    def __init__(
        self,
        first: int,
        limits: ResourceLimits,
        in_memory: Sequence[str],
        disk_fd: int | None = None,
        list_processes: Callable[[], list[int]] | None = None,
    ) -> None:
        self._first = first
        self._limits = limits
        self._in_memory = in_memory
        self._disk_fd = disk_fd
        self._list_processes = list_processes
        self._most_tasks = 0
        self._next = time.monotonic() + _INTERVAL_S
        self._proc: int | None = None
        self._scratch: list[int] = []
        self._disk = None if disk_fd is None else os.fstatvfs(disk_fd)
        total, available = _machine_memory()
        self._least_memory = min(total // _RESERVED_PART, available // 2)

        others = _INIT_PROCESSES if list_processes is None else _all_processes()
        _set_inherited_limits(first, limits, limits.processes + others)

    def try_open(self) -> bool:
        """Whether the sandbox is mounted and can be watched; the program may start only then.

        Raises PermissionError: the sandbox may not be looked at.
        """
        if self._list_processes is not None:
            self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
            return True

        root = f"/proc/{self._first}/root"
        try:
            if os.stat(f"{root}/proc").st_dev == os.stat("/proc").st_dev:
                return False

            for name in self._in_memory:
                self._scratch.append(os.open(f"{root}{name}", os.O_PATH | os.O_DIRECTORY))

            self._proc = os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, ProcessLookupError):  # not mounted yet, or ended
            return False

        return True

    def close(self) -> None:
        """Close the handles after the sandbox has ended."""
        for handle in self._scratch:
            os.close(handle)

        if self._proc is not None:
            os.close(self._proc)

    def exceeded_limit(self) -> LimitReached | None:
        """The limit that is exceeded now, if it is time for a check; the caller has to kill the sandbox."""
        started = time.monotonic()
        if started < self._next:
            return None

        exceeded = self._exceeded_disk() or self._exceeded_machine_memory()
        if exceeded is None and self._proc is not None:
            exceeded = self._exceeded_by_processes(self._proc)

        ended = time.monotonic()
        self._next = ended + max(_INTERVAL_S, _PAUSE_FACTOR * (ended - started))
        return exceeded

    def failure_limit(self, exit_code: int, output: bytes) -> LimitReached | None:
        """The limit at which a program failed by itself, by its exit code as in a shell and the end of its output."""
        limits = self._limits
        if exit_code == 0:
            return None
        if self._most_tasks >= limits.processes or _FORK_FAILED.search(output):
            return LimitReached(Limit.PROCESSES, max(self._most_tasks, limits.processes), limits.processes)
        if exit_code == 128 + signal.SIGXFSZ or _FILE_TOO_LARGE in output:
            return LimitReached(Limit.FILE_SIZE, limits.file_bytes, limits.file_bytes)

        return None

    def _exceeded_by_processes(self, proc: int) -> LimitReached | None:
        limits = self._limits
        numbers = self._process_numbers(proc)
        if len(numbers) > limits.processes:
            return LimitReached(Limit.PROCESSES, len(numbers), limits.processes)

        usages = [_usage(proc, number) for number in numbers]
        tasks = sum(usage.threads for usage in usages)
        self._most_tasks = max(self._most_tasks, tasks)
        if tasks > limits.processes:
            return LimitReached(Limit.PROCESSES, tasks, limits.processes)

        scratch = sum(map(_scratch_bytes, self._scratch))
        memory = scratch + sum(usage.memory_bytes for usage in usages)
        if memory > limits.memory_bytes:  # pages that forks share were counted for each of them
            memory = scratch + sum(_proportional_memory(proc, usage) for usage in usages)

        if memory > limits.memory_bytes:
            return LimitReached(Limit.MEMORY, memory, limits.memory_bytes)

        return None

    def _process_numbers(self, proc: int) -> list[str]:
        """The processes of the sandbox, without its own process 1."""
        if self._list_processes is not None:
            return list(map(str, self._list_processes()))

        return [name for name in os.listdir(proc) if name.isdigit() and name != "1"]

    def _exceeded_machine_memory(self) -> LimitReached | None:
        _, available = _machine_memory()
        if available < self._least_memory:
            return LimitReached(Limit.MACHINE_MEMORY, available, self._least_memory)

        return None

    def _exceeded_disk(self) -> LimitReached | None:
        if self._disk is None or self._disk_fd is None:
            return None

        now = os.fstatvfs(self._disk_fd)
        growth = (self._disk.f_bfree - now.f_bfree) * now.f_frsize
        if growth <= self._limits.disk_bytes:
            return None

        is_nearly_full = now.f_bfree * 2 < self._disk.f_bfree
        if is_nearly_full or self._bytes_written() * 2 > growth:  # other programs may write to this disk, too
            return LimitReached(Limit.DISK, growth, self._limits.disk_bytes)

        return None

    def _bytes_written(self) -> int:
        """Bytes that the processes of the sandbox have written to disks."""
        if self._proc is None:
            return 0

        total = 0
        for number in self._process_numbers(self._proc):
            match = _BYTES_WRITTEN.search(_read_if_present(self._proc, f"{number}/io"))
            if match:
                total += int(match[1])

        return total


def _all_processes() -> int:
    """Processes and threads of the machine: outside of a user namespace those of a user are limited together."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _set_inherited_limits(first: int, limits: ResourceLimits, most_processes: int) -> None:
    values = {
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
    }
    kernel = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    if kernel >= _COUNTS_NAMESPACES:
        values[resource.RLIMIT_NPROC] = most_processes

    for name, value in values.items():
        soft, hard = resource.prlimit(first, name)
        resource.prlimit(first, name, (_lower_limit(soft, value), _lower_limit(hard, value)))

    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, first, os.getpriority(os.PRIO_PROCESS, first) + _NICE)

    with suppress(OSError):  # where memory runs out, the kernel ends these processes first
        Path(f"/proc/{first}/oom_score_adj").write_text("1000")


def _lower_limit(inherited: int, value: int) -> int:
    if inherited == resource.RLIM_INFINITY:
        return value
    return min(inherited, value)


def _machine_memory() -> Sequence[int]:
    """Bytes of memory of the machine, and those that are available."""
    text = Path("/proc/meminfo").read_text()
    total, available = map(int, re.findall(r"^Mem(?:Total|Available):\s+(\d+)", text, re.MULTILINE))
    return total * 1_024, available * 1_024


def _scratch_bytes(handle: int) -> int:
    now = os.fstatvfs(handle)
    return (now.f_blocks - now.f_bfree) * now.f_frsize + (now.f_files - now.f_ffree) * _FILE_IN_MEMORY


def _usage(proc: int, number: str) -> _Usage:
    """The usage of a process; zeros for one that has ended.

    A process whose first thread has ended reports no memory there, but its other threads do.
    """
    threads, memory = _reported_usage(proc, number)
    if memory is not None or threads < 2:
        return _Usage(threads, memory or 0, number)

    with suppress(OSError):
        for thread in os.listdir(f"/proc/self/fd/{proc}/{number}/task"):
            folder = f"{number}/task/{thread}"
            thread_count, memory = _reported_usage(proc, folder)
            if thread_count and memory is not None:
                return _Usage(threads, memory, folder)

    return _Usage(threads, 0, number)


def _reported_usage(proc: int, folder: str) -> tuple[int, int | None]:
    """Threads, and bytes of memory; None where the status reports no memory."""
    threads = 0
    memory: int | None = None

    for name, amount in _MEMORY_USED.findall(_read_if_present(proc, f"{folder}/status")):
        if name == b"Threads":
            threads = int(amount)
        else:
            memory = (memory or 0) + int(amount) * 1_024

    return threads, memory


def _proportional_memory(proc: int, usage: _Usage) -> int:
    """Bytes of memory in which a page that several processes share counts in parts."""
    try:
        parts = _PROPORTIONAL_MEMORY.findall(_read(proc, f"{usage.folder}/smaps_rollup"))
    except PermissionError:
        return usage.memory_bytes
    except OSError:  # it has ended
        return 0

    if not parts:
        return usage.memory_bytes

    return sum(map(int, parts)) * 1_024


def _read_if_present(proc: int, name: str) -> bytes:
    with suppress(OSError):  # it has ended
        return _read(proc, name)

    return b""


def _read(proc: int, name: str) -> bytes:
    with closing(os.open(name, os.O_RDONLY, dir_fd=proc)) as handle:
        return os.read(handle, 65_536)
