from dataclasses import replace
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.evidence.checks import CheckRules, Checks, RanTests, open_checks
from mendgraph.nodes.execute_tools.evidence.evidence_gate import (
    Distinction,
    GatePlan,
    distinguish,
    gate_verdict,
    plan_gate,
)
from mendgraph.nodes.execute_tools.evidence.examples import ModuleRun, Result, Status
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.write_file import write_file
from mendgraph.nodes.records import ToolError, ToolErrorCode, ToolResult
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from tests.extent import slow
from tests.row_tables import rows
from tests.workspace.conftest import Bench

BEFORE = '''"""Statistics."""

RATE = 2


def half(x):
    """
    >>> half(4)
    2.0
    """
    return x / RATE


def median(values):
    """
    >>> median([1, 2, 3])
    2
    >>> median([1, 2, 3, 4])
    2.5
    """
    return sorted(values)[len(values) // 2]


def untouched():
    """
    >>> untouched()
    1
    """
    return 0
'''

MEDIAN = BEFORE.replace("// 2]", "// 3]")
FIX, HINTS, CHANGE = "Fix median", "Add type hints to median", "Change median to use the lower of both"
PASSED, DIFFERENT = Result(Status.PASSED), Result(Status.DIFFERENT, "9")
RAISED, ENDLESS, UNKNOWN = Result(Status.RAISED, "ValueError: x"), Result(Status.ENDLESS), Result()
DAMAGED = Result(Status.RAISED, "NameError: name 'x' is not defined")
ALL = ["half(4)", "median([1, 2, 3])", "median([1, 2, 3, 4])", "untouched()"]


def planned(before: str | None, after: str, task: str, path: str = "stats.py", first: str | None = None) -> GatePlan:
    plan = plan_gate(path, before, after, task, before or "" if first is None else first)
    assert plan is not None
    return plan


def sources(plan: GatePlan) -> list[str]:
    return [example.source.strip() for example in plan.examples]


def run(*results: Result) -> ModuleRun:
    return ModuleRun(results, loaded=True, own=True)


def gone(error: str, *, at_fault: bool = True) -> ModuleRun:
    return ModuleRun((), loaded=False, own=at_fault, error=error)


NEW = "    return 0\n\n\ndef new():\n    '''\n    >>> new()\n    3\n    '''\n    return 3\n"


@rows(
    ("// 2]", "// 3]", ["median([1, 2, 3])", "median([1, 2, 3, 4])", "half(4)", "untouched()"]),
    ("RATE = 2", "RATE = 3", ALL),
    ("x / RATE", "x * RATE", ALL),
    ("return 0", "return 2", ["untouched()", *ALL[:-1]]),
    ("    return 0\n", NEW, ALL),
    ("def half", "def halve", ALL[1:]),
    ("2.0", "7.0", None),
    ("Statistics", "Numbers", None),
    ("return 0", "return  0  # nothing", None),
    ("return 0", "return (", None),
)
def test_examples_of_changed_definitions_run_first(old: str, new: str, chosen: list[str] | None) -> None:
    plan = plan_gate("stats.py", BEFORE, BEFORE.replace(old, new), "Do it", BEFORE)
    assert (None if plan is None else sources(plan)) == chosen


def test_only_python_files_are_judged() -> None:
    assert [plan_gate(path, BEFORE, MEDIAN, FIX, BEFORE) for path in ("notes.md", "a.pyi")] == [None, None]


def test_changed_docstring_does_not_hide_its_old_examples() -> None:
    after = MEDIAN.replace("    2.5\n", "    3\n")
    wants = [example.want for example in planned(BEFORE, after, FIX).examples]
    assert wants[:2] == ["2\n", "2.5\n"]
    spoken = planned(BEFORE, after, "Correct median and its docstring")
    assert [example.want for example in spoken.examples][:2] == ["2\n", "3\n"]
    assert [example.want for example in spoken.fresh] == ["3\n"]


def test_task_examples_come_first_and_replace_those_of_docstrings() -> None:
    plan = planned(BEFORE, MEDIAN, "median([1, 2, 3, 4]) gives 2, expected 2.5. median([5]) should be 5.")
    assert sources(plan)[:3] == ["median([1, 2, 3, 4])", "median([5])", "median([1, 2, 3])"]


SLUG = "def slug(t):\n    '''\n    >>> slug('A')\n    'a'\n    '''\n    return t\n"


