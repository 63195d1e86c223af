"""Tools that run an allowed program, a command line, a job, or the checks, in a sandbox."""

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from pydantic import Field

from mendgraph.nodes.execute_tools.commands.command_changes import CommandChanges, Unwatched, record_changes, watched
from mendgraph.nodes.execute_tools.commands.command_outputs import last_words, output_text
from mendgraph.nodes.execute_tools.commands.commands import CommandResult
from mendgraph.nodes.execute_tools.commands.protected_names import UNTRUSTED
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.saving import file_changes
from mendgraph.nodes.language.command_lines import SHELL, shell_argv
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult
from mendgraph.nodes.workspace.files.deadline import CancellationScope, monotonic_s
from mendgraph.nodes.workspace.files.text_files import escaped_name
from mendgraph.nodes.workspace.processes.processes import CapturedOutput
from mendgraph.nodes.workspace.store.database import StoreError

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.commands.jobs import Job, Jobs

COMMANDS_ARE_OFF = "Commands are off in this run: name the programs in `allowed_programs` (`--allow-program`)."
JOBS_ARE_OFF = "Commands cannot run in the background in this run: set `jobs` (`--jobs`)."
_MOST_CHANGED = 20  # changed files in a result


class RunCommandArguments(ToolArguments):
    """Which program to run, with which arguments, where, and for how long at most."""

    argv: list[str] = Field(
        min_length=1, max_length=1_000, description='The program and its arguments, such as ["make", "test"]; no shell.'
    )
    cwd: str = Field(default=".", description="Directory to run it in.")
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="Seconds it may take.")
    background: bool = Field(default=False, description="Go on as a job.")


@tool(effect=Effect.EXECUTE, path_fields=("cwd",), self_timed=True)
def run_command(context: ToolContext, arguments: RunCommandArguments) -> ToolAnswer:
    """Run an allowed program in a sandbox without network, where `.git` is read-only.

    A failing exit code is a result. It ends its program by itself, so that nothing has to be left behind. The program
    changes names in the workspace only. But a file of the workspace that has another name outside, a hard link, is the
    same file there: uv and pnpm link their caches into a project in that way. Which files of the workspace it changed
    is reported and recorded; the thread does not know what they hold now, so that they have to be read again.
    """
    return _run(context, arguments.argv, arguments)


class RunShellArguments(ToolArguments):
    """Which command line to run, where, and for how long at most."""

    command: str = Field(min_length=1, max_length=100_000, description="Such as `pytest -q tests/test_a.py`.")
    cwd: str = Field(default=".", description="Directory to run it in.")
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="Seconds it may take.")
    background: bool = Field(default=False, description="Go on as a job.")


@tool(effect=Effect.EXECUTE, path_fields=("cwd",), self_timed=True)
def run_shell(context: ToolContext, arguments: RunShellArguments) -> ToolAnswer:
    """Run a command line of bash in a sandbox without network, where `.git` is read-only.

    One simple command of literal words is run without a shell, as run_command does, so that what was allowed is what
    runs. Anything else is an argument of the program `bash`, which has to be allowed.
    """
    argv = shell_argv(arguments.command)
    output = _run(context, argv, arguments)
    error = output if isinstance(output, ToolError) else output.result.error

    if error is not None and argv[0] == SHELL and error.code in _SHELL_REMEDIES:
        return error.model_copy(update={"message": f"{error.message} {_SHELL_REMEDIES[error.code]}"})

    return output


_SHELL_REMEDIES: Final = {
    ToolErrorCode.PERMISSION_DENIED: "A command line may only join allowed commands by `&&`, `||` or `;`, enter a"
    " folder by `cd FOLDER &&`, use `2>&1`, and pipe into head, tail, grep, sort, uniq or wc; all words are literal.",
    ToolErrorCode.NOT_FOUND: "On most systems it is the package bash. One simple command runs without it.",
}
"""What is added to the errors of a command line for which the shell may not, or cannot, be started."""


