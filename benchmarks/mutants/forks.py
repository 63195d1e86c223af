"""A function in a process of its own, which is ended when it takes too long."""

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
_FAILED: Final = 70

Say = Callable[[str], None]
"""Writes a line to the process that has forked this one."""


@dataclass(frozen=True)
class Ending:
    """How a forked process ended: the lines that it said, whether in time, and how many seconds it took."""

    said: list[str]
    in_time: bool
    cpu_s: float
    wall_s: float
    status: int


def forked(work: Callable[[Say], None], wall_s: float | None = None, cpu_s: int | None = None) -> Ending:
    """Call `work` in a fork of this process, and wait for its end.

    Args:
        work: what is called; the process ends when it returns or raises, without clean-up.
        wall_s: seconds after which the process is killed, with all that it started. With this or `cpu_s` it leads a
            process group of its own, and may not use more than `MEMORY` nor write more than `FILE_SIZE`.
        cpu_s: seconds of CPU after which the kernel ends it.
    """
    ours, theirs = os.pipe()
    bounded = wall_s is not None or cpu_s is not None
    started = time.monotonic()
    process = os.fork()
    if process == 0:
        os.close(ours)
        _be_child(work, theirs, cpu_s, bounded=bounded)
    os.close(theirs)
    status: int | None = None
    try:
        text, in_time = _read(ours, wall_s)
        if not in_time:
            _kill(process)
        _, status, usage = os.wait4(process, 0)
    finally:
        os.close(ours)
        if bounded:
            _kill(process)
        elif status is None:
            os.kill(process, signal.SIGINT)
        if status is None:
            os.waitpid(process, 0)
    in_time = in_time and not os.WIFSIGNALED(status)
    return Ending(text.splitlines(), in_time, usage.ru_utime + usage.ru_stime, time.monotonic() - started, status)


def _be_child(work: Callable[[Say], None], pipe: int, cpu_s: int | None, *, bounded: bool) -> None:
    code = _FAILED
    try:
        if bounded:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
        if cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        work(lambda line: _write(pipe, line))
        code = 0
    except BaseException as error:  # noqa: BLE001 -- the end of a process: whatever it was, it is said
        _write(pipe, f"! {error!r}")
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(code)


def _write(pipe: int, line: str) -> None:
    os.write(pipe, f"{line}\n".encode(errors="replace"))


def _read(pipe: int, wall_s: float | None) -> tuple[str, bool]:
    """What is said until the pipe's other end is closed, and whether that was in time."""
    ends = None if wall_s is None else time.monotonic() + wall_s
    pieces: list[bytes] = []
    while True:
        left = None if ends is None else ends - time.monotonic()
        if left is not None and left <= 0:
            return b"".join(pieces).decode(errors="replace"), False
        if select.select([pipe], [], [], left)[0]:
            piece = os.read(pipe, 1 << 16)
            if not piece:
                return b"".join(pieces).decode(errors="replace"), True
            pieces.append(piece)


def _kill(group: int) -> None:
    """End the process and what it left behind; it may not yet lead its group, or be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
        return
    with suppress(ProcessLookupError):
        os.kill(group, signal.SIGKILL)