@rows(
    ("", []),
    ("It needs a docstring.", ["slug('A')"]),
    ("Like this:\n\n>>> slug('A')\n'a'", ["slug('A')"]),
    ("Fix what is wrong:\n\n>>> slug('A')\n'a'", []),
)
def test_example_in_a_new_file_counts_if_the_task_says_so(task: str, docstring_sources: list[str]) -> None:
    plan = planned(None, SLUG, f"Create slug.py with a function slug: slug('A b') gives 'a-b'. {task}", "slug.py")
    assert (sources(plan), plan.compare) == (["slug('A b')", *docstring_sources], False)
    failing = gate_verdict(plan, run(PASSED, DIFFERENT), None, 5.0) if docstring_sources else None
    assert failing == ("slug('A') gives 9, but must give 'a'." if docstring_sources else None)


def test_example_from_before_the_turn_is_known_despite_a_rename() -> None:
    changed = BEFORE.replace("    2.5\n", "    3\n")
    plan = planned(changed, changed.replace("// 2]", "// 3]"), FIX, first=BEFORE)
    assert [example.want for example in plan.examples][:2] == ["2\n", "2.5\n"]
    renamed = planned(BEFORE, BEFORE.replace("half", "halve").replace("x / RATE", "x"), "Rename half to halve")
    assert "halve(4)" in sources(renamed)


@rows(
    ("Case does not matter: slug('A') == 'a'", DAMAGED, True),
    ("slug('A') gives 'a'. It is called by app.py.", DAMAGED, True),
    ("slug('A') gives 'a'. It is called by app.py.", DIFFERENT, False),
    ("slug('A') gives 'a'. It is called by app.py.", PASSED, False),
)
def test_task_examples_of_a_new_file_are_judged(task: str, now: Result, refused: bool) -> None:
    plan = planned(None, "def slug(t):\n    return x\n", f"Put slug into slug.py. {task}", "slug.py")
    assert (sources(plan), plan.compare) == (["slug('A')"], False)
    words = "slug('A') raises NameError: name 'x' is not defined, but must give 'a'."
    assert gate_verdict(plan, run(now), None, 5.0) == (words if refused else None)


BOTH = "Fix median in stats.py and report.py"


@rows(
    (FIX, [PASSED, PASSED], [], False),
    (FIX, [PASSED, DIFFERENT], [], True),
    (FIX, [ENDLESS, UNKNOWN], [], True),
    (HINTS, [PASSED, DIFFERENT], [PASSED, DIFFERENT], False),
    (HINTS, [DIFFERENT, PASSED], [PASSED, PASSED], True),
    (HINTS, [DIFFERENT, PASSED], [UNKNOWN, PASSED], False),
    (CHANGE, [DIFFERENT, DIFFERENT], [PASSED, DIFFERENT], False),
    (CHANGE, [DAMAGED, UNKNOWN], [PASSED, DIFFERENT], True),
    (CHANGE, [ENDLESS, UNKNOWN], [PASSED, DIFFERENT], True),
    (BOTH, [PASSED, DIFFERENT], [PASSED, DIFFERENT], False),
    (BOTH, [DIFFERENT, PASSED], [PASSED, PASSED], True),
    ("Write examples for median", [PASSED, DIFFERENT], [PASSED, DIFFERENT], False),
)
def test_edit_is_refused_if_examples_prove_it_wrong(
    task: str, now: list[Result], then: list[Result], refused: bool
) -> None:
    plan, others = planned(BEFORE, MEDIAN, task), [PASSED, PASSED]
    message = gate_verdict(plan, run(*now, *others), run(*(then or [UNKNOWN] * 2), *others), 5.0)
    assert (message is not None) is refused


@rows(
    ("median([5]) should be 5", True),
    ("Change median so that median([5]) returns 5", True),
    ("Change stats.py and app.py so that median([5]) returns 5", False),
)
def test_task_example_refuses_an_edit_only_if_one_file_is_named(task: str, refused: bool) -> None:
    plan = planned(BEFORE, MEDIAN, task)
    result = run(DIFFERENT, PASSED, PASSED, PASSED, PASSED)
    message = gate_verdict(plan, result, result, 5.0)
    assert message == ("median([5]) gives 9, but must give 5." if refused else None)


def test_examples_of_unedited_definitions_do_not_count() -> None:
    after = BEFORE.replace("x / RATE", "x / 2")
    plan = planned(BEFORE, after, "half(3) should be 1.5. median([5]) should be 5.")
    assert sources(plan)[:2] == ["half(3)", "median([5])"]
    result = run(PASSED, DIFFERENT, PASSED, PASSED, PASSED, PASSED)
    assert gate_verdict(plan, result, result, 5.0) is None


def test_at_most_three_failures_are_reported() -> None:
    plan = planned(BEFORE, MEDIAN, " ".join(f"median([{n}]) should be {n}." for n in range(5)))
    message = gate_verdict(plan, run(*[DIFFERENT] * 9), run(*[DIFFERENT] * 9), 5.0)
    assert message == " ".join(f"median([{n}]) gives 9, but must give {n}." for n in range(3))


