"""What can be run to see whether the code is right: in the sandbox, within seconds, and without changing anything.

The programs see the workspace read-only. A text that is not in the workspace yet is handed to the program that runs
examples, and takes the place of the file when that is imported: so nothing has to be written before it is judged.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Final, Self

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.files.sandbox import ContentJudge
from mendgraph.nodes.execute_tools.processes.bubblewrap import SCRATCH
from mendgraph.nodes.execute_tools.processes.commands import CommandResult, CommandRules, Commands, open_commands
from mendgraph.nodes.execute_tools.processes.processes import ResourceLimits, evidence_limits
from mendgraph.nodes.execute_tools.processes.workspace_cover import Denied
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

NOTHING_RAN: Final = 97  # the exit code of a test file that cannot be run here. Source: `runner`.
_RUNNER, _REQUEST = "/run/checks/runner.py", "/run/checks/request.json"
_LARGEST_ANSWER: Final = 1_000_000  # bytes that the examples' program may answer, and that are kept of a check's output
_START_S: Final = 5.0
"""How much longer than its examples that program may take: the look for denied files and its own start."""
_ENV: Final = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "MYPY_CACHE_DIR": f"{SCRATCH}/mypy",
    "RUFF_CACHE_DIR": f"{SCRATCH}/ruff",
    "COVERAGE_FILE": f"{SCRATCH}/coverage",
}
"""Where the common tools would write into the workspace, which they cannot."""
_PYTHON: Final = (
    'for p in .venv/bin/python venv/bin/python; do if [ -x "$p" ] && "$p" -I -c "" 2>/dev/null;'
    ' then exec "$PWD/$p" "$@"; fi; done; exec python3 "$@"'
)
"""The workspace's own Python where it starts in the sandbox, else the system's; exit code 127 where there is none."""
_NO_PYTHON: Final = 127


@dataclass(frozen=True)
class CheckRules:
    """What is run to judge the work of a run.

    With `evidence`, the examples of docstrings and of the request and the project's tests, which use `limits` at most.
    `commands` are the person's own checks, each one command line: any installed program, or one of the workspace by its
    relative path (`.venv/bin/pytest -q`); exit code 0 means passed. Each, and each test file, may take `timeout_s`
    seconds; all examples of one edit together `examples_timeout_s`. `readable` names more folders of the machine that
    programs may read.
    """

    commands: tuple[str, ...] = ()
    timeout_s: float = 60.0
    examples_timeout_s: float = 5.0
    readable: tuple[str, ...] = ()
    evidence: bool = True
    limits: ResourceLimits = field(default_factory=evidence_limits)


def open_checks(
    root: str, rules: CheckRules, denied: Denied, contents: ContentJudge = lambda _: None
) -> "Checks | ToolError":
    """The checks of a run in the workspace `root`.

    INVALID_ARGUMENT names a command that is no command line; UNAVAILABLE says why no sandbox starts. `denied` says
    which workspace-relative names no program may see, `contents` which files for what they hold.
    """
    lines: dict[str, list[str]] = {}
    for command in rules.commands:
        try:
            lines[command] = shlex.split(command)
        except ValueError as error:
            return _malformed(command, str(error))
        if not lines[command]:
            return _malformed(command, "it is empty")
    programs = ("sh", *(line[0] for line in lines.values()))
    longest = max(rules.timeout_s, rules.examples_timeout_s + _START_S)
    allowed = CommandRules(programs, longest, max_output_bytes=_LARGEST_ANSWER, readable=rules.readable)
    commands = open_commands(root, allowed, denied, contents)
    return commands if isinstance(commands, ToolError) else Checks(commands, rules, lines)


@dataclass
class Checks:
    """Runs checks in one workspace, one at a time; ScopeOverError once the call's time is over. See `open_checks`."""

    commands: Commands
    rules: CheckRules
    lines: Mapping[str, list[str]] = field(default_factory=dict)

    def in_scope(self, scope: CancellationScope | None) -> Self:
        """The same checks for one call: once `scope` is over none is started, and one that runs is killed."""
        return self if scope is None else replace(self, commands=self.commands.in_scope(scope))

    def run_examples(self, modules: list[JsonMap], seconds: float = inf) -> list[JsonMap] | ToolError:
        """Run the examples of modules, in the form that `runner` describes, in `seconds` at most.

        UNAVAILABLE where they cannot be run, be it that there is no Python; RESOURCE_LIMIT where they use too much.
        """
        limit = min(seconds, self.rules.examples_timeout_s)
        request = {"root": self.commands.root, "seconds": limit, "modules": modules}
        given = {_REQUEST: json.dumps(request).encode()}
        result = self._python(given, ["-I", "-B", _RUNNER, "examples", _REQUEST], limit + _START_S)
        if isinstance(result, ToolError):
            return result
        if result.limit is not None:
            return ToolError(code=ToolErrorCode.RESOURCE_LIMIT, message=f"The run of the examples {result.limit}")
        try:
            answer = json.loads(result.stdout.head + result.stdout.tail)
        except ValueError:
            answer = None
        if isinstance(answer, list) and len(answer) == len(modules):
            return answer
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message="The examples could not be run: no Python answered.")

    def run_tests(self, path: str, seconds: float = inf) -> CommandResult | ToolError:
        """Run a test file of the workspace; `NOTHING_RAN` is the exit code where it cannot be run."""
        return self._python({}, ["-B", _RUNNER, "tests", path], min(seconds, self.rules.timeout_s))

    def run_command(self, command: str, seconds: float = inf) -> CommandResult | ToolError:
        """Run one of the configured commands; NOT_FOUND where its program is not installed."""
        return self.commands.read_only({}, _ENV).run(self.lines[command], timeout_s=min(seconds, self.rules.timeout_s))

    def _python(self, given: Mapping[str, bytes], arguments: list[str], limit: float) -> CommandResult | ToolError:
        runner = Path(__file__).with_name("runner.py").read_bytes()
        commands = self.commands.read_only({_RUNNER: runner, **given}, _ENV, self.rules.limits)
        result = commands.run(["sh", "-c", _PYTHON, "sh", *arguments], timeout_s=limit)
        if isinstance(result, CommandResult) and result.exit_code == _NO_PYTHON:
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message="There is no Python that commands can see.")
        return result


def _malformed(command: str, reason: str) -> ToolError:
    message = f"The check {quoted(command)} is not a command line ({reason}): write it as in a terminal, without pipes."
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
