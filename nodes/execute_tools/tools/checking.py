"""The checks of `run_checks`: what runs, in which order, and what the result says of it."""

import ast
import difflib
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice

from mendgraph.nodes.execute_tools.edits.python_text import Function, SyntaxProblem, parse
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
from mendgraph.nodes.execute_tools.evidence.runners import LOOKED_FOR
from mendgraph.nodes.execute_tools.evidence.weakened import changed_tests, is_test
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.files.text_files import text_of
from mendgraph.nodes.execute_tools.registry import RequestHints, ToolAnswer, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.proof import MOST_REPLACED, PassedTests, Proof, Run
from mendgraph.nodes.execute_tools.tools.related_tests import (
    MOST_PARSED,
    find_tests,
    possible_tests,
    python_files,
    read_texts,
)
from mendgraph.nodes.execute_tools.tools.saving import text_before
from mendgraph.nodes.language.display import count_of, listed
from mendgraph.nodes.language.request import read_request
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

MOST_NAMED_FAILURES = 5  # failures that one result names
LONGEST_OUTPUT = 600  # characters of a failing program's output in a result
MOST_TESTS = 5  # test files that one call runs
MOST_NAMED = 200  # tests of one kind that a result names
_DEFINED = re.compile(r"\b(?:function|const|let|var|class|def|fn|func|type|struct|enum)\s+(\w+)")
_CIRCULAR = "partially initialized module"
_ABSENT = re.compile(
    r"ModuleNotFoundError: No module named '(?P<module>\w+)"
    r"|Cannot find (?:module|package) '(?P<package>[^./'][^']*)"
    r"|you're in the offline mode|GOPROXY=off|Error 127|EROFS|Read-only file system"
)
_SHELL = re.compile(r"\bsh: ")
"""What says more of the sandbox, or of what is installed, than of the code, where it was so before or was asked for."""

_MANIFEST = re.compile(r"pyproject\.toml|setup\.(?:cfg|py)|requirements.*\.(?:txt|in)|Pipfile|package\.json")


@dataclass
class _Report:
    """The result of one call. With `traced` it is known which of the `changed` lines the checks executed."""

    proof: Proof
    skips: Counter[str] = field(default_factory=Counter)
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    not_found: dict[str, str] = field(default_factory=dict)
    old_failures: dict[str, str] = field(default_factory=dict)
    lines: dict[str, set[int]] = field(default_factory=dict)
    traced: bool = True
    changed: Collection[str] = ()

    def add_lines(self, lines: Mapping[str, Iterable[int]]) -> None:
        """Add the changed lines that a passing program executed."""
        for path, numbers in lines.items():
            executed = set(numbers)
            if executed:
                self.lines.setdefault(path, set()).update(executed)

    def output(self) -> ToolAnswer:
        if self.failed:
            message = "\n".join(self.failed[:MOST_NAMED_FAILURES])
            return ToolError(code=ToolErrorCode.CHECK_FAILED, message=message)

        kinds = self._tests_by_kind()
        unreached = self._is_unreached(kinds)
        reason = self._reason(unreached=unreached)
        checks = "passed" if self.proof.holds and not unreached else "none"
        if checks == "none" and kinds["indistinct"]:
            checks = "indistinct"
            reason = ""

        details: JsonMap = {}
        if reason or checks == "none":
            details["reason"] = reason

        for name, tests in kinds.items():
            if tests and name != "unknown":
                details[name] = tests[:MOST_NAMED]

        if self.old_failures:
            details["failed_already"] = dict(islice(self.old_failures.items(), MOST_NAMED_FAILURES))

        if self.skips:
            details["skipped"] = self.skips.total()
            details["skip_reason"] = self.skips.most_common(1)[0][0]

        lines: list[str] = []
        for path, numbers in self.lines.items():
            lines += [f"{path}:{line_range}" for line_range in _ranges(numbers)]

        return ToolOutput.ok(checks=checks, ran=self.passed, lines=lines, **details)

    def _tests_by_kind(self) -> dict[str, list[str]]:
        kinds: dict[str, list[str]] = {name: [] for name in Distinction._fields}
        for distinction in self.proof.distinct:
            for name in kinds:
                kinds[name] += getattr(distinction, name)

        return kinds

    def _is_unreached(self, kinds: Mapping[str, list[str]]) -> bool:
        """Whether something passed, and is known to have executed no changed line."""
        if not self.proof.holds or not self.traced or not self.changed:
            return False
        if kinds["failed_before"] or kinds["new_code"]:
            return False

        return self.proof.proven.isdisjoint(self.changed)

    def _reason(self, *, unreached: bool) -> str:
        reasons = [*self.proof.reasons, *self.not_run]

        if self.passed and self.not_found:
            reasons.append(f"Nothing checked {listed([*self.not_found])}.")
        elif not self.passed and not reasons:
            reasons = [*self.not_found.values()]

        if unreached:
            reasons.insert(0, f"Nothing that passed was seen to run a changed line ({', '.join(self.passed)}).")

        return " ".join(dict.fromkeys(reasons[:MOST_NAMED_FAILURES]))


