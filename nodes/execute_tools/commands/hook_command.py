"""Runs the command of one hook with a JSON document on its standard input."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.commands.command_outputs import output_text
from mendgraph.nodes.execute_tools.commands.commands import Commands
from mendgraph.nodes.execute_tools.mcp_servers.executed_files import SEARCH_VARIABLES, ExecutedFiles
from mendgraph.nodes.language.command_lines import SHELL
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.processes.processes import CapturedOutput, kill_group, outputs, read_until, start_process

_INPUT: Final = "/run/mendgraph-hook.json"
_MOST_OUTPUT_BYTES: Final = 64_000
_STARTUP_VARIABLES: Final = frozenset({"BASH_ENV", "ENV", "LD_PRELOAD"})
"""Variables with files that a shell or any program executes when it starts."""


class HookOutput(NamedTuple):
    """The exit code and the outputs of a hook that has ended by itself; long ones without their middle."""

    exit_code: int
    stdout: str
    stderr: str


def run_in_sandbox(
    commands: Commands, line: str, document: bytes, timeout_s: float, variables: Mapping[str, str], *, changes: bool
) -> HookOutput | ToolError:
    """Run a line of bash in the sandbox of `commands`; without `changes` it can only read the workspace.

    Raises ScopeOverError: the time of the call is over.
    """
    added_texts = {_INPUT: document}
    if changes:
        commands = replace(commands, added_texts=added_texts, env={**commands.env, **variables})
    else:
        commands = commands.read_only(added_texts, variables)

    result = commands.run([SHELL, "-c", f'exec {SHELL} -c "$0" < {_INPUT}', line], timeout_s=timeout_s)
    if isinstance(result, ToolError):
        return result
    if result.limit is not None:
        return ToolError(code=ToolErrorCode.RESOURCE_LIMIT, message=f"It {result.limit}.")
    if result.timed_out:
        return _timeout(timeout_s)

    return HookOutput(result.exit_code, output_text(result.stdout), output_text(result.stderr))


def run_unconfined(
    root: str, line: str, document: bytes, timeout_s: float, variables: Mapping[str, str], check: Callable[[], None]
) -> HookOutput | ToolError:
    """Run a line of bash in the folder `root` with the rights and variables of the user.

    `check` is called again and again, and ends the hook if it raises.
    """
    with tempfile.TemporaryFile() as stdin:
        stdin.write(document)
        stdin.seek(0)
        process = start_process([SHELL, "-c", line], cwd=root, env={**_search_outside(root), **variables}, stdin=stdin)

    if isinstance(process, ToolError):
        return process

    stdout, stderr = CapturedOutput(most=_MOST_OUTPUT_BYTES), CapturedOutput(most=_MOST_OUTPUT_BYTES)
    with process:
        handlers = dict(zip(outputs(process), (stdout.add, stderr.add), strict=True))
        try:
            has_ended = read_until(process, handlers, time.monotonic() + timeout_s, check)
        finally:
            kill_group(process)

    if not has_ended:
        return _timeout(timeout_s)

    return HookOutput(process.returncode, output_text(stdout), output_text(stderr))


def _search_outside(root: str) -> dict[str, str]:
    """Return the user's variables, without the search folders and startup files that the agent may change."""
    files = ExecutedFiles(os.path.realpath(root))
    variables = dict(os.environ)
    for name in (SEARCH_VARIABLES | _STARTUP_VARIABLES) & variables.keys():
        variables[name] = files.safe_path(variables[name])

    return {**variables, "PATH": variables.get("PATH") or os.defpath}


def _timeout(timeout_s: float) -> ToolError:
    return ToolError(code=ToolErrorCode.TIMEOUT, message=f"It was stopped after {timeout_s:g} s.")