@rows(
    (gone("NameError: name 'List' is not defined"), run(), True),
    (gone("NameError: x"), gone("NameError: x"), False),
    (gone("ImportError: x", at_fault=False), run(), False),
    (gone("NameError: name 're' is not defined"), None, True),
    (gone("IndexError: no argument"), None, False),
)
def test_newly_unimportable_file_is_reported(after: ModuleRun, before: ModuleRun | None, reported: bool) -> None:
    message = gate_verdict(planned(BEFORE, MEDIAN, FIX), after, before, 5.0)
    assert message == (f"the file cannot be imported: {after.error}." if reported else None)


BARE = "def add(a, b):\n    return a - b\n"
WRONG, RIGHT = BARE.replace("a - b", "b - a"), BARE.replace("-", "+")
TASK = "add(2, 3) should return 5"


class Asked(Checks):
    """Stands for the checks, and records calls."""

    def __init__(self, *, evidence: bool, starts: bool = True) -> None:
        self.rules, self.asked = CheckRules(("make test",), evidence=evidence), False
        self.starts = starts

    def in_scope(self, scope: CancellationScope | None) -> "Asked":
        assert scope is None
        return self

    def run_examples(self, modules: Any, seconds: float = 0.0) -> Any:
        self.asked = seconds > 0
        if not self.starts:
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message="no sandbox")
        return [{"loaded": True, "own": True, "error": "", "results": [["different", "1"]]}] * len(modules)


def edited(bench: Bench, checks: Checks | ToolError | None, new: str) -> ToolResult:
    """The result of an edit that turns `BARE` into this text."""
    bench.put({"calc.py": BARE})
    files_read = bench.run(read_file, path="calc.py").files_read
    context = ToolContext(bench.workspace, files_read, checks=checks, task=TASK, evidence_required=True, timeout_s=30.0)
    result: ToolResult = write_file.s(context, path="calc.py", content=new).result
    return result


@rows(True, False)
def test_edit_is_judged_only_with_evidence_on(evidence: bool, bench: Bench) -> None:
    checks = Asked(evidence=evidence)
    error = edited(bench, checks, WRONG).error
    assert (checks.asked, error is not None) == (evidence, evidence)
    assert bench.bytes_of("calc.py").decode() == (BARE if evidence else WRONG)


def test_edit_is_accepted_if_its_examples_cannot_run(bench: Bench) -> None:
    checks = Asked(evidence=True, starts=False)
    assert (edited(bench, checks, WRONG).error, checks.asked) == (None, True)
    assert bench.bytes_of("calc.py").decode() == WRONG


@rows(("notes.md", None), ("../calc.py", ToolErrorCode.PERMISSION_DENIED))
def test_file_outside_or_without_examples_is_not_judged(path: str, code: ToolErrorCode | None, bench: Bench) -> None:
    checks = Asked(evidence=True)
    context = ToolContext(bench.workspace, checks=checks, task=TASK, evidence_required=True, timeout_s=30.0)
    error = write_file.s(context, path=path, content=WRONG).result.error
    assert (error and error.code, checks.asked) == (code, False)


@slow
@rows((WRONG, True), (RIGHT, False), ("from lib import add\n", False))
def test_edit_is_judged_in_the_sandbox(after: str, refused: bool, bench: Bench) -> None:
    checks = open_checks(str(bench.root.resolve()), CheckRules(), lambda _: False)
    if isinstance(checks, ToolError):
        pytest.skip(checks.message)
    error = edited(bench, checks, after).error
    assert (error.code if error else None) == (ToolErrorCode.CHECK_FAILED if refused else None)
    assert bench.bytes_of("calc.py").decode() == (BARE if refused else after)
    assert [path.name for path in bench.root.rglob("*")] == ["calc.py"]


def test_changed_test_is_not_compared_with_old_tests_that_did_not_end() -> None:
    now = RanTests("a", passed=1, changed={"test_a.py::test_x": {}})
    slow = RanTests("a", failed={"test_a.py": "test_a.py does not end within 60 s."}, timed_out=True)
    assert distinguish(now, slow, (), ()).unknown == ("test_a.py::test_x",)
    assert distinguish(now, replace(slow, timed_out=False), (), ()).failed_before == ("test_a.py::test_x",)


def test_parametrized_test_distinguishes_if_one_of_its_cases_does() -> None:
    names = ("a.py::T::test_x[1-2]", "a.py::T::test_x[2-3]", "a.py::test_y[1]", "a.py::test_y[2]")
    now = RanTests("a", passed=4, changed={name: {} for name in names})
    then = RanTests("a", failed={names[0]: "assert 1 == 2"}, changed={name: {} for name in names[1:]})
    assert distinguish(now, then, (), ()) == Distinction(failed_before=names[:1], indistinct=names[2:])