def _run(context: ToolContext, argv: Sequence[str], arguments: RunCommandArguments | RunShellArguments) -> ToolAnswer:
    """Run the program, and record what it changes until it ends or goes on as a job."""
    commands = context.commands or ToolError(code=ToolErrorCode.UNAVAILABLE, message=COMMANDS_ARE_OFF)
    jobs = context.jobs or ToolError(code=ToolErrorCode.UNAVAILABLE, message=JOBS_ARE_OFF)
    if isinstance(commands, ToolError):
        return commands
    if arguments.background and isinstance(jobs, ToolError):
        return jobs

    started = monotonic_s()
    seconds = min(arguments.timeout_s or inf, context.timeout_s, context.seconds_left)

    def run() -> "CommandResult | Job | ToolError":
        remaining = seconds - (monotonic_s() - started)
        if isinstance(jobs, ToolError):
            return commands.run(argv, arguments.cwd, remaining)

        step = context.state.get("step", 0)
        return jobs.run(commands, argv, arguments.cwd, remaining, step, background=arguments.background)

    reason = ""
    if not arguments.background:
        reason = f"It has not ended within {seconds:.3g} s, and goes on in the background."
    if not isinstance(jobs, ToolError) and not jobs.are_settled:
        return _answer(argv[0], *_run_beside_jobs(context, jobs, run), reason)

    result, changes, after, unrecorded = watched(context.workspace, run, seconds)
    if not isinstance(jobs, ToolError) and not isinstance(result, CommandResult | ToolError):
        jobs.watch_since(after)

    return _answer(argv[0], result, changes, unrecorded, reason)


def _run_beside_jobs(
    context: ToolContext, jobs: "Jobs", run: "Callable[[], CommandResult | Job | ToolError]"
) -> "tuple[CommandResult | Job | ToolError, CommandChanges | Unwatched, str]":
    """Run a command beside jobs. Its changes are all since the last look: theirs cannot be told from its own."""
    result = run()
    earlier = len(context.state.get("changes") or ())
    changes = jobs.take_changes(context.workspace, context.changes[earlier:])
    recorder = context.workspace.recorder
    if recorder is None or isinstance(changes, Unwatched) or changes == CommandChanges():
        return result, changes, ""

    try:
        record_changes(recorder.beside_jobs(), changes)
    except StoreError as error:
        return result, changes, str(error)

    return result, changes, ""


def _answer(
    program: str,
    result: "CommandResult | Job | ToolError",
    changes: CommandChanges | Unwatched,
    unrecorded: str,
    reason: str,
) -> ToolAnswer:
    """Return the result for the model; `reason` says why a command goes on as a job."""
    if unrecorded:
        message = f"{program} has run, but what it changed could not be recorded, so it cannot be undone. {unrecorded}"
        outcome = ToolResult(ok=False, error=ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True))
    elif isinstance(result, ToolError):
        outcome = ToolResult(ok=False, error=result)
    elif not isinstance(result, CommandResult):
        data = _job_data(result) | _changed_files(changes)
        outcome = ToolResult(ok=True, data={**data, "reason": reason} if reason else data)
    elif result.timed_out or result.limit is not None:
        outcome = ToolResult(ok=False, error=_ended(program, result, changes))
    else:
        outcome = ToolResult(ok=True, data=_data(result) | _changed_files(changes))

    if isinstance(changes, Unwatched):
        return ToolOutput(outcome)

    return ToolOutput(outcome, file_changes(changes))


def _data(result: CommandResult) -> JsonMap:
    data: JsonMap = {"exit_code": result.exit_code, **_outputs(result.stdout, result.stderr)}
    if result.signal:
        data["signal"] = result.signal

    return data


def _job_data(job: "Job") -> JsonMap:
    """Return the state of a job, with what it has printed since the last time."""
    data: JsonMap = {"job": job.name, "running": job.is_running}
    command = job.command

    if command.limit is not None:
        data["ended"] = f"{job.program} {command.limit}"
    elif command.exit_code is not None:
        data["exit_code"] = command.exit_code
    elif command.why:
        data["ended"] = command.why

    return data | _outputs(*job.take_output())


def _outputs(stdout: CapturedOutput, stderr: CapturedOutput) -> JsonMap:
    data: JsonMap = {}

    for name, ends in (("stdout", stdout), ("stderr", stderr)):
        data[name] = output_text(ends)
        if ends.left_out:
            data[f"{name}_bytes"] = ends.size

    return data


