"""Commands of a turn that go on in the background, in the sandbox that they share with the commands after them.

The first command starts the sandbox. If it ends in its time, the sandbox is closed with it; while a command goes on as
a job, later commands run beside it, as long as they may see and change the same files.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final

from mendgraph.nodes.execute_tools.commands.command_changes import CommandChanges, Snapshot, Unwatched, changes_beside
from mendgraph.nodes.execute_tools.commands.commands import CommandResult, Commands
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import FileChange, ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.files.deadline import ScopeOverError
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.files.workspace import Workspace
from mendgraph.nodes.workspace.processes.processes import CapturedOutput
from mendgraph.nodes.workspace.sandboxes.bubblewrap import Bubblewrap
from mendgraph.nodes.workspace.sandboxes.shared import SharedCommand, SharedSandbox

MOST_JOBS: Final = 8
LONGEST_S: Final = 3_600.0
"""Seconds until the jobs of a turn end: nobody may come back to a turn that was cancelled or waits for a person."""

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
        pattern = text.encode(errors="replace")

        def is_over() -> bool:
            outputs = (self.command.stdout, self.command.stderr)
            is_printed = bool(pattern) and any(pattern in output.head + output.tail for output in outputs)
            return is_printed or self.command.has_ended

        self.sandbox.wait(is_over, seconds, check)

    def take_output(self) -> tuple[CapturedOutput, CapturedOutput]:
        """Return what the job has printed since the last call of this method."""
        return self.sandbox.take_output(self.command)


@dataclass
class Jobs:
    """The jobs of one turn, which end after `longest_s` seconds at the latest."""

    longest_s: float = LONGEST_S
    _jobs: dict[str, Job] = field(default_factory=dict)
    _shared: SharedSandbox | None = None
    _last: Snapshot | Unwatched | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @staticmethod
    def problem(commands: Commands) -> str:
        """Return why these commands cannot go on in the background, or ""."""
        if isinstance(commands.sandbox, Bubblewrap):
            return ""

        return (
            f"No command can run in the background in the sandbox {quoted(commands.sandbox.name)}, only in bubblewrap:"
            " install your system's package of that name, or let the command end in its time."
        )

    def find(self, name: str) -> Job | ToolError:
        """Return the job with this name, also one that has ended."""
        job = self._jobs.get(name)
        if job is not None:
            return job

        running = [job.name for job in self._running()]
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
            has_room = len(self._running()) < MOST_JOBS
            if background and not has_room:
                message = f"{MOST_JOBS} jobs are running: end one by job_kill before the next one."
                return ToolError(code=ToolErrorCode.RATE_LIMITED, message=message)

            with ExitStack() as ending:
                ending.callback(self.close_idle)
                start = self._start(commands, argv, cwd, started + seconds)
                if isinstance(start, ToolError):
                    return start

                shared, command = start
                ending.callback(shared.kill, command)
                if not background:
                    remaining = started + seconds - monotonic()
                    shared.wait(lambda: command.has_ended, remaining, commands.scope.check)

                timed_out = not command.has_ended
                if has_room and (timed_out or (background and command.start_error is None)):
                    ending.pop_all()
                    return self._add(argv[0], step, command, shared)

                shared.kill(command, commands.rules.grace_s)

            result = _result(command, shared, seconds, monotonic() - started)
            return replace(result, timed_out=timed_out) if isinstance(result, CommandResult) else result

    def _add(self, program: str, step: int, command: SharedCommand, shared: SharedSandbox) -> Job:
        name = f"{step}.{len(self._jobs) + 1}"
        self._jobs[name] = Job(name, program, command, shared)
        return self._jobs[name]

    def _start(
        self, commands: Commands, argv: Sequence[str], cwd: str, deadline: float
    ) -> tuple[SharedSandbox, SharedCommand] | ToolError:
        """Start a command in the sandbox, and wait until it runs."""
        program = commands.resolve(argv, cwd)
        if isinstance(program, ToolError):
            return program

        try:
            sandbox = self._sandbox(commands, cwd, deadline)
        except ScopeOverError:
            raise
        except OSError as error:
            return os_failure(error, "run", argv[0])

        if isinstance(sandbox, ToolError):
            return sandbox

        shared, folder = sandbox
        with commands.scope.effect():
            line = commands.started_argv(program, argv, cwd)
            command = shared.start(line, folder, commands.env_of(line, folder), commands.rules.max_output_bytes)

        if isinstance(command, ToolError):
            return command

        shared.wait_for_start(command)
        return shared, command

    def _running(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.is_running]

    def kill(self, job: Job, grace_s: float) -> None:
        """End a job, and the sandbox with the last one."""
        with self._lock:
            job.sandbox.kill(job.command, grace_s)
            self.close_idle()

    def end(self) -> None:
        """End all jobs, and wait for their end."""
        shared = self._shared
        if shared is not None:
            shared.close()  # a command that holds the lock ends by this

        with self._lock:
            if self._shared is shared:
                self._shared = None

    @property
    def have_ended(self) -> bool:
        """Whether no process of a job is left."""
        return self._shared is None

    def close_idle(self) -> None:
        """Close the sandbox if all jobs have ended: what they have left in it ends, too."""
        if not self._running():
            self.end()

    # --- What they change

    @property
    def are_settled(self) -> bool:
        """Whether `take_changes` has returned all that they have changed."""
        return self._last is None

    def watch_since(self, snapshot: Snapshot | Unwatched) -> None:
        """Begin to look for changes: those since this snapshot."""
        with self._lock:
            if self._last is None:
                self._last = snapshot

    def take_changes(self, workspace: Workspace, edits: Iterable[FileChange] = ()) -> CommandChanges | Unwatched:
        """Return what has changed since the last call, by whomever, without these `edits` of the run since then."""
        with self._lock:
            if self._last is None:
                return CommandChanges()

            self.close_idle()
            is_last = self.have_ended
            compared = changes_beside(workspace, self._last, edits)

            if is_last:
                self._last = None
            elif not isinstance(compared, Unwatched):
                self._last = compared.after

        if isinstance(compared, Unwatched):
            return compared

        return compared.changes

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
                commands.scope.check()
                resources = stack.pop_all()
                self._shared = SharedSandbox.opened(commands.sandbox, view, commands.env, resources, self.longest_s)
            elif self._shared.view.names != view.names:
                message = (
                    "The files that programs may see or change are not those of the running jobs any more: end the jobs"
                    " by job_kill, then run this command."
                )
                return ToolError(code=ToolErrorCode.CONFLICT, message=message)

            return self._shared, view.cwd


def _result(command: SharedCommand, shared: SharedSandbox, limit_s: float, seconds: float) -> CommandResult | ToolError:
    if command.start_error is not None:
        return os_failure(command.start_error, "run", command.program)

    if command.exit_code is None and command.limit is None:
        problem = shared.problem.message if shared.problem else f"It was ended: {command.why}."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=problem)

    code = 137 if command.exit_code is None else command.exit_code
    limit = command.limit
    if limit is None and shared.watch is not None:
        ends = b"\n".join(output.head + output.tail for output in (command.stdout, command.stderr))
        limit = shared.watch.failure_limit(code, ends)

    return CommandResult(code, command.stdout, command.stderr, seconds, limit_s, limit=limit)
