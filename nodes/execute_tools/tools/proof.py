"""What tests that pass prove: they run again on what files held before the session changed them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.evidence.checks import RanTests
from mendgraph.nodes.execute_tools.evidence.evidence_gate import Distinction, distinguish, new_names
from mendgraph.nodes.execute_tools.evidence.runners import Command
from mendgraph.nodes.execute_tools.evidence.weakened import has_settings, is_test, selects_otherwise
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.names import IS_TEST
from mendgraph.nodes.language.request import module_of
from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.files.text_files import text_of
from mendgraph.nodes.workspace.files.tree_walk import is_installed

MOST_REPLACED: Final = 50  # changed files that old versions replace in one run
MOST_WALKED: Final = 5_000  # names of the workspace among which tests are looked for
RunTests: TypeAlias = Callable[..., RanTests | ToolError]
"""Runs tests in `seconds` at most, with the bytes `before` in place of files."""
_AT_FIRST: Final = "on the files before the session's first change"


class PassedTests(NamedTuple):
    """Tests of a file or a command that passed, and how to run them again.

    `command` is that of the project, if they are not those of a file or of the user.
    """

    name: str
    now: RanTests
    run: RunTests
    command: Command | None
    changed: Collection[str]
    is_configured: bool

    def covers(self, path: str) -> bool:
        """Return whether the tests may be for this file."""
        return self.command is None or self.command.covers(path)


@dataclass
class Proof:
    """What the checks of one call, which ends at `deadline`, prove.

    It `holds` if a check passed that verifies; `proven` are the files of which such a check has run a changed line, and
    `distinct` says what changed tests are worth. `reasons` say what is not known or does not count.
    """

    context: ToolContext
    deadline: float
    holds: bool = False
    proven: set[str] = field(default_factory=set)
    distinct: list[Distinction] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, lines: Mapping[str, Collection[int]]) -> None:
        """Add a check that verifies, by the changed lines that it ran."""
        self.holds = True
        self.proven.update(path for path, numbers in lines.items() if numbers)

    @cached_property
    def session(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        """The bytes of each file that the session has changed, before its first change (b"" for a new file) and now.

        None stands for bytes that were not stored, and for a file that does not exist now.
        """
        hashes: dict[str, str] = {}
        for change in self.context.changes:
            hashes.setdefault(change.path, change.sha256_before)

        hashes |= self.context.session_start()
        contents: dict[str, tuple[bytes | None, bytes | None]] = {}

        for path, sha256 in hashes.items():
            old = self.context.backup(sha256) if sha256 else b""
            file = self.context.workspace.read_file(path)
            new = None if isinstance(file, ToolError) else file.data
            if old != new:
                contents[path] = old, new

        return contents

    @cached_property
    def old_code(self) -> dict[str, bytes] | str:
        """The old bytes of changed files that are neither tests nor settings, or why they cannot be put back."""
        code: dict[str, bytes] = {}

        for path, (old, new) in self.session.items():
            belongs_to_tests = is_test(path) or has_settings(path) or (not old and IS_TEST.search(path))
            if new is None or belongs_to_tests:
                continue
            if old is None:
                return f"what {path} held is not kept"

            code[path] = old

        if len(code) > MOST_REPLACED:
            return f"more than {MOST_REPLACED} files were changed"

        return code

    @cached_property
    def old_settings(self) -> dict[str, bytes] | str:
        """The old bytes of files that select or run tests in another way now, or why they cannot be put back."""
        settings: dict[str, bytes] = {}

        for path, (old, new) in self.session.items():
            if not selects_otherwise(path, text_of(old or b"") or "", text_of(new or b"") or ""):
                continue
            if old is None or new is None:
                return f"{path} was {'deleted' if new is None else 'changed'}, and its old version cannot be run"

            settings[path] = old

        return settings

    @cached_property
    def new_names(self) -> frozenset[str]:
        """The definitions and modules that the session has added to Python files."""
        texts: list[tuple[str, str]] = []
        modules: set[str] = set()

        for path, (old, new) in self.session.items():
            if path.endswith(".py"):
                texts.append((text_of(old or b"") or "", text_of(new or b"") or ""))
                if old == b"":
                    modules.add(module_of(path))

        return new_names(texts) | modules

    def weigh(self, passed_tests: Iterable[PassedTests]) -> None:
        """Decide which of the passing tests verify."""
        for passed in passed_tests:
            counting = self._with_old_settings(passed)
            if counting is None:
                continue
            if counting.now.passed is None:
                self._weigh_command(counting)
            else:
                self._weigh_tests(counting)

    def _with_old_settings(self, passed: PassedTests) -> PassedTests | None:
        """Return those of the tests that also pass with the old settings, or None and add a reason if none count."""
        settings = self.old_settings
        if isinstance(settings, str):
            self.reasons.append(f"Nothing is verified: {settings}.")
            return None
        if not settings:
            return passed

        where = f"with {listed(settings)} as before"
        then = self._run_again(passed, settings)
        if isinstance(then, str):
            self.reasons.append(f"{passed.name} did not run {where}: {then}.")
            return None

        now = passed.now
        failed = [test for test in then.failed if test not in now.failed]
        if now.passed is None and not failed:
            return passed

        changed = {test: lines for test, lines in now.changed.items() if test in then.changed}
        passing = tuple(test for test in now.passing if test in then.passing)
        existing = [test for test in failed if not _is_one_of(test, passed.changed)]
        missing = existing or [test for test in now.changed if test not in changed]
        is_proof = now.passed is not None and not existing and bool(changed or passing)

        if missing or not is_proof:
            verb = "do" if len(missing) > 1 else "does"
            self.reasons.append(f"{listed(missing or [passed.name])} {verb} not pass {where}.")
        if not is_proof:
            return None

        return passed._replace(now=replace(now, changed=changed, passing=passing, passed=len(changed) + len(passing)))

    def _weigh_tests(self, passed: PassedTests) -> None:
        """Run tests of a file again, on the files before the first change, if the session changed some of them."""
        now = passed.now
        if (now.passed or 0) > len(now.changed):
            self.add(now.lines)
        if not now.changed:
            return

        distinct = Distinction(unknown=tuple(now.changed))
        then = self._results_at_first(passed)
        if then is not None:
            gone = {module_of(path) for path, (_, new) in self.session.items() if new is None}
            distinct = distinguish(now, then, self.new_names, gone)
            if distinct.unknown:
                why = "they do not end there, or need what was deleted"
                self.reasons.append(f"{listed(distinct.unknown)} did not run {_AT_FIRST}: {why}.")

        self.distinct.append(distinct)
        for test, lines in now.changed.items():
            if test not in distinct.indistinct:
                self.add(lines)

    def _weigh_command(self, passed: PassedTests) -> None:
        """Do the same for a command, whose tests are not known one by one."""
        tests: dict[str, bytes] = {}
        for path, (old, _) in self.session.items():
            if is_test(path) and old is not None:
                tests[path] = old

        if passed.is_configured:
            alone: RanTests | str = passed.now
            if any(distinction.indistinct for distinction in self.distinct):
                alone = self._run_again(passed, tests)

            self.holds |= isinstance(alone, str) or not alone.failed
            return

        changed = [path for path in tests if passed.covers(path)]
        then = self._results_at_first(passed) if changed else None
        if then is not None and not then.failed:
            self.distinct.append(Distinction(indistinct=tuple(changed)))
            self.holds |= self._has_other_tests(passed, changed)
            return

        if then is not None:
            self.distinct.append(Distinction(failed_before=tuple(then.failed)))

        self.holds = True

    def _has_other_tests(self, passed: PassedTests, changed: Collection[str]) -> bool:
        """Return whether the command has tests that the session did not change."""
        for entry in islice(self.context.workspace.walk(), MOST_WALKED):
            path = entry.path
            is_other = passed.covers(path) and path not in changed and is_test(path)
            if is_other and not is_installed(path):
                return True

        return False

    def _results_at_first(self, passed: PassedTests) -> RanTests | None:
        """Return the results on the files before the first change, or None and add the reason."""
        then = self._run_again(passed, self.old_code)
        if isinstance(then, RanTests):
            return then

        self.reasons.append(f"{passed.name} did not run {_AT_FIRST}: {then}.")
        return None

    def _run_again(self, passed: PassedTests, before: dict[str, bytes] | str) -> RanTests | str:
        """Return the results with these old bytes of files, or why they cannot run, such as `before` itself."""
        remaining_s = self.deadline - monotonic_s()
        if isinstance(before, str):
            return before
        if remaining_s <= 0:
            return "no time is left"
        if not before:
            return passed.now

        then = passed.run(seconds=remaining_s, before=before)
        if isinstance(then, ToolError):
            return then.message.rstrip(".")

        return then


def _is_one_of(test: str, names: Collection[str]) -> bool:
    """Return whether the name of a test, perhaps with its file, class and parameters, means one of these tests."""
    dotted = f".{test.partition('[')[0].replace('::', '.')}"
    return any(dotted.endswith(f".{name}") for name in names)