def _changed_files(changes: CommandChanges | Unwatched) -> JsonMap:
    if isinstance(changes, Unwatched):
        return {"changed_files": f"not tracked: {changes.reason}"}

    data: JsonMap = {}
    names = _names(changes)
    if names:
        data["changed_files"] = names

    set_aside = [file.effect.path for file in changes.files if f"{UNTRUSTED}/" in f"{file.effect.path}/"]
    if set_aside:
        data["set_aside"] = set_aside

    return data


def _names(changes: CommandChanges) -> list[str]:
    names = [f"{escaped_name(file.effect.path)} ({file.effect.kind})" for file in changes.files[:_MOST_CHANGED]]
    more = len(changes.files) - len(names)
    if more:
        names.append(f"... and {more} more")

    return names


def _ended(program: str, result: CommandResult, changes: CommandChanges | Unwatched) -> ToolError:
    """TIMEOUT or RESOURCE_LIMIT, with the changes of the program and the end of its output."""
    words = last_words(result.stdout, result.stderr)
    output = f" The end of its output:\n{words}" if words else " It had printed nothing."
    changed = ""

    if isinstance(changes, Unwatched):
        changed = f" What it changed was not tracked: {changes.reason}."
    elif names := _names(changes):
        changed = f" It changed: {', '.join(names)}."

    if result.limit is not None:
        return ToolError(code=ToolErrorCode.RESOURCE_LIMIT, message=f"{program} {result.limit}{changed}{output}")

    seconds = max(round(result.limit_s, 1), 0.1)  # without the time before its start
    message = f"{program} was stopped after {seconds:g} s.{changed}{output}"
    return ToolError(code=ToolErrorCode.TIMEOUT, message=message)


GRACE_S = 2.0
"""Seconds that a job has after SIGTERM."""


class JobOutputArguments(ToolArguments):
    """Which job, and how long to wait for what."""

    job: str
    wait_s: float = Field(default=0, ge=0, allow_inf_nan=False, description="Seconds to wait for its end.")
    pattern: str = Field(default="", max_length=1_000, description="Wait until it prints this text.")


@tool(effect=Effect.NONE, self_timed=True)
def job_output(context: ToolContext, arguments: JobOutputArguments) -> ToolAnswer:
    """Return what a command in the background has printed since the last call."""
    job = _find(context, arguments.job)
    if isinstance(job, ToolError):
        return job

    seconds = min(arguments.wait_s, context.timeout_s, context.seconds_left)
    job.wait(seconds, arguments.pattern, (context.scope or CancellationScope()).check)
    return ToolOutput.ok(**_job_data(job))


class JobKillArguments(ToolArguments):
    """Which job to end."""

    job: str


@tool(effect=Effect.NONE, self_timed=True)
def job_kill(context: ToolContext, arguments: JobKillArguments) -> ToolAnswer:
    """End a command in the background, and return its last output."""
    job = _find(context, arguments.job)
    if isinstance(job, ToolError):
        return job

    if context.jobs is not None and not isinstance(context.jobs, ToolError):
        context.jobs.kill(job, GRACE_S)

    return ToolOutput.ok(**_job_data(job))


def _find(context: ToolContext, name: str) -> "Job | ToolError":
    jobs = context.jobs or ToolError(code=ToolErrorCode.UNAVAILABLE, message=JOBS_ARE_OFF)
    return jobs if isinstance(jobs, ToolError) else jobs.find(name)


class RunChecksArguments(ToolArguments):
    """Which files are to be looked at; the configured checks are always run."""

    paths: list[str] = Field(default=[], max_length=100, description="Files that were changed.")


@tool(effect=Effect.READ, path_fields=("paths",), cacheable=False, self_timed=True, offered=False)
def run_checks(context: ToolContext, arguments: RunChecksArguments) -> ToolAnswer:
    """Run the configured checks, and the examples and tests of the given files.

    The examples of the files' docstrings, those that the task gives in its words, what it asks of names, the project's
    test files for them, the command that runs all of its tests where a file is no Python, and the configured commands;
    nothing of it changes the workspace. What failed on the files as they were before the turn is told, and does not
    count, unless the task is about it.
    """
    from mendgraph.nodes.execute_tools.tools.checking import check

    return check(context, arguments.paths)
