"""Programs below a supervisor, for sandboxes without namespaces: how they start, and how all of them end."""

import marshal
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.processes import launcher, processes
from mendgraph.nodes.execute_tools.processes.private_folder import PrivateNames, RestoredOutput
from mendgraph.nodes.execute_tools.processes.sandbox import StatusReports, not_limited
from mendgraph.nodes.execute_tools.processes.seccomp import seccomp_filter
from mendgraph.nodes.records import ToolError

_START_S: Final = 10.0
_PATIENCE_S: Final = 5.0
"""How long the supervisor may take to end everything, before that is done from here."""


def supervision_problem() -> str | None:
    """Why no program can be supervised on this machine; None where one can."""
    if sys.platform != "linux":
        return "programs are supervised on Linux only"
    if seccomp_filter() is None:
        return f"there is no seccomp filter for this machine's architecture, {os.uname().machine}"

    return None


class SupervisedProcess:
    """A program and all that it starts, below a supervisor.

    `process` is the supervisor; its exit code is the program's, or 128 and the signal. `watch`, once its limits are
    set, says which of them is reached. Its outputs show no private `names`.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], control: int, reports: StatusReports, names: PrivateNames
    ) -> None:
        self.process = process
        self._names = names
        self._outputs: list[RestoredOutput] = []
        self._errors: processes.Taker | None = None
        self.watch: processes.Watch | None = None
        self._control: int | None = control
        self._reports = reports
        self._first: int | None = None

    def prepare(self, config: dict[str, Any]) -> ToolError | None:
        """Hand over the configuration, and wait until the program could start."""
        with suppress(BrokenPipeError):  # it has ended already, and says why
            data = marshal.dumps(config)
            self._write(b"%d\n" % len(data) + data)

        deadline = time.monotonic() + _START_S
        waiting = select.poll()
        waiting.register(self._reports.handle, select.POLLIN)

        while self._reports.number("child-pid") is None:
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1_000):
                return not_limited(f"the supervisor reported no process within {_START_S:g} s")

            chunk = os.read(self._reports.handle, 4_096)
            if not chunk:
                return None  # it has ended, and says why

            self._reports.take(chunk)

        self._first = self._reports.number("child-pid")
        return None

    def limit(self, limits: processes.ResourceLimits, disk_fd: int | None) -> ToolError | None:
        """Bound what the program may use; UNAVAILABLE where that fails, and it must not run."""
        if self._first is None:
            return None

        try:
            self.watch = processes.Watch(self._first, limits, (), disk_fd, self.process.pid)
            self.watch.opens()
        except ProcessLookupError:  # it has ended, and says why
            return None
        except OSError as error:
            return not_limited(str(error))

        return None

    def begin(self) -> None:
        """Start the program."""
        with suppress(BrokenPipeError):
            self._write(b"1")

    def takers(self, stdout: processes.Taker, stderr: processes.Taker) -> dict[int, processes.Taker]:
        """The handles to read while the program runs, for `processes.read_until`."""
        out, err = processes.outputs(self.process)
        self._outputs = [self._names.restoring(stdout), self._names.restoring(stderr)]
        self._errors = stderr

        return {out: self._outputs[0].take, err: self._outputs[1].take, self._reports.handle: self._reports.take}

    def has_run(self) -> bool:
        """Whether the program itself was started, so that the exit code is its own."""
        self._reports.read_rest()
        return self._reports.number("exit-code") is not None

    def terminate(self) -> None:
        """Ask the program and its process group to end."""
        if self._first is not None and self.process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._first, signal.SIGTERM)

    def kill(self) -> None:
        """Kill all that descends from the supervisor, and wait until it is gone."""
        if self._control is not None:
            os.close(self._control)
            self._control = None

        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_PATIENCE_S)

        while self.process.poll() is None:  # it was stopped, or cannot follow: no process below it is asked for help
            below = launcher.descendants(self.process.pid)
            for number in below:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)

            if not below:
                processes.kill_group(self.process)
                self.process.wait()

        for output in self._outputs:
            output.finish()

    def add_error_line(self, line: str) -> None:
        """Say something at the end of the error output, once all that the program has printed is read."""
        if self._errors is not None:
            self._errors(f"{line}\n".encode(errors="replace"))

    def close(self) -> None:
        """Close our handles."""
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

        if self.watch is not None:
            self.watch.close()

    def _write(self, data: bytes) -> None:
        if self._control is not None:
            remaining = memoryview(data)
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
    limits: processes.ResourceLimits,
    disk_fd: int | None,
    landlock: Mapping[str, Any] | None = None,
) -> Iterator[SupervisedProcess | ToolError]:
    """Start `command` below a supervisor; when the block ends, nothing of it is alive.

    It is handed the private `names` in its arguments and variables.
    Sockets may be of these `families`. `landlock` is the ruleset that `launcher` describes.
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

        running = SupervisedProcess(process, control, StatusReports(reader), names)
        try:
            code = seccomp_filter(families, unreachable=(process.pid, os.getpid()))
            config = {"cwd": cwd, "filter": code or b"", "landlock": landlock}
            problem = running.prepare(config) or running.limit(limits, disk_fd)

            if problem is None:
                running.begin()

            yield problem or running
        finally:
            running.kill()
            running.close()
