"""What can be run to see whether the code is right: in the sandbox, within seconds, and without changing anything.

The programs see the workspace read-only. A text that is not in the workspace yet is handed to the program that runs
examples, and takes the place of the file when that is imported: so nothing has to be written before it is judged. What
files held before takes their place for all programs: so it is known what failed already.
"""

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Final, Self

from pydantic import TypeAdapter

from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import (
    CommandResult,
    Commands,
    last_words,
    open_commands,
    output_text,
)
from mendgraph.nodes.execute_tools.commands.workspace_cover import NameRule, never
from mendgraph.nodes.execute_tools.evidence.runners import PROGRAMS, Command, Runners, find_runners
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope
from mendgraph.nodes.execute_tools.files.sandbox import ContentJudge
from mendgraph.nodes.execute_tools.processes.resource_limits import ResourceLimits, evidence_limits
from mendgraph.nodes.execute_tools.sandboxes.backends import AUTO
from mendgraph.nodes.execute_tools.sandboxes.sandbox import SCRATCH
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode, invalid, quoted

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
    'IFS="\n"; for p in $PYTHONS; do if "$p" -I -c "" 2>/dev/null; then PATH="${p%/*}:$PATH" exec "$p" "$@"; fi; done;'
    ' exec python3 "$@"'
)
"""The project's own Python where it starts in the sandbox, else the system's; exit code 127 where there is none."""
_NOT_FOUND: Final = 127


@dataclass(frozen=True)
class RanTests:
    """The results of tests.

    Attributes:
        name: what ran them; it is also what failed where no single test is known.
        passed: how many passed, None where that is not known.
        failed: the output of each failing test.
        near: the failing tests that ran a changed line.
        lines: the changed lines that any test ran, by path.
        error: why nothing was run.
        passing: the passing tests but for `changed`.
        changed: the passing ones of the changed tests, each with the lines that it ran, by path.
        skipped: how many were skipped.
        skip_reason: why most of them were skipped.
    """

    name: str
    passed: int | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    near: Sequence[str] = ()
    lines: Mapping[str, Sequence[int]] = field(default_factory=dict)
    error: str = ""
    passing: tuple[str, ...] = ()
    changed: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    skipped: int = 0
    skip_reason: str = ""


_TESTS: Final = TypeAdapter(RanTests)  # it comes from where the code of the workspace runs
_FAILED_TEST: Final = re.compile(
    r"^[ \t]*(?:(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?|(?:FAIL|ERROR): (\w+ \(.+\))|test (\S+) \.\.\. FAILED"
    r"|(?:(?P<here>--- FAIL: |not ok \d+ (?:- )?)|[\u2716\u2715\u00d7] )(.+?)(?: \([\d.]+ ?m?s\)| #.*)?)$",
    re.MULTILINE,
)
"""How pytest, unittest, cargo, go, TAP, node, jest and vitest print the name of a test that fails; the third and fourth
tell the reason `here`, below of it."""
_DETAILS: Final = 600  # characters of the output of a failing test
_SKIPPED: Final = re.compile(r"(?m)^.*?\b(?:(\d+) (?:skipped|ignored)|skipped=(\d+)|skipped (\d+)$).*$")
"""How test runners print in a line of their summary how many tests were skipped."""


@dataclass(frozen=True)
class CheckRules:
    """Which checks judge the work of a run.

    With `evidence`, the examples of docstrings and of the request and the project's tests, which use `limits` at most.
    `commands` are the person's own checks, each one command line: any installed program, or one of the workspace by its
    relative path (`.venv/bin/pytest -q`); exit code 0 means passed. Each, and each test file, may take `timeout_s`
    seconds; all examples of one edit together `examples_timeout_s`. `readable` names more folders of the machine that
    programs may read. `sandbox` is a kind of `choose_sandbox`.
    """

    commands: tuple[str, ...] = ()
    timeout_s: float = 60.0
    examples_timeout_s: float = 5.0
    readable: tuple[str, ...] = ()
    evidence: bool = True
    limits: ResourceLimits = field(default_factory=evidence_limits)
    sandbox: str = AUTO


def open_checks(
    root: str,
    rules: CheckRules,
    denied: NameRule,
    contents: ContentJudge = lambda _: None,
    refused: NameRule = never,
) -> "Checks | ToolError":
    """The checks of a run in the workspace `root`.

    INVALID_ARGUMENT names a command that is no command line; UNAVAILABLE says why no sandbox starts. `denied` says
    which workspace-relative names no program may see, `refused` which absolute names in the `readable` folders, and
    `contents` which files for what they hold.
    """
    lines: dict[str, list[str]] = {}

    for command in rules.commands:
        try:
            lines[command] = shlex.split(command)
        except ValueError as error:
            return _malformed(command, str(error))

        if not lines[command]:
            return _malformed(command, "it is empty")

    programs = ("sh", *PROGRAMS, *(line[0] for line in lines.values()))
    longest = max(rules.timeout_s, rules.examples_timeout_s + _START_S)
    allowed = CommandRules(
        programs, longest, max_output_bytes=_LARGEST_ANSWER, readable=rules.readable, sandbox=rules.sandbox
    )
    commands = open_commands(root, allowed, denied, contents, refused=refused)

    if isinstance(commands, ToolError):
        return commands

    return Checks(commands, rules, lines)


