"""What run_checks runs, in which order, and what it tells of that."""

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
from mendgraph.nodes.execute_tools.evidence.evidence_gate import DAMAGE, Distinction, brought, failed_already, plan_gate
from mendgraph.nodes.execute_tools.evidence.examples import (
    FAILING,
    Example,
    Origin,
    Result,
    Status,
    as_request,
    both,
    definitions,
    docstring_examples,
    failures,
    read_run,
    task_examples,
)
from mendgraph.nodes.execute_tools.evidence.runners import LOOKED_FOR
from mendgraph.nodes.execute_tools.evidence.weakened import changed_tests, is_test
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.files.text_files import LARGEST_TEXT, text_of
from mendgraph.nodes.execute_tools.registry import RequestHints, ToolAnswer, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.proof import INSTALLED, MOST_REPLACED, MOST_WALKED, PassedTests, Proof, Run
from mendgraph.nodes.execute_tools.tools.saving import LoadedText, load_text, text_before
from mendgraph.nodes.language.display import count_of, listed
from mendgraph.nodes.language.request import module_of, read_request
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

MOST_TOLD = 5  # failures that one result names
LONGEST_OUTPUT = 600  # characters of a failing program's output that are told
MOST_TESTS = 5  # test files that one call runs
MOST_LOOKED_AT = 200  # Python files whose imports are read, tests first
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
    """What is told. Of what is `traced` it is known which of the `changed` lines it has executed."""

    proof: Proof
    skips: Counter[str] = field(default_factory=Counter)
    ran: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    not_found: dict[str, str] = field(default_factory=dict)
    old_failures: dict[str, str] = field(default_factory=dict)
    lines: dict[str, set[int]] = field(default_factory=dict)
    traced: bool = True
    changed: Collection[str] = ()

    def note(self, lines: Mapping[str, Iterable[int]]) -> None:
        """Take in the changed lines that a passing program ran."""
        for path, numbers in lines.items():
            if line_numbers := {*numbers}:
                self.lines.setdefault(path, set()).update(line_numbers)

    def output(self) -> ToolAnswer:
        if self.failed:
            message = "\n".join(self.failed[:MOST_TOLD])
            return ToolError(code=ToolErrorCode.CHECK_FAILED, message=message)

        lines = [f"{path}:{line_range}" for path, numbers in self.lines.items() for line_range in _ranges(numbers)]
        kinds = {
            name: [*chain(*(getattr(distinction, name) for distinction in self.proof.distinct))]
            for name in Distinction._fields
        }
        is_shown = bool(kinds["failed_before"] or kinds["new_code"])
        unreached = self.proof.holds and self.traced and not is_shown and bool(self.changed)
        unreached &= self.proof.proven.isdisjoint(self.changed)

        if self.not_found:
            unseen = [f"Nothing checked {listed([*self.not_found])}."]
        else:
            unseen = []

        why = [*self.proof.reasons, *self.not_run]

        if self.ran:
            why = [*why, *unseen]
        else:
            why = why or [*self.not_found.values()]

        if unreached:
            why = [f"Nothing that passed was seen to run a changed line ({', '.join(self.ran)}).", *why]

        reason = " ".join(dict.fromkeys(why[:MOST_TOLD]))
        checks = "passed" if self.proof.holds and not unreached else "none"
        if checks == "none" and kinds["indistinct"]:
            checks = "indistinct"
            reason = ""

        details: JsonMap = {} if checks != "none" and not reason else {"reason": reason}
        details |= {name: names[:MOST_NAMED] for name, names in kinds.items() if names and name != "unknown"}
        if self.old_failures:
            details["failed_already"] = dict(islice(self.old_failures.items(), MOST_TOLD))

        if self.skips:
            details |= {"skipped": self.skips.total(), "skip_reason": self.skips.most_common(1)[0][0]}

        return ToolOutput.ok(checks=checks, ran=self.ran, lines=lines, **details)


