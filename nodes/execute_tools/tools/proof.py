"""What tests that pass prove: they are run again on what files held before the session changed them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.evidence.checks import RanTests
from mendgraph.nodes.execute_tools.evidence.evidence_gate import Distinction, distinguish, new_names
from mendgraph.nodes.execute_tools.evidence.weakened import has_settings, is_test, selects_otherwise
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.files.text_files import text_of
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.names import IS_TEST
from mendgraph.nodes.language.request import module_of
from mendgraph.nodes.records import ToolError

MOST_REPLACED: Final = 50  # changed files whose texts are put back to see what was so already
MOST_WALKED: Final = 5_000  # names of the workspace among which tests are looked for
INSTALLED: Final = frozenset({"site-packages", "node_modules"})  # folders of what other people wrote
Run: TypeAlias = Callable[..., RanTests | ToolError]
"""Runs tests, in `seconds` at most, with what files held `before` in their place."""
_AT_FIRST: Final = "on the files before the session's first change"


class PassedTests(NamedTuple):
    """Tests of a file or a command that passed, and how to run them again."""

    name: str
    now: RanTests
    run: Run
    suffixes: tuple[str, ...]
    changed: Collection[str]
    configured: bool


@dataclass
class Proof:
    """What is proved in one call, which ends at `deadline`.

    It `holds` where something passed that verifies; `proven` are the files of which that has run a changed line, and
    `distinct` says what changed tests are worth. `reasons` are sentences about what is not known, or does not count.
    """

    context: ToolContext
    deadline: float
    holds: bool = False
    proven: set[str] = field(default_factory=set)
    distinct: list[Distinction] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, lines: Mapping[str, Collection[int]]) -> None:
        """Take in what verifies, and the changed lines that it ran."""
        self.holds = True
        self.proven.update(path for path, numbers in lines.items() if numbers)

    @cached_property
    def session(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        """What the files that the session has changed held before its first change, and hold now.

        A new one held nothing. None is what was not kept, and what is gone now.
        """
        first: dict[str, str] = {}
        for change in self.context.changes:
            first.setdefault(change.path, change.sha256_before)

        first |= self.context.session_start()
        both_states: dict[str, tuple[bytes | None, bytes | None]] = {}

        for path, sha256 in first.items():
            content = self.context.workspace.read_file(path)
            old = self.context.backup(sha256) if sha256 else b""
            both_states[path] = old, None if isinstance(content, ToolError) else content.data

        return {path: states for path, states in both_states.items() if states[0] != states[1]}

    @cached_property
    def old_code(self) -> dict[str, bytes] | str:
        """What these files held but tests and what they need, to be put in their place; or why that is not possible."""
        code: dict[str, bytes] = {}

        for path, (old, new) in self.session.items():
            belongs_to_tests = is_test(path) or has_settings(path) or (not old and IS_TEST.search(path))
            if new is None or belongs_to_tests:
                continue
            if old is None:
                return f"what {path} held is not kept"

            code[path] = old

        if len(code) <= MOST_REPLACED:
            return code

        return f"more than {MOST_REPLACED} files were changed"

    @cached_property
    def old_settings(self) -> dict[str, bytes] | str:
        """What the files held that select or run tests in another way now; or why that cannot be put in their place."""
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
        """What the session has added to Python files: definitions and modules."""
        python = {path: data for path, data in self.session.items() if path.endswith(".py")}
        texts = (((text_of(old or b"") or ""), (text_of(new or b"") or "")) for old, new in python.values())
        return new_names(texts) | {module_of(path) for path, (old, _) in python.items() if old == b""}

    def weigh(self, passed_tests: Iterable[PassedTests]) -> None:
        """Find out which of the passing tests verify: those that the session changed run on its first files as well."""
        for passed in filter(None, map(self._with_old_settings, passed_tests)):
            now = passed.now
            if now.passed is None:
                self._weigh_command(passed)
                continue

            others = now.passed > len(now.changed)
            if others:
                self.add(now.lines)

            if not now.changed:
                continue

            then = self._at_first(passed)
            gone = {module_of(path) for path, (_, new) in self.session.items() if new is None}

            if then:
                distinct = distinguish(now, then, self.new_names, gone)
            else:
                distinct = Distinction(unknown=(*now.changed,))

            self.distinct.append(distinct)
            for test in {*now.changed}.difference(distinct.indistinct):
                self.add(now.changed[test])

            if then and distinct.unknown:
                why = "they do not end there, or need what was deleted"
                self.reasons.append(f"{listed(distinct.unknown)} did not run {_AT_FIRST}: {why}.")

    def _with_old_settings(self, passed: PassedTests) -> PassedTests | None:
        """The same with those tests that also pass with the settings of before; None, and a reason, where none count.

        A test that the session has changed may need the new settings; it is left out then.
        """
        now = passed.now
        settings = self.old_settings
        if not settings:
            return passed

        if isinstance(settings, str):
            self.reasons.append(f"Nothing is verified: {settings}.")
            return None

        where = f"with {listed(settings)} as before"
        then = self._again(passed, settings)
        if isinstance(then, str):
            self.reasons.append(f"{passed.name} did not run {where}: {then}.")
            return None

        failed = [test for test in then.failed if test not in now.failed]
        if now.passed is None and not failed:
            return passed

        existing = [test for test in failed if not _is_of(test, passed.changed)]
        missing = existing or [test for test in now.changed if test not in then.changed]
        verification = replace(
            now,
            changed={test: lines for test, lines in now.changed.items() if test in then.changed},
            passing=tuple(test for test in now.passing if test in then.passing),
        )
        proof = now.passed is not None and not existing and bool(verification.changed or verification.passing)

        if missing or not proof:
            verb = "do" if missing[1:] else "does"
            self.reasons.append(f"{listed(missing or [passed.name])} {verb} not pass {where}.")

        if not proof:
            return None

        return passed._replace(now=replace(verification, passed=len(verification.changed) + len(verification.passing)))

    def _weigh_command(self, passed: PassedTests) -> None:
        """The same for a command, whose tests are not known one by one."""
        tests = {path: old for path, (old, _) in self.session.items() if is_test(path) and old is not None}

        if passed.configured:
            weighed = any(distinction.indistinct for distinction in self.distinct)
            alone = self._again(passed, tests) if weighed else passed.now
            self.holds |= isinstance(alone, str) or not alone.failed

            return

        changed = [path for path in tests if path.endswith(passed.suffixes)]
        then = self._at_first(passed) if changed else None

        if then is None or then.failed:
            self.distinct.append(Distinction(failed_before=(*then.failed,) if then else ()))
            self.holds = True
            return

        self.distinct.append(Distinction(indistinct=(*changed,)))
        names = (entry.path for entry in islice(self.context.workspace.walk(), MOST_WALKED))
        others = (path for path in names if path.endswith(passed.suffixes) and path not in changed)
        self.holds |= any(is_test(path) and not INSTALLED & {*path.split("/")} for path in others)

    def _at_first(self, passed: PassedTests) -> RanTests | None:
        """What became of the tests on the files before the session's first change; None, and a reason, if unknown."""
        then = self._again(passed, self.old_code)
        if isinstance(then, RanTests):
            return then

        self.reasons.append(f"{passed.name} did not run {_AT_FIRST}: {then}.")
        return None

    def _again(self, passed: PassedTests, before: dict[str, bytes] | str) -> RanTests | str:
        """What becomes of the tests with what these files held before; a reason instead comes back as it is."""
        remaining_s = self.deadline - monotonic_s()
        if isinstance(before, str) or remaining_s <= 0:
            if isinstance(before, str):
                return before
            return "no time is left"

        if before:
            then = passed.run(seconds=remaining_s, before=before)
        else:
            then = passed.now

        if isinstance(then, ToolError):
            return then.message.rstrip(".")

        return then


def _is_of(test: str, names: Collection[str]) -> bool:
    """Whether a runner means one of these tests by this name, which may have its file, its class and parameters."""
    dotted = f".{test.partition('[')[0].replace('::', '.')}"
    return any(dotted.endswith(f".{name}") for name in names)
