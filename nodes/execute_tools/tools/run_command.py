"""Tools that run an allowed program, a command line, or the checks, in a sandbox."""

from collections.abc import Sequence
from math import inf
from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.commands.command_changes import CommandChanges, Unwatched, watched
from mendgraph.nodes.execute_tools.commands.commands import CommandResult, last_words, output_text
from mendgraph.nodes.execute_tools.commands.protected_names import UNTRUSTED
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.saving import file_changes
from mendgraph.nodes.language.command_lines import SHELL, shell_argv
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.files.text_files import escaped_name

COMMANDS_ARE_OFF = "Commands are off in this run: name the programs in `allowed_programs` (`--allow-program`)."
_MOST_CHANGED = 20  # changed files in a result


class RunCommandArguments(ToolArguments):
    """Which program to run, with which arguments, where, and for how long at most."""

    argv: list[str] = Field(
        min_length=1, max_length=1_000, description='The program and its arguments, such as ["make", "test"]; no shell.'
    )
    cwd: str = Field(default=".", description="Directory to run it in.")
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="Seconds it may take.")


@tool(effect=Effect.EXECUTE, path_fields=("cwd",), self_timed=True)
def run_command(context: ToolContext, arguments: RunCommandArguments) -> ToolAnswer:
    """Run an allowed program in a sandbox without network, where `.git` is read-only.

    A failing exit code is a result. It ends its program by itself, so that nothing has to be left behind. The program
    changes names in the workspace only. But a file of the workspace that has another name outside, a hard link, is the
    same file there: uv and pnpm link their caches into a project in that way. Which files of the workspace it changed
    is reported and recorded; the thread does not know what they hold now, so that they have to be read again.
    """
    return _run(context, arguments.argv, arguments.cwd, arguments.timeout_s)


class RunShellArguments(ToolArguments):
    """Which command line to run, where, and for how long at most."""

    command: str = Field(
        min_length=1,
        max_length=100_000,
        description="Such as `pytest -q tests/test_a.py`.",
    )
    cwd: str = Field(default=".", description="Directory to run it in.")
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="Seconds it may take.")


@tool(effect=Effect.EXECUTE, path_fields=("cwd",), self_timed=True)
def run_shell(context: ToolContext, arguments: RunShellArguments) -> ToolAnswer:
    """Run a command line of bash in a sandbox without network.

    One simple command of literal words is run without a shell, as run_command does, so that what was allowed is what
    runs. Anything else is an argument of the program `bash`, which has to be allowed.
    """
    argv = shell_argv(arguments.command)
    output = _run(context, argv, arguments.cwd, arguments.timeout_s)
    error = output if isinstance(output, ToolError) else output.result.error

    if error is not None and argv[0] == SHELL and error.code in _SHELL_REMEDIES:
        return error.model_copy(update={"message": f"{error.message} {_SHELL_REMEDIES[error.code]}"})

    return output


_SHELL_REMEDIES: Final = {
    ToolErrorCode.PERMISSION_DENIED: "This line needs a shell, as it is more than one simple command of literal words:"
    " run the commands one by one, without pipes, lists, redirections, variables and patterns.",
    ToolErrorCode.NOT_FOUND: "On most systems it is the package bash. One simple command runs without it.",
}
"""What is added to the errors of a command line for which the shell may not, or cannot, be started."""


def _run(context: ToolContext, argv: Sequence[str], cwd: str, timeout_s: float | None) -> ToolAnswer:
    """Run the program, and record what it changes."""
    if context.commands is None:
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=COMMANDS_ARE_OFF)
    if isinstance(context.commands, ToolError):
        return context.commands

    commands = context.commands
    started = monotonic_s()
    seconds = min(timeout_s or inf, context.timeout_s, context.seconds_left)

    def run() -> CommandResult | ToolError:
        return commands.run(argv, cwd, seconds - (monotonic_s() - started))

    result, changes, unrecorded = watched(context.workspace, run, seconds)
    program = argv[0]

    if unrecorded:
        message = f"{program} has run, but what it changed could not be recorded, so it cannot be undone. {unrecorded}"
        outcome = ToolResult(ok=False, error=ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True))
    elif isinstance(result, ToolError):
        outcome = ToolResult(ok=False, error=result)
    elif result.timed_out or result.limit is not None:
        outcome = ToolResult(ok=False, error=_ended(program, result, changes))
    else:
        outcome = ToolResult(ok=True, data=_data(result) | _changed_files(changes))

    if isinstance(changes, Unwatched):
        return ToolOutput(outcome)

    return ToolOutput(outcome, file_changes(changes))


def _data(result: CommandResult) -> JsonMap:
    data: JsonMap = {"exit_code": result.exit_code}

    for name, ends in (("stdout", result.stdout), ("stderr", result.stderr)):
        data[name] = output_text(ends)
        if ends.left_out:
            data[f"{name}_bytes"] = ends.size

    if result.signal:
        data["signal"] = result.signal

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