def check(context: ToolContext, paths: Sequence[str]) -> ToolAnswer:
    """Run the checks of these files: see the tool `run_checks`."""
    deadline = monotonic_s() + min(context.timeout_s, context.seconds_left)
    texts = dict(read_texts(context, paths))
    report = _Report(Proof(context, deadline))

    if context.hints is not None:
        report.failed += _unfinished_requests(context, context.hints, texts)

    if isinstance(context.checks, ToolError):
        report.not_run.append(context.checks.message)
    elif context.checks is None:
        report.not_run.append("Checks are turned off.")
    else:
        checks = context.checks.in_scope(context.scope)
        checking = _Checking(context, checks, texts, report, deadline)

        if checks.rules.evidence:
            checking.run_examples()
            checking.run_tests(paths)
            changed = [path for path, numbers in checking.lines.items() if numbers]
            report.changed = [path for path in changed if not is_test(path)] or changed
        elif not checks.rules.commands:
            report.not_run.append("Checks are turned off.")

        for command in checks.rules.commands:
            checking.take(partial(checks.run_command, command), configured=True)

        if not report.failed:
            report.proof.weigh(checking.passed)

    return report.output()


def _unfinished_requests(context: ToolContext, hints: RequestHints, texts: Mapping[str, str]) -> list[str]:
    """What a small model has left undone in these files, and in others that use what it was to move."""
    moved = hints.moved_names()
    users: dict[str, str] = {}

    if moved and any(path.endswith(".py") for path in texts):
        others = read_texts(context, islice(python_files(context), MOST_PARSED))
        users = {path: text for path, text in others if any(name in text for name in moved)}

    return hints.unfinished_requests(users | dict(texts))


