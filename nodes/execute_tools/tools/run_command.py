"""The tool that runs a program of the user's choice in a sandbox."""

from collections.abc import Sequence
from math import inf

from pydantic import Field

from nodes.execute_tools.environment.commands import CommandResult
from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tools.arguments import ToolArguments
from nodes.execute_tools.tools.command_output import last_words, output_text
from nodes.records import Effect, JsonMap, ToolError, ToolErrorCode

COMMANDS_ARE_OFF = "Commands are off in this run: name the programs in `allowed_programs` (`--allow-program`)."

_MOST_NAMES = 50
"""Denied names that a program made: so many are told."""
_UNKNOWN = "unknown, as the workspace could not be looked through"


class RunCommandArguments(ToolArguments):
    """Which program to run, with which arguments, where, and for how long at most."""

    argv: list[str] = Field(
        min_length=1, max_length=1_000, description='The program and its arguments, such as ["make", "test"]; no shell.'
    )
    cwd: str = Field(default=".", description="Directory to run it in.")
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="Seconds it may take.")


@tool(effect=Effect.EXECUTE, path_fields=("cwd",), self_timed=True)
def run_command(context: ToolContext, arguments: RunCommandArguments) -> ToolOutput:
    """Run an allowed program in a sandbox without network, where `.git` is read-only.

    A failing exit code is a result. It ends its program by itself, so that nothing has to be left behind. The program
    changes names in the workspace only. But a file of the workspace that has another name outside, a hard link, is the
    same file there: uv and pnpm link their caches into a project in that way.
    """
    if context.commands is None:
        return ToolOutput.failed(ToolError(code=ToolErrorCode.UNAVAILABLE, message=COMMANDS_ARE_OFF))
    if isinstance(context.commands, ToolError):
        return ToolOutput.failed(context.commands)
    seconds = min(arguments.timeout_s or inf, context.timeout_s, context.seconds_left)
    result = context.commands.run(arguments.argv, arguments.cwd, seconds)
    if isinstance(result, ToolError):
        return ToolOutput.failed(result)
    if result.timed_out:
        return ToolOutput.failed(_timeout(arguments.argv[0], result))
    return ToolOutput.ok(**_data(result))


def _data(result: CommandResult) -> JsonMap:
    data: JsonMap = {"exit_code": result.exit_code}
    for name, ends in (("stdout", result.stdout), ("stderr", result.stderr)):
        data[name] = output_text(ends)
        if ends.left_out:
            data[f"{name}_bytes"] = ends.size
    if result.signal:
        data["signal"] = result.signal
    if result.made_denied != ():
        data["made_denied"] = _UNKNOWN if result.made_denied is None else _listed(result.made_denied)
    return data


def _listed(names: Sequence[str]) -> list[str]:
    more = len(names) - _MOST_NAMES
    return [*names[:_MOST_NAMES], *([f"... and {more} more"] if more > 0 else [])]


def _timeout(program: str, result: CommandResult) -> ToolError:
    words = last_words(result.stdout, result.stderr)
    said = f" The end of its output:\n{words}" if words else " It had printed nothing."
    made = ""
    if result.made_denied is None:
        made = f" Which denied files it made: {_UNKNOWN}."
    elif result.made_denied:
        made = f" It made what is denied: {', '.join(_listed(result.made_denied))}."
    message = f"{program} was stopped after {result.limit_s:g} s.{made}{said}"
    return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
