"""Enforces what all processes of one sandbox may use together.

Limits that a process inherits are set on the sandbox's first process before the program starts: the size of a file,
open files, no core dumps, and the number of processes, which Linux 5.14 and newer count for each sandbox by itself,
though never for root. What they use together is bounded by a control group where we may make one, else by a watcher:
it adds up the processes that the sandbox's own `/proc` shows and what lies in its file systems in memory, every 50 ms,
so that a burst goes beyond a limit by what is taken in that time. A fork bomb of root's made 250 to 500 processes
before it was ended, and on a machine with other work up to 10,000; an ordinary user's makes none beyond the limit.
Source: getrlimit(2), proc(5); measured with Linux 6.18 and 6.1.
"""

import os
import re
import resource
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodes.execute_tools.environment.control_groups import ControlGroup
from nodes.execute_tools.environment.handles import closing
from nodes.execute_tools.environment.resource_limits import Limit, LimitReached, ResourceLimits

_INTERVAL_S: Final = 0.05
_SHARE: Final = 4
"""After a look that took long, so many times as long passes before the next: it costs a fifth of a core at most."""
_OWN_PROCESSES: Final = 1
"""Bubblewrap's own in the sandbox, which is its process 1."""
_FILE_IN_MEMORY: Final = 1_024
"""Bytes of kernel memory for each file of a file system in memory. Source: slabinfo(5), 720 and 192 for inode, name."""
_LEAST_LEFT: Final = 32
"""One part in so many of the machine's memory has to stay available: what no list of processes shows uses it, too."""
_NICE: Final = 5
"""The sandbox yields to whoever watches it, though not so much that a busy machine lets its time run out."""

_USED = re.compile(rb"^(Threads|RssAnon|RssShmem|VmSwap|VmPTE):\s+(\d+)", re.MULTILINE)
_SHARED_OUT = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)
_WRITTEN = re.compile(rb"^write_bytes: (\d+)", re.MULTILINE)
_NO_FORK = re.compile(
    rb"[Cc]annot fork|fork: .*temporarily unavailable|BlockingIOError: \[Errno 11\]|start new thread|native thread"
    rb"|new OS thread"
)
"""What common programs say when no further process can be started; of the others, C's words for the error."""
_TOO_LARGE, _TOO_MANY_OPEN, _FULL = b"File too large", b"Too many open files", b"No space left on device"


class Watch:
    """Enforces the limits of one sandbox, whose first process is `first`, until it is closed.

    To be made while that process waits, before the program starts. `in_memory` are names of the file systems in memory
    that the program may write to, as it sees them. `disk_fd` is a handle on the disk that the program
    may write to; None where there is none.
    """

    def __init__(
        self, first: int, limits: ResourceLimits, in_memory: Sequence[str], disk_fd: int | None = None
    ) -> None:
        self._first, self._limits, self._in_memory, self._disk_fd = first, limits, in_memory, disk_fd
        self._most, self._next = 0, time.monotonic() + _INTERVAL_S
        self._proc: int | None = None
        self._scratch: list[int] = []
        self._disk = None if disk_fd is None else os.fstatvfs(disk_fd)
        total, available = _machine_memory()
        self._floor = min(total // _LEAST_LEFT, available // 2)
        _inherit(first, limits)
        self._group = ControlGroup.made_for(
            first, processes=limits.processes + _OWN_PROCESSES, memory_bytes=limits.memory_bytes
        )

    def opens(self) -> bool:
        """Whether all is mounted in the sandbox, so that it can be looked at; only then may the program start.

        Raises:
            PermissionError: it may not be looked at.
        """
        root = f"/proc/{self._first}/root"
        try:
            if os.stat(f"{root}/proc").st_dev == os.stat("/proc").st_dev:
                return False
            self._scratch += (os.open(f"{root}{name}", os.O_PATH | os.O_DIRECTORY) for name in self._in_memory)
            self._proc = os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, ProcessLookupError):  # not yet, or not any more
            return False
        return True

    def close(self) -> None:
        """Close the handles. The sandbox has to be gone."""
        for handle in (*self._scratch, *(() if self._proc is None else (self._proc,))):
            os.close(handle)
        if self._group is not None:
            self._group.remove()

    def look(self) -> LimitReached | None:
        """Which limit is exceeded right now, if it is time to look again; whoever asks has to kill the sandbox."""
        started = time.monotonic()
        if started < self._next:
            return None
        found = self._disk_excess() or self._machine_excess()
        if found is None and self._group is None and self._proc is not None:
            found = self._excess(self._proc)
        ended = time.monotonic()
        self._next = ended + max(_INTERVAL_S, _SHARE * (ended - started))
        return found

    def met(self, exit_code: int, said: bytes) -> LimitReached | None:
        """The limit at which a program failed by itself, with this exit code as a shell says it, and these words."""
        limits = self._limits
        if exit_code == 0:
            return None
        if self._group is not None and self._group.events("memory", "oom_kill"):
            return LimitReached(Limit.MEMORY, self._group.most_memory(limits.memory_bytes), limits.memory_bytes)
        refused = self._most >= limits.processes or (self._group is not None and self._group.events("pids", "max"))
        if refused or _NO_FORK.search(said):
            return LimitReached(Limit.PROCESSES, max(self._most, limits.processes), limits.processes)
        if exit_code == 128 + signal.SIGXFSZ or _TOO_LARGE in said:
            return LimitReached(Limit.FILE_SIZE, limits.file_bytes, limits.file_bytes)
        if _TOO_MANY_OPEN in said:
            return LimitReached(Limit.OPEN_FILES, limits.open_files, limits.open_files)
        if _FULL in said and any(os.fstatvfs(each).f_bfree * 16 < os.fstatvfs(each).f_blocks for each in self._scratch):
            return LimitReached(Limit.SCRATCH, limits.scratch_bytes, limits.scratch_bytes)
        return None

    def _excess(self, proc: int) -> LimitReached | None:
        limits = self._limits
        numbers = [name for name in os.listdir(proc) if name.isdigit() and name != "1"]
        if len(numbers) > limits.processes:
            return LimitReached(Limit.PROCESSES, len(numbers), limits.processes)
        scratch = sum(map(_scratch_bytes, self._scratch))
        used = [_usage(proc, number) for number in numbers]
        tasks = sum(threads for threads, _, _ in used)
        self._most = max(self._most, tasks)
        if tasks > limits.processes:
            return LimitReached(Limit.PROCESSES, tasks, limits.processes)
        memory = scratch + sum(size for _, size, _ in used)
        if memory > limits.memory_bytes:  # pages that forks share are counted for each of them, so look closer
            memory = scratch + sum(_share(proc, place, size) for _, size, place in used)
        return LimitReached(Limit.MEMORY, memory, limits.memory_bytes) if memory > limits.memory_bytes else None

    def _disk_excess(self) -> LimitReached | None:
        if self._disk is None or self._disk_fd is None:
            return None
        limits, before, now = self._limits, self._disk, os.fstatvfs(self._disk_fd)
        grown, files = (before.f_bfree - now.f_bfree) * now.f_frsize, before.f_ffree - now.f_ffree
        if grown > limits.disk_bytes and (self._written() * 2 > grown or now.f_bfree * 2 < before.f_bfree):
            return LimitReached(Limit.DISK, grown, limits.disk_bytes)
        return LimitReached(Limit.FILES, files, limits.files) if files > limits.files else None

    def _written(self) -> int:
        """Bytes that the sandbox's processes have written to disks; others may be at work on this one."""
        proc = self._proc
        names = [] if proc is None else [each for each in os.listdir(proc) if each.isdigit()]
        return sum(int(each[1]) for name in names if proc and (each := _WRITTEN.search(_content(proc, f"{name}/io"))))

    def _machine_excess(self) -> LimitReached | None:
        left = _machine_memory()[1]
        return LimitReached(Limit.MACHINE_MEMORY, left, self._floor) if left < self._floor else None


