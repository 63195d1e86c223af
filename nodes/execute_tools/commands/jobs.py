"""Commands of a turn that go on in the background, in the sandbox that they share with the commands after them.

The first command starts the sandbox. If it ends in its time, the sandbox is closed with it; while a command goes on as
a job, later commands run beside it, as long as they may see and change the same files.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from mendgraph.nodes.execute_tools.commands.commands import CommandResult, Commands
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.files.deadline import ScopeOverError
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.processes.processes import CapturedOutput
from mendgraph.nodes.workspace.sandboxes.bubblewrap import Bubblewrap
from mendgraph.nodes.workspace.sandboxes.shared import SharedCommand, SharedSandbox

MOST_JOBS: Final = 8

HOW_JOBS_END: Final = "Jobs end with the turn, before its changes are checked, and with the process of the run"


@dataclass
class Job:
    """A command in the background."""

    name: str
    program: str
    command: SharedCommand
    sandbox: SharedSandbox

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return not self.command.has_ended

    def wait(self, seconds: float, text: str, check: Callable[[], None]) -> None:
        """Wait until the job has ended, or has printed `text` since the last `take_output`, if that is not empty."""
        wanted = text.encode()

        def is_there() -> bool:
            outputs = (self.command.stdout, self.command.stderr)
            return self.command.has_ended or bool(wanted and any(wanted in out.head + out.tail for out in outputs))

        self.sandbox.wait(is_there, seconds, check)

    def take_output(self) -> tuple[CapturedOutput, CapturedOutput]:
        """Return what the job has printed since the last call of this method."""
        return self.sandbox.take_output(self.command)


@dataclass
class Jobs:
    """The jobs of one turn.

    Attributes:
        are_watched: whether the snapshots of the workspace find what they change.
        are_settled: whether all that they have changed is recorded.
    """

    are_watched: bool = True
    are_settled: bool = True
    _jobs: dict[str, Job] = field(default_factory=dict)
    _shared: SharedSandbox | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @staticmethod
    def problem(commands: Commands) -> str:
        """Return why these commands cannot go on in the background, or ""."""
        if isinstance(commands.sandbox, Bubblewrap):
            return ""

        return (
            f"No command goes on in the background in the sandbox {quoted(commands.sandbox.name)}, only in bubblewrap:"
            " install your system's package of that name, or let the command end in its time."
        )

    def find(self, name: str) -> Job | ToolError:
        """Return the job with this name, also one that has ended."""
        job = self._jobs.get(name)
        if job is not None:
            return job

        running = [job.name for job in self._jobs.values() if job.is_running]
        listed = f"running are {', '.join(running)}" if running else "none is running"
        message = f"There is no job {quoted(name)}: {listed}. {HOW_JOBS_END}, and are not started again."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=tuple(running))

    def run(
        self, commands: Commands, argv: Sequence[str], cwd: str, seconds: float, step: int, *, background: bool
    ) -> CommandResult | Job | ToolError:
        """Run a command for at most `seconds`; one that takes longer becomes a job, one in the `background` at once.

        The name of a job begins with the number of the thread's `step`, so that no other job of the thread has it.
        Raises ScopeOverError: the call is over; the command is dead.
        """
        with self._lock:
            started = monotonic()
            seconds = min(seconds, commands.rules.soft_timeout_s)
            running = [job for job in self._jobs.values() if job.is_running]
            if len(running) >= MOST_JOBS:
                message = f"{MOST_JOBS} jobs are running: end one by job_kill before the next one."
                return ToolError(code=ToolErrorCode.RATE_LIMITED, message=message)

            program = commands.resolve(argv)
            if isinstance(program, ToolError):
                return program

            try:
                sandbox = self._sandbox(commands, cwd, started + seconds)
            except ScopeOverError:
                raise
            except OSError as error:
                return os_failure(error, "run", argv[0])

            if isinstance(sandbox, ToolError):
                return sandbox

            shared, folder = sandbox
            with commands.scope.effect():
                command = shared.start([program, *argv[1:]], folder, commands.env, commands.rules.max_output_bytes)

            if isinstance(command, ToolError):
                return command

            try:
                limit = 0.0 if background else started + seconds - monotonic()
                shared.wait(lambda: command.has_ended, limit, commands.check_scope)
            except BaseException:
                shared.kill(command)
                self.close_idle()
                raise

            if not command.has_ended:
                name = f"{step}.{len(self._jobs) + 1}"
                self.are_settled = False
                self._jobs[name] = Job(name, argv[0], command, shared)
                return self._jobs[name]

            self.close_idle()
            return _result(command, shared, seconds, monotonic() - started)

    def kill(self, job: Job, grace_s: float) -> None:
        """End a job, and the sandbox with the last one."""
        with self._lock:
            job.sandbox.kill(job.command, grace_s)
            self.close_idle()

    def end(self) -> None:
        """End all jobs, and wait for their end."""
        with self._lock:
            if self._shared is not None:
                self._shared.close()
                self._shared = None

    @property
    def have_ended(self) -> bool:
        """Whether no process of a job is left."""
        return self._shared is None

    def close_idle(self) -> None:
        """Close the sandbox if all jobs have ended: what they have left in it ends, too."""
        if not any(job.is_running for job in self._jobs.values()):
            self.end()

    def _sandbox(self, commands: Commands, cwd: str, deadline: float) -> tuple[SharedSandbox, str] | ToolError:
        """Return the sandbox for the next command, and the name of its folder."""
        with ExitStack() as stack:
            root = stack.enter_context(closing(open_root(commands.root)))
            view = commands.open_view(root, cwd, deadline, stack)
            if isinstance(view, ToolError):
                return view

            if self._shared is not None and self._shared.is_over:
                self.end()

            if self._shared is None:
                commands.check_scope()
                self._shared = SharedSandbox(commands.sandbox, view, commands.env, stack.pop_all())
            elif self._shared.view.names != view.names:
                message = (
                    "The files that programs may see or change are not those of the running jobs any more: end the jobs"
                    " by job_kill, then run this command."
                )
                return ToolError(code=ToolErrorCode.CONFLICT, message=message)

            return self._shared, view.cwd


def _result(command: SharedCommand, shared: SharedSandbox, limit_s: float, seconds: float) -> CommandResult | ToolError:
    if command.exit_code is None and command.limit is None:
        problem = shared.problem.message if shared.problem else f"It was ended: {command.why}."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=problem)

    code = 137 if command.exit_code is None else command.exit_code
    limit = command.limit
    if limit is None and shared.watch is not None:
        ends = b"\n".join(output.head + output.tail for output in (command.stdout, command.stderr))
        limit = shared.watch.failure_limit(code, ends)

    return CommandResult(code, command.stdout, command.stderr, seconds, limit_s, limit=limit)
