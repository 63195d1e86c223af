"""Running examples, tests and commands that check the code, in the sandbox.

Programs see the workspace read-only. The program that runs examples imports a given text in place of a file, so that an
edit is checked before it is written. Old versions of files take their place for all programs.
"""

import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from pydantic import TypeAdapter

from mendgraph.nodes.execute_tools.commands.command_outputs import last_words, output_text
from mendgraph.nodes.execute_tools.commands.command_rules import CommandRules
from mendgraph.nodes.execute_tools.commands.commands import CommandResult, Commands, open_commands
from mendgraph.nodes.execute_tools.commands.workspace_cover import NameRule, never
from mendgraph.nodes.execute_tools.evidence.runners import PROGRAMS, Command, Runners, find_runners, with_parents
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.deadline import CancellationScope, monotonic_s
from mendgraph.nodes.workspace.files.sandbox import ContentJudge
from mendgraph.nodes.workspace.processes.resource_limits import ResourceLimits, evidence_limits
from mendgraph.nodes.workspace.sandboxes.backends import AUTO
from mendgraph.nodes.workspace.sandboxes.sandbox import SCRATCH

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.evidence.linters import Diagnostic, ProjectTool

_RUNNER, _REQUEST = "/run/checks/runner.py", "/run/checks/request.json"
_LARGEST_ANSWER: Final = 1_000_000  # bytes that are kept of a program's output
_START_S: Final = 5.0
"""Seconds that the program of the examples may take in addition, to start and to hide denied files."""
_ENV: Final = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "MYPY_CACHE_DIR": f"{SCRATCH}/mypy",
    "RUFF_CACHE_DIR": f"{SCRATCH}/ruff",
    "COVERAGE_FILE": f"{SCRATCH}/coverage",
}
"""Settings of common tools that would write into the workspace."""
_PROJECT_ENV: Final = {**_ENV, "CI": "1", "CARGO_TARGET_DIR": SCRATCH, "GOCACHE": f"{SCRATCH}/go"}
"""The same with those of the tools that run a project's own checks."""
_PYTHON: Final = (
    'IFS="\n"; for p in $PYTHONS; do if "$p" -I -c "" 2>/dev/null; then PATH="${p%/*}:$PATH" exec "$p" "$@"; fi; done;'
    ' exec python3 "$@"'
)
"""A shell script that starts the project's own Python if it runs in the sandbox, else the system's."""
_NOT_FOUND: Final = 127
_NO_PYTHON: Final = "There is no Python that commands can see."
_INPUT: Final = "/run/checks/input"
_TOOL: Final = 'PATH="$TOOLS:$PATH"; exec "$@" <"$INPUT"'
"""A shell script that starts a program of the project, or of the system."""


