"""The tool that runs what can be run to see whether the work is right."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from mendgraph.nodes.execute_tools.argument_schema import ToolArguments
from mendgraph.nodes.execute_tools.edits.request import read_request
from mendgraph.nodes.execute_tools.evidence.checks import NOTHING_RAN, Checks
from mendgraph.nodes.execute_tools.evidence.evidence_gate import DAMAGE, LARGEST_TEXT, unmet
from mendgraph.nodes.execute_tools.evidence.examples import (
    Example,
    Status,
    as_request,
    both,
    definitions,
    docstring_examples,
    failures,
    read_run,
    task_examples,
)
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.processes.commands import CommandResult, last_words
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.saving import LoadedText, load_text
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode

MOST_TOLD = 5  # failures that one result names
LONGEST_OUTPUT = 600  # characters of a failing program's output that are told
MOST_TESTS = 5  # test files that one call runs
_CIRCULAR = "partially initialized module"
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


class RunChecksArguments(ToolArguments):
    """Which files are to be looked at; the configured checks are always run."""

    paths: list[str] = Field(default=[], max_length=100, description="Files that were changed.")


@dataclass
class _Report:
    ran: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    def output(self) -> ToolAnswer:
        if self.failed:
            message = "\n".join(self.failed[:MOST_TOLD])
            return ToolError(code=ToolErrorCode.CHECK_FAILED, message=message)
        if self.not_run:
            return ToolOutput.ok(checks="unavailable", ran=self.ran, reason=self.not_run[0])
        return ToolOutput.ok(checks="passed" if self.ran else "none", ran=self.ran)


@tool(effect=Effect.READ, path_fields=("paths",), cacheable=False, self_timed=True, offered=False)
def run_checks(context: ToolContext, arguments: RunChecksArguments) -> ToolAnswer:
    """Run the configured checks, and the examples and tests of the given files.

    The examples of the files' docstrings, those that the task gives in its words, what it asks of names, the project's
    test files for them, and the configured commands; nothing of it changes the workspace.
    """
    deadline = monotonic_s() + min(context.timeout_s, context.seconds_left)
    texts = dict(_texts(context, arguments.paths))
    report = _Report(failed=unmet(context.task, texts))
    if texts and read_request(context.task).expectations and not report.failed:
        report.ran.append("what the task asks of names")
    if isinstance(context.checks, ToolError):
        report.not_run.append(context.checks.message)
    elif context.checks is not None:
        checks = context.checks.in_scope(context.scope)
        if checks.rules.evidence:
            _run_examples(context, checks, texts, report, deadline)
            for path in _test_files(context, arguments.paths):
                _run_tests(context, checks, path, report, deadline)
        for command in checks.rules.commands:
            result = checks.run_command(command, deadline - monotonic_s())
            _note(report, command, result)
    return report.output()


def _texts(context: ToolContext, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The Python files among them that are there, by their real names."""
    for path in paths:
        loaded = load_text(context, path) if path.endswith(".py") else None
        if isinstance(loaded, LoadedText) and len(loaded.file.text) <= LARGEST_TEXT:
            yield loaded.path, loaded.file.text


def _run_examples(
    context: ToolContext, checks: Checks, texts: dict[str, str], report: _Report, deadline: float
) -> None:
    """Those of all files in one sandbox; the task's before the docstrings'. A gated run's files are at least loaded."""
    every = {path: _examples(context.task, path, text) for path, text in texts.items()}
    examples = {path: found for path, found in every.items() if found or context.gated}
    if not examples:
        return
    modules = [as_request(path, texts[path], found) for path, found in examples.items()]
    if isinstance(answers := checks.run_examples(modules, deadline - monotonic_s()), ToolError):
        report.not_run.append(answers.message)
        return
    for (path, found), answer in zip(examples.items(), answers, strict=True):
        run = read_run(answer, len(found))
        if run.loaded:
            told = [words for _, words in failures(found, run.results, checks.rules.examples_timeout_s)]
        else:
            damaged = run.own and (DAMAGE.match(run.error) or _CIRCULAR in run.error)
            told = [f"{path} cannot be imported: {run.error}."] if damaged else []
        report.failed += told
        if not told and any(each.status is Status.PASSED for each in run.results):
            report.ran.append(f"examples of {path}")


def _examples(task: str, path: str, text: str) -> tuple[Example, ...]:
    names = [name for name in definitions(text) if name and "." not in name]
    asked = task_examples(task, names, posixpath.basename(path).removesuffix(".py"))
    return both(asked, docstring_examples(text))


def _test_files(context: ToolContext, paths: Sequence[str]) -> list[str]:
    """The project's test files for these files, and those among them, as far as they exist."""
    found = dict.fromkeys(name for path in paths for name in _possible_tests(posixpath.normpath(path)))
    return [name for name in found if context.workspace.exists(name)][:MOST_TESTS]


def _possible_tests(path: str) -> Iterable[str]:
    folder, file = posixpath.split(path)
    if not file.endswith(".py") or file == "__init__.py":
        return ()
    if file.startswith("test_") or file.endswith("_test.py"):
        return (path,)
    inner = folder.removeprefix("src").lstrip("/")
    places = (folder, posixpath.join(folder, "tests"), "tests", posixpath.join("tests", inner), "test", "")
    return (posixpath.join(place, f"test_{file}") for place in places)


def _run_tests(context: ToolContext, checks: Checks, path: str, report: _Report, deadline: float) -> None:
    if isinstance(result := checks.run_tests(path, deadline - monotonic_s()), CommandResult):
        if result.exit_code == NOTHING_RAN:
            return
        if result.limit is not None:
            report.not_run.append(f"{path} {result.limit}")
            return
        missing = _MISSING.search(_output(result))
        places = [f"{folder}{missing[1]}{end}" for folder in ("", "src/") for end in ("", ".py")] if missing else []
        if result.exit_code and missing and not any(map(context.workspace.exists, places)):
            report.not_run.append(f"{path} needs {missing[1]}, which is not installed where checks can see it.")
            return
    _note(report, path, result)


def _note(report: _Report, name: str, result: CommandResult | ToolError) -> None:
    if isinstance(result, ToolError):
        report.not_run.append(result.message)
    elif result.limit is not None:
        report.failed.append("\n".join(filter(None, (f"{name} {result.limit}", _output(result)))))
    elif result.timed_out:
        report.failed.append(f"{name} does not end within {result.limit_s:.3g} s.")
    elif result.exit_code:
        report.failed.append(f"{name} fails:\n{_output(result)}" if _output(result) else f"{name} fails.")
    else:
        report.ran.append(name)


def _output(result: CommandResult) -> str:
    """The last whole lines of what it printed."""
    text = last_words(result.stdout, result.stderr)
    if len(text) <= LONGEST_OUTPUT:
        return text
    end = text[-LONGEST_OUTPUT:]
    return end.partition("\n")[2] or end