@dataclass
class _Checking:
    """The checks of one call, which run in the order of its result."""

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
        """The bytes of the changed files before the turn, none for new ones; None where that is not known.

        A file that is gone now cannot be put back without changing the workspace. Before the first change, the result
        for a model that is not small names all that fails.
        """
        if not self.context.changes and self.context.hints is None:
            return None

        first: dict[str, str] = {}
        for change in self.context.changes:
            first.setdefault(change.path, change.sha256_before)

        contents: dict[str, bytes] = {}
        for path, sha256 in first.items():
            if not self.context.workspace.exists(path):
                if sha256:
                    return None
                continue

            data = self.context.backup(sha256) if sha256 else b""
            if data is None:
                return None

            contents[path] = data

        return contents if len(contents) <= MOST_REPLACED else None

    @cached_property
    def lines(self) -> dict[str, list[int]]:
        """The lines of Python files that the turn has changed or added and that execute only where the code is used."""
        numbers_by_file: dict[str, list[int]] = {}

        for path, text in self.python.items():
            old = (self.before or {}).get(path)
            if old is None:
                continue

            matcher = difflib.SequenceMatcher(None, (text_of(old) or "").splitlines(), text.splitlines())
            idle = _idle_lines(text)
            numbers: list[int] = []

            for tag, _, _, start, end in matcher.get_opcodes():
                if tag != "equal":
                    numbers += [number for number in range(start + 1, end + 1) if number not in idle]

            numbers_by_file[path] = numbers

        return numbers_by_file

    @cached_property
    def defined(self) -> frozenset[str]:
        """The names that the files define."""
        return frozenset(chain.from_iterable(map(_DEFINED.findall, self.texts.values())))

    @cached_property
    def added_examples(self) -> dict[str, frozenset[Example]]:
        """The examples of each file that the turn itself has written, and that prove nothing."""
        examples: dict[str, frozenset[Example]] = {}
        for path, text in self.python.items():
            first = text_before(self.context, path, text)
            examples[path] = added_by_turn(first, text, self.context.task)

        return examples

    def run_examples(self) -> None:
        """Run the examples of all files in one sandbox; the task's come first.

        Where evidence is required, a file without examples is loaded at least.
        """
        examples: dict[str, tuple[Example, ...]] = {}
        modules: list[JsonMap] = []

        for path, text in self.python.items():
            examples_of_file = _examples(self.context.task, path, text, self.added_examples[path])
            if examples_of_file or self.context.evidence_required:
                examples[path] = examples_of_file
                modules.append({**as_request(path, text, examples_of_file), "lines": self.lines.get(path, [])})

        if not examples:
            return

        answers = self.checks.run_examples(modules, self.deadline - monotonic_s())
        if isinstance(answers, ToolError):
            self.report.not_run.append(answers.message)
            return

        for (path, examples_of_file), answer in zip(examples.items(), answers, strict=True):
            self._note_examples(path, examples_of_file, answer)

    def _note_examples(self, path: str, examples: tuple[Example, ...], answer: JsonMap) -> None:
        run = read_run(answer, len(examples))
        messages: list[str] = []

        if run.loaded:
            results = self._newly_failing(path, examples, run.results)
            messages = [words for _, words in failures(examples, results, self.checks.rules.examples_timeout_s)]
        elif run.own and (DAMAGE.match(run.error) or _CIRCULAR in run.error):
            messages = [f"{path} cannot be imported: {run.error}."]

        self.report.failed += messages
        added = self.added_examples[path].intersection(examples)
        passed = 0

        for example, result in zip(examples, run.results, strict=True):
            if example not in added and result.status is Status.PASSED:
                passed += 1

        if passed and not messages:
            self.report.passed.append(f"{count_of(passed, 'example')} of {path}")
            lines = {path: () if added else answer.get("lines", ())}
            self.report.proof.add(lines)
            self.report.add_lines(lines)

    def _newly_failing(self, path: str, examples: tuple[Example, ...], now: Sequence[Result]) -> Sequence[Result]:
        """The results without those of docstrings that failed before, unless the task repairs what they are about."""
        failing = [at for at, result in enumerate(now) if result.status in FAILING]
        if self.before is None or all(examples[at].origin is Origin.TASK for at in failing):
            return now

        old = now
        meant_by_plan: frozenset[Example] = frozenset()

        if path in self.before:
            text = text_of(self.before[path]) or ""
            plan = plan_gate(path, text, self.python[path], self.context.task, text)
            if plan is not None:
                meant_by_plan = plan.meant

            answers = self.checks.run_examples([as_request(path, text, examples)], self.deadline - monotonic_s())
            old = () if isinstance(answers, ToolError) else read_run(answers[0], len(examples)).results

        repairs = read_request(self.context.task).repairs
        words = frozenset(re.findall(r"\w+", self.context.task))
        names_nothing = words.isdisjoint(self.defined)
        results = list(now)

        for at in failing:
            example = examples[at]
            if example.origin is not Origin.DOCSTRING or example in self.added_examples[path]:
                continue
            if at >= len(old) or old[at].status not in FAILING:
                continue

            meant = names_nothing or example.name.rpartition(".")[2] in words or example in meant_by_plan
            if not (repairs and meant):
                results[at] = Result()
                self._report_old_failures([f"an example of {example.name or path}"])

        return results

    def run_tests(self, paths: Sequence[str]) -> None:
        """Run the project's tests for the files, or report why there are none."""
        paths = [posixpath.normpath(path) for path in paths]
        tests_by_path = find_tests(self.context, paths)
        tests = dict.fromkeys(chain.from_iterable(tests_by_path.values()))

        for test in islice(tests, MOST_TESTS):
            before, after = self.report.proof.session.get(test, (b"", b""))
            changed = changed_tests(text_of(before or b"") or "", text_of(after or b"") or "")
            run = partial(self.checks.run_tests, test, lines=self.lines, changed=changed)
            self.take(run, changed=changed)

        suffixes = [".py"]
        for command in self.checks.runners().commands:
            suffixes += command.suffixes
            if any(path.endswith(command.suffixes) for path in paths):
                self.take(partial(self.checks.run_command, command), suffixes=command.suffixes)

        for path in paths:
            if path in self.report.lines:
                continue

            if path.endswith(".py") and not tests_by_path[path]:
                places = f"{', '.join(possible_tests(path)) or 'tests'}, and what imports it"
                new = ", and its examples are as new as its code" if self.added_examples.get(path) else ""
                self.report.not_found[path] = f"No test of {path} was found (looked for {places}){new}."
            elif not path.endswith(tuple(suffixes)):
                self.report.not_found[path] = f"No test runner for {path} was found (looked for {LOOKED_FOR})."

    def take(
        self,
        run: Run,
        *,
        configured: bool = False,
        suffixes: tuple[str, ...] = ("",),
        changed: Collection[str] = (),
    ) -> None:
        """Run tests and report their results; `configured` ones have to be able to run.

        `suffixes` are those of the files that a command is for, `changed` the session's tests of a file.
        """
        now = run(seconds=self.deadline - monotonic_s())
        if isinstance(now, ToolError):
            if configured and now.code is ToolErrorCode.RESOURCE_LIMIT:
                self.report.failed.append(now.message)
            else:
                self.report.not_run.append(now.message)
            return

        name = now.name if now.passed is None else now.name.partition(" ")[2]
        if now.failed:
            failure = self._count_failures(name, now, run, configured=configured)
            if failure:
                self.report.failed.append(failure)
                return

        if now.passed or (now.passed is None and not now.failed):
            self._note_passed(name, now)
            self.passed.append(PassedTests(name, now, run, suffixes, changed, configured))
            if configured:
                self.report.not_found.clear()
        elif not now.failed:
            reason = f": {now.skip_reason}" if now.skip_reason else ""
            self.report.not_run.append(f"All tests of {name} were skipped{reason}.")

    def _note_passed(self, name: str, now: RanTests) -> None:
        if now.passed is None:
            self.report.traced = False
            self.report.passed.append(name)
        else:
            self.report.passed.append(f"{now.name}: {count_of(now.passed, 'test')}")

        if now.skipped:
            self.report.skips[now.skip_reason] += now.skipped

        for lines in (now.lines, *now.changed.values()):
            self.report.add_lines(lines)

    def _count_failures(self, name: str, now: RanTests, run: Run, *, configured: bool) -> str:
        """The first failure that counts, in words, "" where none does; the others are reported as such."""
        then = self._then(now, run, configured=configured)
        absent: dict[str, str] = {}

        for test, output in now.failed.items():
            package, words = self._absent(output)
            if words and (then is None or test in then.failed or self._is_declared(package)):
                absent[test] = f"{name} {words}"

        self.report.not_run += absent.values()
        already: list[str] = []

        if then is not None:
            near = now.near if self.before else tuple(now.failed)
            judged = replace(now, near=near)
            already = failed_already(judged, then, self.report.proof.new_names)

            if self.context.hints is not None:
                counted = self.context.hints.tests_of_request(already, judged, then, self.defined)
                already = [test for test in already if test not in counted]

        if configured and now.name in already:
            already.remove(now.name)

        old = {test: _failure_text(name, now.failed[test]) for test in already if test not in absent}
        self._report_old_failures(old)
        self.report.old_failures |= old

        for test, output in now.failed.items():
            if test not in already and test not in absent:
                return _failure_text(name, output)

        return ""

    def _then(self, now: RanTests, run: Run, *, configured: bool) -> RanTests | None:
        """The results of the same tests before the turn, None where they are not known."""
        if self.before is None or (configured and not self.before):
            return None
        if not self.before:
            return now

        then = run(seconds=self.deadline - monotonic_s(), before=self.before)
        return None if isinstance(then, ToolError) else then

    def _absent(self, output: str) -> tuple[str, str]:
        """What a failing test lacks: the name of a package, "" for a program; and the words for it, "" for nothing."""
        for line in output.splitlines():
            absent = _ABSENT.search(line)
            is_missing_program = line.endswith("not found") and _SHELL.search(line) is not None
            if absent is not None or is_missing_program:
                break
        else:
            return "", ""

        name = ""
        if absent is not None:
            name = absent["module"] or absent["package"] or ""

        if not name:
            return "", f"cannot be run here: {line.strip()}"

        for candidate in (name, f"{name}.py", f"src/{name}", f"src/{name}.py"):
            if self.context.workspace.exists(candidate):
                return "", ""

        return name, f"needs {name}, which is not installed where checks can see it."

    def _is_declared(self, package: str) -> bool:
        """Whether the session has changed a manifest, and it names this package."""
        for path, (_, new) in self.report.proof.session.items():
            is_manifest = _MANIFEST.fullmatch(posixpath.basename(path)) is not None
            if package and is_manifest and new is not None and package.encode() in new:
                return True

        return False

    def _report_old_failures(self, names: Collection[str]) -> None:
        if names:
            verb = "are" if len(names) > 1 else "is"
            names_text = listed([*names], MOST_NAMED_FAILURES)
            self.report.not_run.insert(0, f"{names_text} failed already before the change, and {verb} not counted.")