@dataclass(frozen=True)
class RanTests:
    """The results of tests.

    Attributes:
        name: the program and the file; also the name of a failure if no single test is known.
        passed: the number of passing tests, or None if it is not known.
        failed: the output of each failing test.
        near: the failing tests that ran a changed line.
        lines: the changed lines that any test ran, by path.
        error: why nothing was run.
        passing: the passing tests except `changed`.
        changed: the passing tests that the session changed, with the lines that each ran, by path.
        skipped: the number of skipped tests.
        skip_reason: the most frequent reason.
        timed_out: whether they did not end in time, which is then the only failure.
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
    timed_out: bool = False


_TESTS: Final = TypeAdapter(RanTests)  # written by code of the workspace
_FAILED_TEST: Final = re.compile(
    r"^[ \t]*(?:(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?|(?:FAIL|ERROR): (\w+ \(.+\))|test (\S+) \.\.\. FAILED"
    r"|FAIL[ \t]+(\S+\.[cm]?[jt]sx?)(?: \(.*\)| \[.*\])?|(?<=  )\d+\) (.+)"
    r"|(?:(?P<here>--- FAIL: |not ok \d+ (?:- )?)|(?:[\u2716\u2715\u25cf]|(?P<vitest>\u00d7)) )(.+?)"
    r"(?: \([\d.]+ ?m?s\)|(?(vitest) \d+ms)| #.*)?)$",
    re.MULTILINE,
)
"""Names of failing tests as pytest, unittest, cargo, go, TAP, node, jest, vitest and mocha print them. Behind `here`,
the reason follows below."""
_NO_TEST_RAN: Final = re.compile(
    r"(?m)^(?:Ran 0 tests|test result: ok\. 0 passed; 0 failed; 0 ignored|(?:# |\u2139 )tests 0$|[ \t]*0 passing"
    r"|No tests found|\?[ \t]+\S+[ \t]+\[no test files\]|ok[ \t].*\[no tests to run\])"
)
_TEST_RAN: Final = re.compile(
    r"(?m)^(?:Ran [1-9]|test result: ok\. (?!0 passed; 0 failed; 0 ignored)|(?:# |\u2139 )tests [1-9]"
    r"|[ \t]*[1-9]\d* passing|Tests:.* [1-9]\d* (?:passed|total)|ok[ \t]+\S+[ \t](?!.*\[no tests to run\]))"
)
"""Lines of unittest, cargo, node, mocha, jest and go, from which it follows whether any test ran."""
_DETAILS: Final = 600  # characters of the output of a failing test
_READ_ONLY: Final = re.compile(
    r"\bEROFS\b|Read-only file system|ENOENT: no such file or directory, mkdir", re.IGNORECASE
)
"""The last is what Node.js says of a folder and its parents."""
_STYLE: Final = re.compile(r"\x1b\[[\d;]*m")
_SKIPPED: Final = re.compile(r"(?m)^.*?\b(?:(\d+) (?:skipped|ignored)|skipped=(\d+)|skipped (\d+)$).*$")
"""The number of skipped tests in the summary of a test runner."""


@dataclass(frozen=True)
class CheckRules:
    """Which checks a run has.

    Attributes:
        commands: the user's checks, each a command line of an installed program, or of one of the workspace by its
            relative path (`.venv/bin/pytest -q`). Exit code 0 means passed.
        timeout_s: seconds for each command and each test file.
        examples_timeout_s: seconds for all examples of one edit.
        readable: more folders of the machine that programs may read.
        evidence: whether examples of docstrings and of the request and the project's tests run.
        diagnostics: whether the project's linters look at edits.
        formatting: whether the project's formatter formats edits.
        limits: what these may use.
        sandbox: a kind of `choose_sandbox`.
    """

    commands: tuple[str, ...] = ()
    timeout_s: float = 60.0
    examples_timeout_s: float = 5.0
    readable: tuple[str, ...] = ()
    evidence: bool = True
    diagnostics: bool = False
    formatting: bool = False
    limits: ResourceLimits = field(default_factory=evidence_limits)
    sandbox: str = AUTO


def open_checks(
    root: str,
    rules: CheckRules,
    denied: NameRule,
    contents: ContentJudge = lambda _: None,
    refused: NameRule = never,
) -> "Checks | ToolError":
    """Return the checks of a run in the workspace `root`.

    The error is INVALID_ARGUMENT for a command that is no command line, and UNAVAILABLE if no sandbox starts.

    Args:
        root: the workspace.
        rules: the checks.
        denied: the workspace-relative names that no program may see.
        contents: the files that no program may see because of their content.
        refused: the absolute names in `readable` folders that no program may see.
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
    """Runs checks in one workspace, one at a time. Raises ScopeOverError when the call is over. See `open_checks`.

    `unusable` says why linters and formatters are not started again, "" if they are not installed. `baselines` has the
    last old diagnostics of each linter, with what they were computed from. `writing` names the tests and commands that
    need a workspace in which they can write.
    """

    commands: Commands
    rules: CheckRules
    lines: Mapping[str, list[str]] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    baselines: dict[str, tuple[object, "Sequence[Diagnostic]"]] = field(default_factory=dict)
    writing: set[str] = field(default_factory=set)

    def in_scope(self, scope: CancellationScope | None) -> Self:
        """Return the same checks for one call: when `scope` is over, none is started, and a running one is killed."""
        if scope is None:
            return self
        return replace(self, commands=self.commands.in_scope(scope))

    def run_examples(self, modules: list[JsonMap], seconds: float = inf) -> list[JsonMap] | ToolError:
        """Run the examples of modules, in the form that `runner` describes, in `seconds` at most.

        The Python of the first module's project runs them.

        The error is UNAVAILABLE if they cannot be run, and RESOURCE_LIMIT if they use too much.
        """
        limit = min(seconds, self.rules.examples_timeout_s)
        request = {"root": self.commands.root, "seconds": limit, "modules": modules}
        files = {_REQUEST: json.dumps(request).encode()}
        runners = self.runners(modules[0]["path"])
        commands, argv = self._python(files, runners, runners.pythons, ["-I", "-B", _RUNNER, "examples", _REQUEST])
        result = commands.run(argv, timeout_s=limit + _START_S)

        if isinstance(result, ToolError):
            return result
        if result.exit_code == _NOT_FOUND:
            return _unavailable(_NO_PYTHON)
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
        """Run a test file of the workspace. The error is UNAVAILABLE if it cannot be run.

        Args:
            path: the file.
            seconds: the time limit.
            lines: the changed lines by path.
            changed: the changed tests of the file, as `changed_tests` names them.
            before: old bytes that take the place of files.
        """
        request = {"root": self.commands.root, "path": path, "lines": lines or {}, "changed": sorted(changed)}
        files = {_REQUEST: json.dumps(request).encode(), **self._replaced(before)}
        runners = self.runners(path)
        commands, argv = self._python(files, runners, runners.pytest_pythons, ["-B", _RUNNER, "tests", _REQUEST])

        def results(result: CommandResult) -> RanTests | ToolError:
            if result.exit_code == _NOT_FOUND:
                return _unavailable(_NO_PYTHON)

            try:
                answer = _TESTS.validate_json(result.stdout.head + result.stdout.tail)
            except ValueError:  # it ended early, whatever its exit code is
                return _results_of(path, replace(result, exit_code=result.exit_code or 1))

            return _unavailable(f"{path} was not run: {answer.error}.") if answer.error else answer

        return self._run(path, commands, argv, seconds, results, runners.folder)

    def run_command(
        self, command: str | Command, seconds: float = inf, before: Mapping[str, bytes] | None = None
    ) -> RanTests | ToolError:
        """Run a configured command line, or a command that runs the project's tests.

        The error is NOT_FOUND if the program of a command line is not installed, and UNAVAILABLE if a command cannot be
        run.
        """
        files = self._replaced(before)

        if isinstance(command, str):
            commands = self.commands.read_only(files, _ENV)
            return self._run(command, commands, self.lines[command], seconds, partial(_results_of, command))

        if command.lacks:
            return _unavailable(f"{command.name} was not run: {command.lacks} is not installed.")

        def results(result: CommandResult) -> RanTests | ToolError:
            if result.timed_out:
                return _unavailable(f"{command.name} took longer than {result.limit_s:.3g} s.")
            if command.is_python and result.exit_code == _NOT_FOUND:
                return _unavailable(_NO_PYTHON)

            printed = _printed(result)
            if not result.exit_code and _NO_TEST_RAN.search(printed) and not _TEST_RAN.search(printed):
                return _unavailable(f"{command.name} ran no test.")

            return _results_of(command.name, result)

        runners = find_runners(self.commands.root, command.folder)
        commands = self.commands.read_only(files, {**_PROJECT_ENV, **runners.env}, self.rules.limits, runners.readable)
        argv = command.line.split()
        if command.is_python:
            commands, argv = self._python(files, runners, runners.pythons, ["-B", *argv[1:]])

        return self._run(command.name, commands, argv, seconds, results, command.folder)

    def run_tool(
        self,
        tool: "ProjectTool",
        files: Sequence[str],
        seconds: float,
        before: Mapping[str, bytes] | None = None,
        text: str = "",
    ) -> CommandResult | None:
        """Run a linter or formatter of the project on files; None if it has no result.

        One that is not installed, takes longer or uses too much becomes `unusable`. `before` has old bytes that take
        the place of files; `text` is the standard input.
        """
        from mendgraph.nodes.execute_tools.evidence.linters import FORMAT_SCRIPT, LINE_FORMAT

        if tool.name in self.unusable:
            return None

        runners = find_runners(self.commands.root, tool.folder)
        folders = [python.rpartition("/")[0] for python in runners.pythons]
        for folder in with_parents(tool.folder):
            folders.append(os.path.join(self.commands.root, folder, "node_modules/.bin"))

        added = {FORMAT_SCRIPT: LINE_FORMAT, _INPUT: text.encode(), **self._replaced(before)}
        env = {**_PROJECT_ENV, **runners.env, "TOOLS": ":".join(folders), "INPUT": _INPUT}
        commands = self.commands.read_only(added, env, self.rules.limits, runners.readable)
        argv = ["sh", "-c", _TOOL, "sh", *tool.command(*files)]
        result = commands.run(argv, tool.folder or ".", seconds)

        if isinstance(result, ToolError):
            return None

        if result.timed_out or result.limit is not None:
            words = result.limit or f"took longer than {result.limit_s:.2g} s."
            self.unusable[tool.name] = f"{tool.name} {words}"
        elif result.exit_code == _NOT_FOUND:
            self.unusable[tool.name] = ""
        else:
            return result

        return None

    def runners(self, path: str = "") -> Runners:
        """Return the programs that run the tests for a file of the workspace."""
        return find_runners(self.commands.root, posixpath.dirname(path))

    def _replaced(self, before: Mapping[str, bytes] | None) -> dict[str, bytes]:
        return {f"{self.commands.root}/{path}": data for path, data in (before or {}).items()}

    def _run(
        self,
        name: str,
        commands: Commands,
        argv: Sequence[str],
        seconds: float,
        results: Callable[[CommandResult], RanTests | ToolError],
        folder: str = "",
    ) -> RanTests | ToolError:
        """Run tests in a folder of the read-only workspace, and if they fail because of that, on a copy.

        If the workspace cannot be copied, or no time is left, the first results count.
        """
        limit = min(seconds, self.rules.timeout_s)
        deadline = monotonic_s() + seconds
        on_copy = commands.on_copy(deadline)
        is_writing = name in self.writing

        if is_writing or not commands.sandbox.mounts_root:
            result = on_copy.run(argv, folder or ".", timeout_s=limit)
            if not isinstance(result, ToolError):
                return results(result)
            if not is_writing:
                return result

        result = commands.run(argv, folder or ".", min(limit, deadline - monotonic_s()))
        if isinstance(result, ToolError):
            return result

        tests = results(result)
        failed = isinstance(tests, ToolError) or bool(tests.failed)
        if not failed or result.timed_out or is_writing or not _READ_ONLY.search(_printed(result)):
            return tests

        result = on_copy.run(argv, folder or ".", timeout_s=limit)
        if isinstance(result, ToolError):
            return tests

        self.writing.add(name)
        return results(result)

    def _python(
        self, files: Mapping[str, bytes], runners: Runners, pythons: Sequence[str], arguments: list[str]
    ) -> tuple[Commands, list[str]]:
        """Return what runs the program `runner` by the first Python that starts, and its command."""
        program = Path(__file__).with_name("runner.py").read_bytes()
        env = {**_ENV, "PYTHONS": "\n".join(pythons)}
        commands = self.commands.read_only({_RUNNER: program, **files}, env, self.rules.limits, runners.readable)
        return commands, ["sh", "-c", _PYTHON, "sh", *arguments]


def _results_of(name: str, result: CommandResult) -> RanTests | ToolError:
    """Return the results of tests by the output of their program, or RESOURCE_LIMIT if it used too much."""
    text = _STYLE.sub("", last_words(result.stdout, result.stderr))
    if result.limit is not None:
        message = f"{name} {result.limit}"
        if text:
            message += f"\n{text}"

        return ToolError(code=ToolErrorCode.RESOURCE_LIMIT, message=message)

    if result.timed_out:
        failure = f"{name} does not end within {result.limit_s:.3g} s."
        return RanTests(name, failed={name: failure}, timed_out=True)

    printed = _printed(result)
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


def _printed(result: CommandResult) -> str:
    """Return both outputs without colours."""
    return _STYLE.sub("", f"{output_text(result.stdout)}\n{output_text(result.stderr)}")


def _unavailable(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def _malformed(command: str, reason: str) -> ToolError:
    message = f"The check {quoted(command)} is not a command line ({reason}): write it as in a terminal, without pipes."
    return invalid(message)
