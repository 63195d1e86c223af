"""Programs below a supervisor, for sandboxes without namespaces."""

import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.handles import closing
from mendgraph.nodes.workspace.processes import processes
from mendgraph.nodes.workspace.processes.resource_limits import ResourceLimits, Watch
from mendgraph.nodes.workspace.sandboxes import launcher
from mendgraph.nodes.workspace.sandboxes.private_folder import PrivateNames
from mendgraph.nodes.workspace.sandboxes.sandbox import SandboxedProcess, not_limited
from mendgraph.nodes.workspace.sandboxes.seccomp import seccomp_filter

_START_S: Final = 10.0
_END_S: Final = 5.0
"""Seconds that the supervisor has to end all processes, before `kill` does it."""


def supervision_problem() -> str | None:
    """Return why no program can be supervised on this machine; None if one can."""
    if sys.platform != "linux":
        return "programs are supervised on Linux only"
    if seccomp_filter() is None:
        return f"there is no seccomp filter for this machine's architecture, {os.uname().machine}"

    return None


class SupervisedProcess(SandboxedProcess):
    """A program below the supervisor `process`, which executes `launcher`.

    The supervisor reads its configuration and the start signal from `control`, and kills the program when `control` is
    closed. Its outputs may have private `names`.
    """

    def __init__(self, process: subprocess.Popen[bytes], control: int, status_fd: int, names: PrivateNames) -> None:
        super().__init__(process, status_fd)
        self._names = names
        self._control: int | None = control

    def prepare(self, config: dict[str, Any], limits: ResourceLimits, disk_fd: int | None) -> ToolError | None:
        """Send the configuration and set the limits of the program, which waits; UNAVAILABLE if that fails."""
        data = marshal.dumps(config)
        self._write(b"%d\n" % len(data) + data)

        problem = self.wait_for_first(_START_S)
        if problem is not None or self.first is None:
            return problem

        try:
            self.watch = Watch(self.first, limits, (), disk_fd, partial(launcher.descendants, self.process.pid))
            self.watch.try_open()
        except ProcessLookupError:  # it has ended; its error output says why
            return None
        except OSError as error:
            return not_limited(str(error))

        return None

    def start(self) -> None:
        """Start the program."""
        self._write(b"1")

    def kill(self) -> None:
        """Kill all descendants of the supervisor, and wait for their end."""
        if self._control is not None:
            os.close(self._control)
            self._control = None

        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)

        while self.process.poll() is None:  # the supervisor was stopped, or is too slow
            descendants = launcher.descendants(self.process.pid)
            for number in descendants:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)

            if not descendants:
                processes.kill_group(self.process)
                self.process.wait()

    def public_output(self, data: bytes) -> bytes:
        """Return the output with public names in place of private ones."""
        return self._names.public(data)

    def _write(self, data: bytes) -> None:
        if self._control is None:
            return

        remaining = memoryview(data)
        with suppress(BrokenPipeError):  # it has ended; its error output says why
            while remaining:
                remaining = remaining[os.write(self._control, remaining) :]


@contextmanager
def supervised(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    *,
    names: PrivateNames,
    families: Sequence[int],
    limits: ResourceLimits,
    disk_fd: int | None,
    landlock: Mapping[str, Any] | None = None,
) -> Iterator[SupervisedProcess | ToolError]:
    """Start `command` below a supervisor; at the end of the block all its processes are dead.

    Its arguments and variables have the private `names`. Its sockets may be of these `families`. `landlock` is the
    ruleset that `launcher` describes.
    """
    control_end, control = os.pipe()
    reader, status_end = os.pipe()
    os.set_blocking(reader, False)

    with closing(reader):
        with closing(control_end), closing(status_end):
            arguments = ["-I", "-S", str(Path(launcher.__file__)), str(control_end), str(status_end), "--"]
            process = processes.start_process(
                [sys.executable, *arguments, *map(names.translate, command)],
                cwd="/",
                env={name: names.translate(value) for name, value in env.items()},
                pass_fds=(control_end, status_end),
            )

        if isinstance(process, ToolError):
            os.close(control)
            yield process
            return

        running = SupervisedProcess(process, control, reader, names)
        try:
            code = seccomp_filter(families, unreachable=(process.pid, os.getpid()))
            config = {"cwd": cwd, "filter": code or b"", "landlock": landlock}
            problem = running.prepare(config, limits, disk_fd)
            if problem is None:
                running.start()

            yield problem or running
        finally:
            running.kill()
            running.close()