def _idle_lines(text: str) -> set[int]:
    """The lines that execute whether or not the code is used: heads of definitions, with their documentation."""
    tree = parse(text)
    if isinstance(tree, SyntaxProblem):
        return set()

    numbers: set[int] = set()

    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            first = node.body[0]
            head = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            end = first.lineno
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                end = (first.end_lineno or 0) + 1

            numbers.update(range(head, end))

    return numbers


def _examples(task: str, path: str, text: str, added: Collection[Example]) -> tuple[Example, ...]:
    """The task's examples and the file's; those that the turn `added` only where the task asks for documentation."""
    names = [name for name in definitions(text) if name and "." not in name]
    module = posixpath.basename(path).removesuffix(".py")
    documented = docstring_examples(text, in_words=bool(task))
    if not read_request(task).documents:
        documented = tuple(example for example in documented if example not in added)

    return merged_examples(task_examples(task, names, module), documented)


def _failure_text(name: str, text: str) -> str:
    """The failure in words: the last complete lines of its output."""
    text = text.strip()
    if not text:
        return f"{name} fails."
    if text.startswith(f"{name} does not end"):
        return text

    end = text[-LONGEST_OUTPUT:]
    if end != text:
        end = end.partition("\n")[2] or end

    return f"{name} fails:\n{end}"


def _ranges(numbers: Collection[int]) -> Iterator[str]:
    """Numbers as `3-7` and `9`."""
    start = None

    for number in sorted(numbers):
        if start is None:
            start = number
        if number + 1 not in numbers:
            yield str(number) if start == number else f"{start}-{number}"
            start = None
