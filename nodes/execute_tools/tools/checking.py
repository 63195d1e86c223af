"""The checks of `run_checks`: find them, run them on the files now and on old versions, compare, state the result."""

import difflib
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice, product
from typing import Final

from mendgraph.nodes.execute_tools.edits.python_text import idle_lines
from mendgraph.nodes.execute_tools.evidence.checks import Checks, RanTests
from mendgraph.nodes.execute_tools.evidence.evidence_gate import (
    DAMAGE,
    Distinction,
    added_by_turn,
    failed_already,
    plan_gate,
)
from mendgraph.nodes.execute_tools.evidence.examples import (
    FAILING,
    Example,
    Origin,
    Result,
    Status,
    as_request,
    definitions,
    docstring_examples,
    failures,
    merged_examples,
    read_run,
    task_examples,
)
from mendgraph.nodes.execute_tools.evidence.runners import LOOKED_FOR, Command, with_parents
from mendgraph.nodes.execute_tools.evidence.weakened import changed_tests, is_test
from mendgraph.nodes.execute_tools.registry import RequestHints, ToolAnswer, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.proof import MOST_REPLACED, PassedTests, Proof, RunTests
from mendgraph.nodes.execute_tools.tools.related_tests import (
    MOST_PARSED,
    find_tests,
    possible_tests,
    python_files,
    read_texts,
    without_django,
)
from mendgraph.nodes.execute_tools.tools.saving import diagnostics_of, text_before
from mendgraph.nodes.language.display import count_of, listed
from mendgraph.nodes.language.request import read_request
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.files.text_files import text_of

MOST_NAMED_FAILURES: Final = 5  # failures that one result names
LONGEST_OUTPUT: Final = 600  # characters of a failing program's output in a result
MOST_TESTS: Final = 5  # test files that one call runs
MOST_NAMED: Final = 200  # tests of one kind that a result names
_DEFINITION: Final = re.compile(r"\b(?:function|const|let|var|class|def|fn|func|type|struct|enum)\s+(\w+)")
_CIRCULAR: Final = "partially initialized module"
_MISSING: Final = re.compile(
    r".*(?:ModuleNotFoundError: No module named '(?P<module>\w+)"
    r"|Cannot find (?:module|package) '(?P<package>[^./'][^']*)"
    r"|you're in the offline mode|GOPROXY=off|Error 127|EROFS|Read-only file system|\bsh: .*not found$"
    r"|django\.core\.exceptions\.(?:ImproperlyConfigured|AppRegistryNotReady)).*",
    re.MULTILINE,
)
"""A line of output that says more of the sandbox, or of what is installed in it, than of the code."""
_MANIFEST: Final = re.compile(r"pyproject\.toml|setup\.(?:cfg|py)|requirements.*\.(?:txt|in)|Pipfile|package\.json")


def check(context: ToolContext, paths: Sequence[str]) -> ToolAnswer:
    """Run the checks of these files: see the tool `run_checks`."""
    deadline = monotonic_s() + min(context.timeout_s, context.seconds_left)
    texts = dict(read_texts(context, paths))
    report = _Report(Proof(context, deadline))

    if context.hints is not None:
        report.failed += _unfinished_requests(context, context.hints, texts)

    if isinstance(context.checks, ToolError):
        report.not_run.append(context.checks.message)
    elif context.checks is None or not (context.checks.rules.evidence or context.checks.rules.commands):
        report.not_run.append("Checks are turned off.")
    else:
        checks = context.checks.in_scope(context.scope)
        checking = _Checking(context, checks, texts, report, deadline)

        if checks.rules.evidence:
            checking.run_examples()
            checking.run_tests(list(map(posixpath.normpath, paths)))
            checking.note_changed_files()

        for command in checks.rules.commands:
            checking.run_check(partial(checks.run_command, command), is_configured=True)

        if not report.failed:
            report.proof.weigh(checking.passed)

    report.diagnostics = diagnostics_of(context).get("new_diagnostics", ())
    return report.output()


def _unfinished_requests(context: ToolContext, hints: RequestHints, texts: Mapping[str, str]) -> list[str]:
    """Return what a small model has left undone in these files, and in others that use what it was to move."""
    moved = hints.moved_names()
    users: dict[str, str] = {}

    if moved and any(path.endswith(".py") for path in texts):
        others = read_texts(context, islice(python_files(context), MOST_PARSED))
        users = {path: text for path, text in others if any(name in text for name in moved)}

    return hints.unfinished_requests(users | dict(texts))