def check(context: ToolContext, paths: Sequence[str]) -> ToolAnswer:
    """Run the checks of these files: see the tool `run_checks`."""
    deadline = monotonic_s() + min(context.timeout_s, context.seconds_left)
    texts = dict(_texts(context, paths))
    python = {path: text for path, text in texts.items() if path.endswith(".py")}
    report = _Report(Proof(context, deadline))

    if context.hints is not None:
        report.failed += _unmet(context, context.hints, texts)

    if isinstance(context.checks, ToolError):
        report.not_run.append(context.checks.message)
    elif context.checks is None:
        report.not_run.append("Checks are turned off.")
    else:
        checks = context.checks.in_scope(context.scope)
        checking = _Checking(context, checks, texts, python, report, deadline)

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


def _unmet(context: ToolContext, hints: RequestHints, texts: Mapping[str, str]) -> list[str]:
    """What a small model has left undone in these files, and in others that use what it was to move."""
    moved = hints.moved_names()
    users: dict[str, str] = {}
    if moved and any(path.endswith(".py") for path in texts):
        others = _texts(context, islice(_python_files(context), MOST_LOOKED_AT))
        users = {path: text for path, text in others if any(name in text for name in moved)}

    return hints.unfinished_requests(users | dict(texts))


def _texts(context: ToolContext, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The files among them that are there and are texts, by their real names."""
    for path in paths:
        loaded = load_text(context, path)
        if isinstance(loaded, LoadedText) and len(loaded.file.text) <= LARGEST_TEXT:
            yield loaded.path, loaded.file.text


@dataclass
class _Checking:
    """What is run in one call, in the order in which it is told. `python` are the Python files of `texts`."""

    context: ToolContext
    checks: Checks
    texts: Mapping[str, str]
    python: Mapping[str, str]
    report: _Report
    deadline: float
    passed: list[PassedTests] = field(default_factory=list)

    @cached_property
    def before(self) -> dict[str, bytes] | None:
        """What the files that the turn has changed held before it, nothing for new ones; None where that is not known.

        A file that is gone now cannot be put back without changing the workspace. Before the first change, a model that
        is not small is told all that fails.
        """
        if not self.context.changes and self.context.hints is None:
            return None

        first: dict[str, str] = {}
        for change in self.context.changes:
            first.setdefault(change.path, change.sha256_before)

        hashes = {path: sha256 for path, sha256 in first.items() if self.context.workspace.exists(path)}
        backups = {path: self.context.backup(sha256) if sha256 else b"" for path, sha256 in hashes.items()}
        contents = {path: data for path, data in backups.items() if data is not None}
        gone = any(sha256 for path, sha256 in first.items() if path not in hashes)

        if gone or len(contents) < len(backups) or len(backups) > MOST_REPLACED:
            return None

        return contents

    @cached_property
    def lines(self) -> dict[str, list[int]]:
        """The lines of Python files that the turn has changed or added, but those that say nothing when they run."""
        numbers_by_file: dict[str, list[int]] = {}

        for path, text in self.python.items():
            if (old := (self.before or {}).get(path)) is not None:
                matcher = difflib.SequenceMatcher(None, (text_of(old) or "").splitlines(), text.splitlines())
                changed = (range(*opcode[3:]) for opcode in matcher.get_opcodes() if opcode[0] != "equal")
                idle = _idle_lines(text)
                numbers_by_file[path] = [at + 1 for place in changed for at in place if at + 1 not in idle]

        return numbers_by_file

    @cached_property
    def defined(self) -> frozenset[str]:
        """What the files define."""
        return frozenset(name for text in self.texts.values() for name in _DEFINED.findall(text))

    @cached_property
    def own(self) -> dict[str, frozenset[Example]]:
        """The examples of each file that the turn itself has written, and that prove nothing."""
        first = {path: text_before(self.context, path, text) for path, text in self.python.items()}
        return {path: brought(first[path], text, self.context.task) for path, text in self.python.items()}

    def run_examples(self) -> None:
        """Those of all files in one sandbox; the task's come first. A gated run's files are at least loaded."""
        every = {path: _examples(self.context.task, path, text, self.own[path]) for path, text in self.python.items()}
        examples = {path: found for path, found in every.items() if found or self.context.evidence_required}
        if not examples:
            return

        modules = [
            {**as_request(path, self.python[path], found), "lines": self.lines.get(path, [])}
            for path, found in examples.items()
        ]

        if isinstance(answers := self.checks.run_examples(modules, self.deadline - monotonic_s()), ToolError):
            self.report.not_run.append(answers.message)
            return

        for (path, examples_of_file), answer in zip(examples.items(), answers, strict=True):
            run = read_run(answer, len(examples_of_file))
            if run.loaded:
                results = self._newly_failing(path, examples_of_file, run.results)
                messages = [
                    words for _, words in failures(examples_of_file, results, self.checks.rules.examples_timeout_s)
                ]
            else:
                damaged = run.own and (DAMAGE.match(run.error) or _CIRCULAR in run.error)
                if damaged:
                    messages = [f"{path} cannot be imported: {run.error}."]
                else:
                    messages = []

            self.report.failed += messages
            own_examples = self.own[path].intersection(examples_of_file)
            old = [
                result
                for example, result in zip(examples_of_file, run.results, strict=True)
                if example not in own_examples
            ]
            passed = sum(result.status is Status.PASSED for result in old)

            if not messages and passed:
                self.report.ran.append(f"{count_of(passed, 'example')} of {path}")
                lines = {path: () if own_examples else answer.get("lines", ())}
                self.report.proof.add(lines)
                self.report.note(lines)

    def _newly_failing(self, path: str, examples: tuple[Example, ...], now: Sequence[Result]) -> Sequence[Result]:
        """The results without those of docstrings that failed before, unless the task repairs what they are about."""
        request = read_request(self.context.task)
        failing = [at for at, result in enumerate(now) if result.status in FAILING]
        if self.before is None or all(examples[at].origin is Origin.TASK for at in failing):
            return now

        old = now
        plan = None

        if path in self.before:
            text = text_of(self.before[path]) or ""
            plan = plan_gate(path, text, self.python[path], self.context.task, text)
            answers = self.checks.run_examples([as_request(path, text, examples)], self.deadline - monotonic_s())

            if isinstance(answers, ToolError):
                old = ()
            else:
                old = read_run(answers[0], len(examples)).results

        words = frozenset(re.findall(r"\w+", self.context.task))
        results_left = list(now)

        for at in failing:
            example = examples[at]
            old_one = example.origin is Origin.DOCSTRING and example not in self.own[path]
            failed = old_one and len(old) > at and old[at].status in FAILING
            meant = not words & self.defined or example.name.rpartition(".")[2] in words

            if failed and not (request.repairs and (meant or (plan is not None and example in plan.meant))):
                results_left[at] = Result()
                self._tell_old([f"an example of {example.name or path}"])

        return results_left

    def run_tests(self, paths: Sequence[str]) -> None:
        """The project's tests for the files, and why there are none."""
        paths_given = [posixpath.normpath(path) for path in paths]
        tests = _test_files(self.context, paths_given)

        for test in list(dict.fromkeys(test for tests_of_path in tests.values() for test in tests_of_path))[
            :MOST_TESTS
        ]:
            before, after = self.report.proof.session.get(test, (b"", b""))
            changed = changed_tests(text_of(before or b"") or "", text_of(after or b"") or "")
            run = partial(self.checks.run_tests, test, lines=self.lines, changed=changed)
            self.take(run, changed=changed)

        commands = self.checks.runners().commands
        for command in commands:
            if any(path.endswith(command.suffixes) for path in paths_given):
                self.take(partial(self.checks.run_command, command), suffixes=command.suffixes)

        for path in (path_given for path_given in paths_given if path_given not in self.report.lines):
            if path.endswith(".py") and not tests[path]:
                places = f"{', '.join(_possible_tests(path)) or 'tests'}, and what imports it"

                if self.own.get(path):
                    new = ", and its examples are as new as its code"
                else:
                    new = ""

                self.report.not_found[path] = f"No test of {path} was found (looked for {places}){new}."
            elif not path.endswith((".py", *(suffix for each in commands for suffix in each.suffixes))):
                self.report.not_found[path] = f"No test runner for {path} was found (looked for {LOOKED_FOR})."

    def take(
        self,
        run: Run,
        *,
        configured: bool = False,
        suffixes: tuple[str, ...] = ("",),
        changed: Collection[str] = (),
    ) -> None:
        """Run tests and note what became of them; `configured` ones have to be able to run.

        `suffixes` are those of the files that a command is for, `changed` the session's tests of a file.
        """
        now = run(seconds=self.deadline - monotonic_s())
        if isinstance(now, ToolError):
            used_up = configured and now.code is ToolErrorCode.RESOURCE_LIMIT
            (self.report.failed if used_up else self.report.not_run).append(now.message)
            return

        file = now.name.partition(" ")[2] if now.passed is not None else now.name
        then = self._then(now, run, configured=configured) if now.failed else None
        absent: dict[str, str] = {}

        for test, output in now.failed.items():
            name, words = self._absent(output)
            if words and (then is None or test in then.failed or self._is_declared(name)):
                absent[test] = f"{file} {words}"

        self.report.not_run += absent.values()
        judged = replace(now, near=now.near if self.before else (*now.failed,))
        already = failed_already(judged, then, self.report.proof.new_names) if then else []

        if then and self.context.hints is not None:
            tests_wanted = self.context.hints.tests_of_request(already, judged, then, self.defined)
            already = [test for test in already if test not in tests_wanted]

        if configured and now.name in already:
            already.remove(now.name)

        old = {test: _told(file, now.failed[test]) for test in already if test not in absent}
        self._tell_old(old)
        self.report.old_failures |= old

        if counted := [outputs for test, outputs in now.failed.items() if test not in {*already, *absent}]:
            self.report.failed.append(_told(file, counted[0]))
        elif now.passed or (now.passed is None and not now.failed):
            self.report.traced &= now.passed is not None
            self.report.ran.append(now.name if now.passed is None else f"{now.name}: {count_of(now.passed, 'test')}")
            self.report.skips.update({now.skip_reason: now.skipped} if now.skipped else {})

            for lines in (now.lines, *now.changed.values()):
                self.report.note(lines)

            self.passed.append(PassedTests(file, now, run, suffixes, changed, configured))
            if configured:
                self.report.not_found.clear()
        elif not now.failed:
            reason = f": {now.skip_reason}" if now.skip_reason else ""
            self.report.not_run.append(f"All tests of {file} were skipped{reason}.")

    def _then(self, now: RanTests, run: Run, *, configured: bool) -> RanTests | None:
        """What became of the same tests before the turn, None where that is not known."""
        if self.before is None or (configured and not self.before):
            return None

        if self.before:
            then = run(seconds=self.deadline - monotonic_s(), before=self.before)
        else:
            then = now

        return None if isinstance(then, ToolError) else then

    def _absent(self, output: str) -> tuple[str, str]:
        """What a failing test lacks, where it is the name of a package, and the words for it; "" for nothing."""
        for line in output.splitlines():
            absent = _ABSENT.search(line)
            is_missing_program = line.endswith("not found") and _SHELL.search(line) is not None
            if absent is not None or is_missing_program:
                break
        else:
            return "", ""

        if absent is None:
            name = ""
        else:
            name = absent["module"] or absent["package"] or ""

        candidates = (f"{folder}{name}{end}" for folder in ("", "src/") for end in ("", ".py"))
        if not name:
            return "", f"cannot be run here: {line.strip()}"
        if any(map(self.context.workspace.exists, candidates)):
            return "", ""

        return name, f"needs {name}, which is not installed where checks can see it."

    def _is_declared(self, package: str) -> bool:
        """Whether the session has changed a manifest, and it names this package."""
        changed = self.report.proof.session.items()
        texts = (new or b"" for path, (_, new) in changed if _MANIFEST.fullmatch(posixpath.basename(path)))
        return package != "" and any(package.encode() in text for text in texts)

    def _tell_old(self, names: Collection[str]) -> None:
        if names:
            verb = "are" if len(names) > 1 else "is"
            names_text = listed([*names], MOST_TOLD)
            self.report.not_run.insert(0, f"{names_text} failed already before the change, and {verb} not counted.")


def _idle_lines(text: str) -> set[int]:
    """The lines that are executed whether or not the code is used, heads of definitions, and their documentation."""
    tree = parse(text)
    nodes = () if isinstance(tree, SyntaxProblem) else ast.walk(tree)
    numbers: set[int] = set()

    for node in nodes:
        if isinstance(node, Function | ast.ClassDef):
            first = node.body[0]
            words = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            head = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            numbers.update(range(head, (first.end_lineno or 0) + 1 if words else first.lineno))

    return numbers


def _examples(task: str, path: str, text: str, own: Collection[Example]) -> tuple[Example, ...]:
    """Those of the turn's `own` only where the task speaks of documentation, which may not be wrong then."""
    names = [name for name in definitions(text) if name and "." not in name]
    examples_asked = task_examples(task, names, posixpath.basename(path).removesuffix(".py"))
    documents = read_request(task).documents
    documented = docstring_examples(text, in_words=bool(task))

    return both(examples_asked, [example for example in documented if documents or example not in own])


def _test_files(context: ToolContext, paths: Sequence[str]) -> dict[str, list[str]]:
    """The project's test files for these files: by their names, or that import them, or what imports them."""
    test = {path: [each for each in _possible_tests(path) if context.workspace.exists(each)] for path in paths}
    paths_left = [path for path in paths if path.endswith(".py") and not test[path]]
    python_files = sorted(_python_files(context) if paths_left else (), key=is_test, reverse=True)
    texts = dict(_texts(context, python_files[:MOST_LOOKED_AT]))

    for path in paths_left:
        importing = _importing(texts, {module_of(path)})
        indirect = _importing(texts, {module_of(file) for file in importing if not is_test(file)})
        test[path] = [*filter(is_test, importing)] or [*filter(is_test, indirect)]

    return test


def _importing(texts: Mapping[str, str], modules: Collection[str]) -> list[str]:
    """Those of the files that import one of these modules, as its last name tells."""
    likely = {path: parse(text) for path, text in texts.items() if any(module in text for module in modules)}
    trees = ((path, tree) for path, tree in likely.items() if not isinstance(tree, SyntaxProblem))
    return [path for path, tree in trees if not {*modules}.isdisjoint(_imported(tree))]


def _python_files(context: ToolContext) -> Iterator[str]:
    """Those of the project itself."""
    walked = (entry.path for entry in context.workspace.walk() if not INSTALLED & {*entry.path.split("/")})
    return (path for path in islice(walked, MOST_WALKED) if path.endswith(".py"))


def _imported(tree: ast.Module) -> Iterator[str]:
    """The parts of all names that stand in imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (getattr(node, "module", "") or "").split(".")
            yield from (part for alias in node.names for part in alias.name.split("."))


def _possible_tests(path: str) -> Iterable[str]:
    folder, file = posixpath.split(path)
    if not file.endswith(".py") or file == "__init__.py":
        return ()
    if is_test(path):
        return (path,)

    inner = folder.removeprefix("src").lstrip("/")
    places = (folder, posixpath.join(folder, "tests"), "tests", posixpath.join("tests", inner), "test", "")
    return dict.fromkeys(posixpath.join(place, f"test_{file}") for place in places)


def _told(name: str, text: str) -> str:
    """What is said of a failure: the last whole lines of it."""
    text = text.strip()
    if not text or text.startswith(f"{name} does not end"):
        return text or f"{name} fails."

    end = text[-LONGEST_OUTPUT:]
    return f"{name} fails:\n{text if end == text else end.partition(chr(10))[2] or end}"


def _ranges(numbers: Collection[int]) -> Iterator[str]:
    """Numbers as `3-7` and `9`."""
    ordered = sorted(numbers)
    starts = [number for number in ordered if number - 1 not in numbers]
    ends = [number for number in ordered if number + 1 not in numbers]

    for start, end in zip(starts, ends, strict=True):
        yield str(start) if start == end else f"{start}-{end}"
