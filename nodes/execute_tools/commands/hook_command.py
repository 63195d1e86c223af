"""Runs the command of one hook with a JSON document on its standard input."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.commands.commands import Commands, output_text
from mendgraph.nodes.language.command_lines import SHELL
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.processes.processes import run_process

_INPUT: Final = "/run/mendgraph-hook.json"
_MOST_OUTPUT_BYTES: Final = 64_000


class HookOutput(NamedTuple):
    """The exit code and the outputs of a hook that has ended by itself."""

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
        return ToolError(code=ToolErrorCode.TIMEOUT, message=f"It was stopped after {timeout_s:g} s.")

    return HookOutput(result.exit_code, output_text(result.stdout), output_text(result.stderr))


def run_unconfined(
    root: str, line: str, document: bytes, timeout_s: float, variables: Mapping[str, str]
) -> HookOutput | ToolError:
    """Run a line of bash in the folder `root` with the rights and variables of the user."""
    with tempfile.TemporaryFile() as stdin:
        stdin.write(document)
        stdin.seek(0)
        result = run_process(
            [SHELL, "-c", line],
            cwd=root,
            timeout_s=timeout_s,
            max_output_bytes=_MOST_OUTPUT_BYTES,
            env={**os.environ, **variables},
            stdin=stdin,
        )

    if isinstance(result, ToolError):
        return result

    return HookOutput(result.exit_code, result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace"))