# --- The result


@dataclass
class _Report:
    """The result of one call.

    `lines` are the changed lines that passing checks executed, by path. It is complete if `is_traced`: no command
    passed whose lines are not known. `changed` are the files with changed lines.
    """

    proof: Proof
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    not_found: dict[str, str] = field(default_factory=dict)
    old_failures: dict[str, str] = field(default_factory=dict)
    skips: Counter[str] = field(default_factory=Counter)
    lines: dict[str, set[int]] = field(default_factory=dict)
    diagnostics: Sequence[str] = ()
    changed: Collection[str] = ()
    is_traced: bool = True

    def output(self) -> ToolAnswer:
        if self.failed:
            message = "\n".join(self.failed[:MOST_NAMED_FAILURES])
            return ToolError(code=ToolErrorCode.CHECK_FAILED, message=message)

        tests_by_kind: dict[str, list[str]] = {}
        for name in Distinction._fields:
            tests_by_kind[name] = list(chain.from_iterable(getattr(kinds, name) for kinds in self.proof.distinct))

        is_unreached = self._is_unreached() and not (tests_by_kind["failed_before"] or tests_by_kind["new_code"])
        reason = self._reason(is_unreached=is_unreached)
        checks = "none"
        if self.proof.holds and not is_unreached:
            checks = "passed"
        elif tests_by_kind["indistinct"]:
            checks = "indistinct"
            reason = ""

        details: JsonMap = {}
        if reason or checks == "none":
            details["reason"] = reason

        for name, tests in tests_by_kind.items():
            if tests and name != "unknown":
                details[name] = tests[:MOST_NAMED]

        if self.old_failures:
            details["failed_already"] = dict(islice(self.old_failures.items(), MOST_NAMED_FAILURES))

        if self.skips:
            details["skipped"] = self.skips.total()
            details["skip_reason"] = self.skips.most_common(1)[0][0]

        if self.diagnostics:
            details["diagnostics"] = self.diagnostics

        lines: list[str] = []
        for path, numbers in self.lines.items():
            lines += [f"{path}:{line_range}" for line_range in _ranges(numbers)]

        return ToolOutput.ok(checks=checks, ran=self.passed, lines=lines, **details)

    def _is_unreached(self) -> bool:
        """Return whether something passed, and is known to have executed no changed line."""
        is_known = self.proof.holds and self.is_traced and bool(self.changed)
        return is_known and self.proof.proven.isdisjoint(self.changed)

    def _reason(self, *, is_unreached: bool) -> str:
        reasons = [*self.proof.reasons, *self.not_run]
        if self.passed and self.not_found:
            reasons.append(f"Nothing checked {listed([*self.not_found])}.")
        elif not self.passed and not reasons:
            reasons += self.not_found.values()

        if is_unreached:
            reasons.insert(0, f"Nothing that passed was seen to run a changed line ({', '.join(self.passed)}).")

        return " ".join(dict.fromkeys(reasons[:MOST_NAMED_FAILURES]))

    def add_lines(self, lines: Mapping[str, Sequence[int]]) -> None:
        """Add the changed lines that a passing check executed."""
        for path, numbers in lines.items():
            if numbers:
                self.lines.setdefault(path, set()).update(numbers)

    def ignore_failures(self, names: Collection[str]) -> None:
        """Say that these checks failed before the turn."""
        if names:
            verb = "fail" if len(names) > 1 else "fails"
            subject = listed([*names], MOST_NAMED_FAILURES)
            self.not_run.insert(0, f"{subject} still {verb}, as before the change.")


def _ranges(numbers: Collection[int]) -> Iterator[str]:
    """Yield numbers as `3-7` and `9`."""
    start = None

    for number in sorted(numbers):
        if start is None:
            start = number
        if number + 1 not in numbers:
            yield str(number) if start == number else f"{start}-{number}"
            start = None


# --- The checks