def _inherit(first: int, limits: ResourceLimits) -> None:
    """Set what the sandbox's processes inherit."""
    values = {resource.RLIMIT_FSIZE: limits.file_bytes, resource.RLIMIT_NOFILE: limits.open_files}
    if _counts_for_each_sandbox():
        values[resource.RLIMIT_NPROC] = limits.processes + _OWN_PROCESSES
    for name, value in {**values, resource.RLIMIT_CORE: 0}.items():
        soft, hard = resource.prlimit(first, name)
        resource.prlimit(first, name, (_smaller(soft, value), _smaller(hard, value)))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, first, _NICE)
    with suppress(OSError):  # where memory runs out nevertheless, the kernel takes these processes first
        Path(f"/proc/{first}/oom_score_adj").write_text("1000")


def _counts_for_each_sandbox() -> bool:
    """Whether RLIMIT_NPROC counts in each user namespace; an older kernel counts all processes of the user."""
    release = [int(each) for each in re.findall(r"\d+", os.uname().release)[:2]]
    return release >= [5, 14]


def _smaller(old: int, new: int) -> int:
    return new if old == resource.RLIM_INFINITY else min(old, new)


def _machine_memory() -> Sequence[int]:
    """Bytes of memory: all of it, and what is available."""
    text = Path("/proc/meminfo").read_text()
    return [int(each) * 1_024 for each in re.findall(r"^Mem(?:Total|Available):\s+(\d+)", text, re.MULTILINE)]


def _scratch_bytes(handle: int) -> int:
    now = os.fstatvfs(handle)
    return (now.f_blocks - now.f_bfree) * now.f_frsize + (now.f_files - now.f_ffree) * _FILE_IN_MEMORY


def _usage(proc: int, number: str) -> tuple[int, int, str]:
    """Threads of a process, bytes of its memory, and the place that tells them; nothing of one that is gone.

    A process whose first thread has ended tells of no memory there, but its other threads do.
    """
    text = _content(proc, f"{number}/status")
    found = {name: int(value) for name, value in _USED.findall(text)}
    threads = found.pop(b"Threads", 0)
    if found or threads < 2:
        return threads, sum(found.values()) * 1_024, number
    with suppress(OSError):
        for thread in os.listdir(f"/proc/self/fd/{proc}/{number}/task"):
            place = f"{number}/task/{thread}"
            found = {name: int(value) for name, value in _USED.findall(_content(proc, f"{place}/status"))}
            if found.pop(b"Threads", 0) and found:
                return threads, sum(found.values()) * 1_024, place
    return threads, 0, number


def _share(proc: int, place: str, otherwise: int) -> int:
    """Bytes of memory, where what is shared is split among those who share it; `otherwise` where that is not told."""
    try:
        parts = _SHARED_OUT.findall(_read(proc, f"{place}/smaps_rollup"))
    except PermissionError:
        return otherwise
    except OSError:  # it has ended
        return 0
    return sum(map(int, parts)) * 1_024 if parts else otherwise


def _content(proc: int, name: str) -> bytes:
    with suppress(OSError):  # it has ended
        return _read(proc, name)
    return b""


def _read(proc: int, name: str) -> bytes:
    with closing(os.open(name, os.O_RDONLY, dir_fd=proc)) as handle:
        return os.read(handle, 65_536)