@dataclass
class Checks:
    """Runs checks in one workspace, one at a time; ScopeOverError once the call's time is over. See `open_checks`."""

    commands: Commands
    rules: CheckRules
    lines: Mapping[str, list[str]] = field(default_factory=dict)

    def in_scope(self, scope: CancellationScope | None) -> Self:
        """The same checks for one call: once `scope` is over none is started, and one that runs is killed."""
        if scope is None:
            return self
        return replace(self, commands=self.commands.in_scope(scope))

    def run_examples(self, modules: list[JsonMap], seconds: float = inf) -> list[JsonMap] | ToolError:
        """Run the examples of modules, in the form that `runner` describes, in `seconds` at most.

        UNAVAILABLE where they cannot be run, be it that there is no Python; RESOURCE_LIMIT where they use too much.
        """
        limit = min(seconds, self.rules.examples_timeout_s)
        request = {"root": self.commands.root, "seconds": limit, "modules": modules}
        files = {_REQUEST: json.dumps(request).encode()}
        result = self._python(files, ["-I", "-B", _RUNNER, "examples", _REQUEST], limit + _START_S)

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

        return _unavailable("The examples could not be run: no Python answered.")

    def run_tests(
        self,
        path: str,
        seconds: float = inf,
        lines: Mapping[str, list[int]] | None = None,
        changed: Collection[str] = (),
        before: Mapping[str, bytes] | None = None,
    ) -> RanTests | ToolError:
        """Run a test file of the workspace; UNAVAILABLE with the reason where it cannot be run.

        `lines` are those of files that were changed, and `changed` the tests of this one that were, as `changed_tests`
        names them; with `before` these files hold what they held then.
        """
        request = {"path": path, "lines": lines or {}, "changed": sorted(changed)}
        files = {_REQUEST: json.dumps(request).encode(), **self._replaced(before)}
        result = self._python(files, ["-B", _RUNNER, "tests", _REQUEST], min(seconds, self.rules.timeout_s))

        if isinstance(result, ToolError):
            return result

        try:
            answer = _TESTS.validate_json(result.stdout.head + result.stdout.tail)
        except ValueError:  # it did not come to its end, whatever its exit code is
            return _ended(path, replace(result, exit_code=result.exit_code or 1))

        if answer.error:
            return _unavailable(f"{path} was not run: {answer.error}.")

        return answer

    def run_command(
        self, command: str | Command, seconds: float = inf, before: Mapping[str, bytes] | None = None
    ) -> RanTests | ToolError:
        """Run one of the configured commands, or one that was found to run the project's tests.

        NOT_FOUND where a configured one's program is not installed, UNAVAILABLE where the other kind cannot be run.
        """
        limit = min(seconds, self.rules.timeout_s)
        files = self._replaced(before)

        if isinstance(command, str):
            result = self.commands.read_only(files, _ENV).run(self.lines[command], timeout_s=limit)
            if isinstance(result, ToolError):
                return result
            return _ended(command, result)

        if command.lacks:
            return _unavailable(f"{command.name} was not run: {command.lacks} is not installed.")

        runners = self.runners()
        commands = self.commands.read_only(files, {**_ENV, **runners.env}, self.rules.limits, runners.readable)
        result = commands.run(command.name.split(), timeout_s=limit)
        if isinstance(result, ToolError):
            return result
        if result.timed_out:
            return _unavailable(f"{command.name} took longer than {result.limit_s:.3g} s.")

        return _ended(command.name, result)

    def runners(self) -> Runners:
        """The programs that run the project's tests, by its files."""
        return find_runners(self.commands.root)

    def _replaced(self, before: Mapping[str, bytes] | None) -> dict[str, bytes]:
        return {f"{self.commands.root}/{path}": data for path, data in (before or {}).items()}

    def _python(self, files: Mapping[str, bytes], arguments: list[str], limit: float) -> CommandResult | ToolError:
        program = Path(__file__).with_name("runner.py").read_bytes()
        runners = self.runners()
        env = {**_ENV, "PYTHONS": "\n".join(runners.pythons)}
        commands = self.commands.read_only({_RUNNER: program, **files}, env, self.rules.limits, runners.readable)
        result = commands.run(["sh", "-c", _PYTHON, "sh", *arguments], timeout_s=limit)

        if isinstance(result, CommandResult) and result.exit_code == _NOT_FOUND:
            return _unavailable("There is no Python that commands can see.")

        return result


def _ended(name: str, result: CommandResult) -> RanTests | ToolError:
    """The results of the tests of a program, by its output; RESOURCE_LIMIT where it used too much."""
    text = last_words(result.stdout, result.stderr)
    if result.limit is not None:
        message = f"{name} {result.limit}"
        if text:
            message += f"\n{text}"

        return ToolError(code=ToolErrorCode.RESOURCE_LIMIT, message=message)

    if result.timed_out:
        return RanTests(name, failed={name: f"{name} does not end within {result.limit_s:.3g} s."})

    printed = f"{output_text(result.stdout)}\n{output_text(result.stderr)}"
    if not result.exit_code:
        skipped = [int(match[match.lastindex or 0]) for match in _SKIPPED.finditer(printed)]
        return RanTests(name, skipped=max(skipped, default=0))

    failed: dict[str, str] = {}
    for match in _FAILED_TEST.finditer(printed):
        reason = text
        if match["here"]:
            reason = printed[match.start() :].strip()[:_DETAILS]

        failed[match[match.lastindex or 0]] = reason

    return RanTests(name, failed=failed or {name: text})


def _unavailable(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def _malformed(command: str, reason: str) -> ToolError:
    message = f"The check {quoted(command)} is not a command line ({reason}): write it as in a terminal, without pipes."
    return invalid(message)