@dataclass
class _Checking:
    """Runs the checks of one call in the order of its result."""

    context: ToolContext
    checks: Checks
    texts: Mapping[str, str]
    report: _Report
    deadline: float
    passed: list[PassedTests] = field(default_factory=list)

    @cached_property
    def python(self) -> dict[str, str]:
        """The Python files of `texts`."""
        return {path: text for path, text in self.texts.items() if path.endswith(".py")}

    @cached_property
    def before(self) -> dict[str, bytes] | None:
        """The bytes of the changed files before the turn (b"" for new ones), or None if they are not known.

        They are not known of a deleted file, which cannot be put back in a read-only workspace, nor before the first
        change of a model that is not small, whose result names all that fails.
        """
        if not self.context.changes and self.context.hints is None:
            return None

        first: dict[str, str] = {}
        for change in self.context.changes:
            first.setdefault(change.path, change.sha256_before)

        contents: dict[str, bytes] = {}
        for path, sha256 in first.items():
            exists = self.context.workspace.exists(path)
            data = self.context.backup(sha256) if sha256 else b""
            if exists and data is not None:
                contents[path] = data
            elif exists or sha256:
                return None

        return contents if len(contents) <= MOST_REPLACED else None

    @cached_property
    def lines(self) -> dict[str, list[int]]:
        """The lines of Python files that the turn has changed, and that are executed only if the code is used."""
        numbers_by_file: dict[str, list[int]] = {}

        for path, text in self.python.items():
            old = (self.before or {}).get(path)
            if old is None:
                continue

            matcher = difflib.SequenceMatcher(None, (text_of(old) or "").splitlines(), text.splitlines())
            changed: set[int] = set()
            for tag, _, _, start, end in matcher.get_opcodes():
                if tag != "equal":
                    changed.update(range(start + 1, end + 1))

            numbers_by_file[path] = sorted(changed - idle_lines(text))

        return numbers_by_file

    def note_changed_files(self) -> None:
        """Note the files whose changed lines a check should run: tests only if nothing else was changed."""
        changed = [path for path, numbers in self.lines.items() if numbers]
        self.report.changed = [path for path in changed if not is_test(path)] or changed

    @cached_property
    def defined(self) -> frozenset[str]:
        """The names that the files define."""
        return frozenset(chain.from_iterable(map(_DEFINITION.findall, self.texts.values())))

    # --- Examples

    @cached_property
    def added_examples(self) -> dict[str, frozenset[Example]]:
        """The examples of each file that the turn itself has written, and that prove nothing."""
        examples: dict[str, frozenset[Example]] = {}
        for path, text in self.python.items():
            first = text_before(self.context, path, text)
            examples[path] = added_by_turn(first, text, self.context.task)

        return examples

    def run_examples(self) -> None:
        """Run the examples of all files in one sandbox; those of the task come first.

        If evidence is required, a file without examples is at least loaded.
        """
        examples: dict[str, tuple[Example, ...]] = {}
        modules: list[JsonMap] = []

        for path, text in self.python.items():
            of_file = self._examples_of(path, text)
            if of_file or self.context.evidence_required:
                examples[path] = of_file
                modules.append({**as_request(path, text, of_file), "lines": self.lines.get(path, [])})

        if not examples:
            return

        answers = self.checks.run_examples(modules, self.deadline - monotonic_s())
        if isinstance(answers, ToolError):
            self.report.not_run.append(answers.message)
            return

        for (path, of_file), answer in zip(examples.items(), answers, strict=True):
            self._note_examples(path, of_file, answer)

    def _examples_of(self, path: str, text: str) -> tuple[Example, ...]:
        """Return the examples of the task and of the file, without those of the turn unless it is about documents."""
        task = self.context.task
        names = [name for name in definitions(text) if name and "." not in name]
        module = posixpath.basename(path).removesuffix(".py")
        documented = docstring_examples(text, in_words=bool(task))
        if not read_request(task).documents:
            documented = tuple(example for example in documented if example not in self.added_examples[path])

        return merged_examples(task_examples(task, names, module), documented)

    def _note_examples(self, path: str, examples: tuple[Example, ...], answer: JsonMap) -> None:
        run = read_run(answer, len(examples))
        messages: list[str] = []

        if run.loaded:
            results = self._without_old_failures(path, examples, run.results)
            messages = [words for _, words in failures(examples, results, self.checks.rules.examples_timeout_s)]
        elif run.own and (DAMAGE.match(run.error) or _CIRCULAR in run.error):
            messages = [f"{path} cannot be imported: {run.error}."]

        self.report.failed += messages
        added = self.added_examples[path].intersection(examples)
        pairs = zip(examples, run.results, strict=True)
        passed = sum(result.status is Status.PASSED and example not in added for example, result in pairs)

        if passed and not messages:
            self.report.passed.append(f"{count_of(passed, 'example')} of {path}")
            lines = {path: () if added else answer.get("lines", ())}
            self.report.proof.add(lines)
            self.report.add_lines(lines)

    def _without_old_failures(
        self, path: str, examples: tuple[Example, ...], now: Sequence[Result]
    ) -> Sequence[Result]:
        """Return the results without docstring examples that failed before, unless the task repairs their subject.

        The subject of a repair is what the task names, and what the turn has changed.
        """
        candidates: list[int] = []
        for at, (example, result) in enumerate(zip(examples, now, strict=True)):
            is_known = example.origin is Origin.DOCSTRING and example not in self.added_examples[path]
            if is_known and result.status in FAILING:
                candidates.append(at)

        if self.before is None or not candidates:
            return now

        old = now
        meant: frozenset[Example] = frozenset()
        if path in self.before:
            text = text_of(self.before[path]) or ""
            plan = plan_gate(path, text, self.python[path], self.context.task, text)
            if plan is not None:
                meant = plan.meant

            answers = self.checks.run_examples([as_request(path, text, examples)], self.deadline - monotonic_s())
            old = () if isinstance(answers, ToolError) else read_run(answers[0], len(examples)).results

        words = frozenset(re.findall(r"\w+", self.context.task))
        is_about_all = words.isdisjoint(self.defined)
        results = list(now)

        for at in candidates[: len(old)]:
            name = examples[at].name
            is_meant = is_about_all or name.rpartition(".")[2] in words or examples[at] in meant
            if old[at].status in FAILING and not (is_meant and read_request(self.context.task).repairs):
                results[at] = Result()
                self.report.ignore_failures([f"an example of {name or path}"])

        return results

    # --- Tests and commands

    def run_tests(self, paths: Sequence[str]) -> None:
        """Run the project's tests for the files, or report why there are none."""
        commands = {path: self.checks.runners(path).commands for path in paths}
        distinct_commands = dict.fromkeys(chain.from_iterable(commands.values()))
        tests_by_path = find_tests(self.context, paths)
        tests = dict.fromkeys(chain.from_iterable(tests_by_path.values()))
        has_django = any(command.is_python for command in distinct_commands)
        if has_django:
            tests = dict.fromkeys(without_django(self.context, tests))

        for test in islice(tests, MOST_TESTS):
            before, after = self.report.proof.session.get(test, (b"", b""))
            changed = changed_tests(text_of(before or b"") or "", text_of(after or b"") or "")
            run = partial(self.checks.run_tests, test, lines=self.lines, changed=changed)
            self.run_check(run, changed=changed)

        for command in distinct_commands:
            if any(command.covers(path) for path in paths):
                self.run_check(partial(self.checks.run_command, command), command=command)

        for path in paths:
            if path in self.report.lines:
                continue

            if path.endswith(".py") and not tests_by_path[path] and not has_django:
                places = f"{', '.join(possible_tests(path)) or 'tests'}, and what imports it"
                new = ", and its examples are as new as its code" if self.added_examples.get(path) else ""
                self.report.not_found[path] = f"No test of {path} was found (looked for {places}){new}."
            elif not path.endswith(".py") and not any(command.covers(path) for command in commands[path]):
                suffixes = chain.from_iterable(command.suffixes for command in commands[path])
                covered = ", ".join(dict.fromkeys(suffixes))
                reason = f"those of the project are for {covered}" if covered else f"looked for {LOOKED_FOR}"
                self.report.not_found[path] = f"No test runner for {path} was found ({reason})."

    def run_check(
        self,
        run: RunTests,
        *,
        is_configured: bool = False,
        command: Command | None = None,
        changed: Collection[str] = (),
    ) -> None:
        """Run tests and report their results.

        Args:
            run: the tests.
            is_configured: whether they are a command of the user.
            command: the command that they are, if it is one of the project.
            changed: the tests that the session has changed.
        """
        now = run(seconds=self.deadline - monotonic_s())
        if isinstance(now, ToolError):
            is_failure = is_configured and now.code is ToolErrorCode.RESOURCE_LIMIT
            (self.report.failed if is_failure else self.report.not_run).append(now.message)
            return

        name = now.name if now.passed is None else now.name.partition(" ")[2]
        if now.failed:
            failure = self._failure_that_counts(name, now, run, is_configured=is_configured)
            if failure:
                self.report.failed.append(failure)
                return

        if now.passed or (now.passed is None and not now.failed):
            self._note_passed(name, now)
            self.passed.append(PassedTests(name, now, run, command, changed, is_configured))
            if is_configured:
                self.report.not_found.clear()
        elif not now.failed:
            reason = f": {now.skip_reason}" if now.skip_reason else ""
            self.report.not_run.append(f"All tests of {name} were skipped{reason}.")

    def _note_passed(self, name: str, now: RanTests) -> None:
        if now.passed is None:
            self.report.is_traced = False
            self.report.passed.append(name)
        else:
            self.report.passed.append(f"{now.name}: {count_of(now.passed, 'test')}")

        if now.skipped:
            self.report.skips[now.skip_reason] += now.skipped

        for lines in (now.lines, *now.changed.values()):
            self.report.add_lines(lines)

    def _failure_that_counts(self, name: str, now: RanTests, run: RunTests, *, is_configured: bool) -> str:
        """Return the first failure that counts, or ""; report what the others lack, or that they are old."""
        then = self._results_before(now, run, is_configured=is_configured)
        missing: dict[str, str] = {}

        for test, output in now.failed.items():
            package, sentence = self._missing_requirement(output)
            if sentence and (then is None or test in then.failed or self._is_declared(package)):
                missing[test] = f"{name} {sentence}"

        self.report.not_run += missing.values()
        already: list[str] = []

        if then is not None:
            judged = now if self.before else replace(now, near=tuple(now.failed))
            already = failed_already(judged, then, self.report.proof.new_names)

            if self.context.hints is not None:
                counted = self.context.hints.tests_of_request(already, judged, then, self.defined)
                already = [test for test in already if test not in counted]

        if is_configured and now.name in already:
            already.remove(now.name)

        slow = already if now.timed_out else []
        self.report.not_run += [f"{now.failed[test].rstrip('.')}, as before the change." for test in slow]
        old = {test: _failure_text(name, now.failed[test]) for test in already if test not in {*missing, *slow}}
        self.report.ignore_failures(old)
        self.report.old_failures |= old

        for test, output in now.failed.items():
            if test not in already and test not in missing:
                is_named = now.passed is None and test != now.name
                return _failure_text(f"{test} of {name}" if is_named else name, output)

        return ""

    def _results_before(self, now: RanTests, run: RunTests, *, is_configured: bool) -> RanTests | None:
        """Return the results of the same tests before the turn, or None if they are not known."""
        if self.before is None or (is_configured and not self.before):
            return None
        if not self.before:
            return now

        then = run(seconds=self.deadline - monotonic_s(), before=self.before)
        return None if isinstance(then, ToolError) else then

    def _missing_requirement(self, output: str) -> tuple[str, str]:
        """Return the name of the package that a failing test lacks, and the end of a sentence; "" for nothing."""
        missing = _MISSING.search(output)
        if missing is None:
            return "", ""

        name = missing["module"] or missing["package"] or ""
        if not name:
            return "", f"cannot be run here: {missing[0].strip()}"

        folders = dict.fromkeys(chain.from_iterable(with_parents(posixpath.dirname(path)) for path in self.texts))
        for folder, candidate in product(folders, (name, f"{name}.py", f"src/{name}", f"src/{name}.py")):
            place = posixpath.join(folder, candidate)
            if self.context.workspace.exists(place) or self._has_changed(place):
                return "", ""

        return name, f"needs {name}, which is not installed where checks can see it."

    def _has_changed(self, place: str) -> bool:
        """Return whether the session has changed or deleted this file, or a file of this folder."""
        session = self.report.proof.session
        return place in session or any(path.startswith(f"{place}/") for path in session)

    def _is_declared(self, package: str) -> bool:
        """Return whether the session has changed a manifest that names this package."""
        for path, (_, new) in self.report.proof.session.items():
            if package and package.encode() in (new or b"") and _MANIFEST.fullmatch(posixpath.basename(path)):
                return True

        return False


def _failure_text(name: str, text: str) -> str:
    """Return the failure with the last complete lines of its output."""
    text = text.strip()
    if not text:
        return f"{name} fails."
    if text.startswith(f"{name} does not end"):
        return text

    end = text[-LONGEST_OUTPUT:]
    if end != text:
        end = end.partition("\n")[2] or end

    return f"{name} fails:\n{end}"
