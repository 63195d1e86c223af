"""A function in a forked process with time limits."""

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

MEMORY: Final = 4 << 30
FILE_SIZE: Final = 64 << 20
_FAILURE: Final = 70

Send = Callable[[str], None]
"""Sends a line to the parent process."""


@dataclass(frozen=True)
class ForkResult:
    """The result of a forked process: its lines, whether it ended in time, its duration, and its wait status."""

    lines: list[str]
    in_time: bool
    cpu_s: float
    wall_s: float
    status: int


def run_in_fork(work: Callable[[Send], None], wall_s: float | None = None, cpu_s: int | None = None) -> ForkResult:
    """Call `work` in a fork of this process, and wait for its end.

    Args:
        work: The function. The process exits without clean-up when it returns or raises.
        wall_s: The time limit in seconds, after which the process and its children are killed. With this limit or
            `cpu_s`, the process leads a process group, and is limited to `MEMORY` and to files of `FILE_SIZE`.
        cpu_s: The limit of CPU seconds, which the kernel enforces.
    """
    ours, theirs = os.pipe()
    is_limited = wall_s is not None or cpu_s is not None
    start = time.monotonic()

    process = os.fork()
    if process == 0:
        os.close(ours)
        _run_child(work, theirs, cpu_s, is_limited=is_limited)

    os.close(theirs)
    status: int | None = None
    try:
        text, in_time = _read(ours, wall_s)
        if not in_time:
            _kill(process)
        _, status, usage = os.wait4(process, 0)
    finally:
        os.close(ours)
        if is_limited:
            _kill(process)
        elif status is None:
            os.kill(process, signal.SIGINT)
        if status is None:
            os.waitpid(process, 0)

    return ForkResult(
        lines=text.splitlines(),
        in_time=in_time and not os.WIFSIGNALED(status),
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=time.monotonic() - start,
        status=status,
    )


def _run_child(work: Callable[[Send], None], pipe: int, cpu_s: int | None, *, is_limited: bool) -> None:
    code = _FAILURE
    try:
        if is_limited:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
        if cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        work(lambda line: _write(pipe, line))
        code = 0
    except BaseException as error:  # noqa: BLE001 - the parent process reports any exception
        _write(pipe, f"! {error!r}")
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(code)


def _write(pipe: int, line: str) -> None:
    os.write(pipe, f"{line}\n".encode(errors="replace"))


def _read(pipe: int, wall_s: float | None) -> tuple[str, bool]:
    """Return the text up to the end of the pipe, and whether the pipe closed in time."""
    deadline = None if wall_s is None else time.monotonic() + wall_s
    data = b""

    while True:
        timeout = None if deadline is None else deadline - time.monotonic()
        if timeout is not None and timeout <= 0:
            return data.decode(errors="replace"), False

        readable, _, _ = select.select([pipe], [], [], timeout)
        if readable:
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return data.decode(errors="replace"), True
            data += chunk


def _kill(group: int) -> None:
    """Kill a process group, or the process alone if it does not lead its group yet."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
        return
    with suppress(ProcessLookupError):
        os.kill(group, signal.SIGKILL)
