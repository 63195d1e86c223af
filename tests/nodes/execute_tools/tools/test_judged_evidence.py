from typing import Any

import pytest

from nodes.execute_tools.environment.checks import CheckRules, Checks, open_checks
from nodes.execute_tools.environment.deadline import CancellationScope
from nodes.execute_tools.registry import ToolContext
from nodes.execute_tools.tools.judged_evidence import judged_evidence
from nodes.records import JsonMap, ToolError, ToolErrorCode
from tests.nodes.execute_tools.tools.conftest import Bench

BEFORE = "def add(a, b):\n    return a - b\n"
WRONG, RIGHT = BEFORE.replace("a - b", "b - a"), BEFORE.replace("-", "+")
TASK = "add(2, 3) should return 5"
UNAVAILABLE = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no Python")


class Asked(Checks):
    """Stands for the checks: remembers what it was asked, and answers what it was told to."""

    def __init__(self, answer: list[JsonMap] | ToolError) -> None:
        self.answer, self.rules = answer, CheckRules()
        self.asked: list[tuple[Any, ...]] = []
        self.scopes: list[CancellationScope | None] = []

    def in_scope(self, scope: CancellationScope | None) -> "Asked":
        self.scopes.append(scope)
        return self

    def run_examples(self, modules: Any, seconds: float = 0.0, *, first_decides: bool = False) -> Any:
        self.asked.append((modules, seconds, first_decides))
        return self.answer


def entry(status: str, told: str = "") -> JsonMap:
    return {"loaded": True, "own": True, "error": "", "results": [[status, told]]}


def context(bench: Bench, checks: Checks | ToolError | None, **fields: Any) -> ToolContext:
    given = {"task": TASK, "gated": True, "timeout_s": 30.0, **fields}
    return ToolContext(bench.workspace, checks=checks, **given)


def test_a_wrong_edit_is_refused_in_words(bench: Bench) -> None:
    checks, scope = Asked([entry("different", "1"), entry("different", "-1")]), CancellationScope()
    error = judged_evidence(context(bench, checks, scope=scope), "calc.py", BEFORE, WRONG)
    message = "With this edit add(2, 3) gives 1, but must give 5. So nothing was changed."
    assert error == ToolError(code=ToolErrorCode.CHECK_FAILED, message=message)
    ((modules, seconds, first_decides),) = checks.asked
    assert [(each["path"], each["text"], len(each["groups"])) for each in modules] == [
        ("calc.py", WRONG, 1),
        ("calc.py", BEFORE, 1),
    ]
    assert (seconds, first_decides, checks.scopes) == (10.0, True, [scope])


def test_of_a_repair_the_old_text_is_only_loaded(bench: Bench) -> None:
    checks = Asked([entry("passed"), entry("passed")])
    assert judged_evidence(context(bench, checks, task=f"Fix it: {TASK}"), "calc.py", BEFORE, RIGHT) is None
    assert [len(each["groups"]) for each in checks.asked[0][0]] == [1, 0]


def test_a_new_file_has_no_old_text(bench: Bench) -> None:
    checks = Asked([entry("passed")])
    path = f"{bench.workspace.root}/lib/../calc.py"
    assert judged_evidence(context(bench, checks), path, None, RIGHT) is None
    assert [each["path"] for each in checks.asked[0][0]] == ["calc.py"]


@pytest.mark.parametrize("path", ["../calc.py", "/elsewhere/calc.py"])
def test_a_path_that_leads_out_is_left_to_others(bench: Bench, path: str) -> None:
    checks = Asked([])
    assert judged_evidence(context(bench, checks), path, None, WRONG) is None
    assert checks.asked == []


@pytest.mark.parametrize("fields", [{"gated": False}, {"checks": None}, {"checks": UNAVAILABLE}])
def test_without_gate_or_checks_nothing_is_run(bench: Bench, fields: dict[str, Any]) -> None:
    checks = Asked([entry("different", "1")] * 2)
    given = context(bench, **{"checks": checks, **fields})
    assert judged_evidence(given, "calc.py", BEFORE, WRONG) is None
    assert checks.asked == []


def test_where_evidence_is_off_no_code_is_run_for_an_edit(bench: Bench) -> None:
    checks = Asked([entry("different", "1")] * 2)
    checks.rules = CheckRules(("make test",), evidence=False)
    assert judged_evidence(context(bench, checks), "calc.py", BEFORE, WRONG) is None
    assert checks.asked == []


def test_where_nothing_speaks_or_nothing_can_be_run_the_edit_stays(bench: Bench) -> None:
    assert judged_evidence(context(bench, Asked(UNAVAILABLE)), "calc.py", BEFORE, WRONG) is None
    nothing = Asked([])
    assert judged_evidence(context(bench, nothing), "calc.py", BEFORE, BEFORE + "# end\n") is None
    assert nothing.asked == []


@pytest.mark.parametrize(("after", "refused"), [(WRONG, True), (RIGHT, False), ("from lib import add\n", False)])
def test_in_the_sandbox(bench: Bench, after: str, refused: bool) -> None:
    bench.put({"calc.py": BEFORE})
    checks = open_checks(str(bench.root.resolve()), CheckRules(), lambda _: False)
    if isinstance(checks, ToolError):
        pytest.skip(checks.message)
    error = judged_evidence(context(bench, checks), "calc.py", BEFORE, after)
    assert (error is not None) is refused
    assert [path.name for path in bench.root.rglob("*")] == ["calc.py"]


def test_the_examples_of_a_new_file_are_run(bench: Bench) -> None:
    checks = open_checks(str(bench.root.resolve()), CheckRules(), lambda _: False)
    if isinstance(checks, ToolError):
        pytest.skip(checks.message)
    task = 'Write words.py with count(text). Case does not matter: count("The the") == {"the": 2}'
    body = "    found = re.findall('[a-z]+', text.lower())\n    return {w: found.count(w) for w in found}\n"
    text = f"def count(text):\n{body}"
    told = judged_evidence(context(bench, checks, task=task), "words.py", None, text)
    message = (
        'With this edit count("The the") raises NameError: name \'re\' is not defined, but must give {"the": 2}.'
        " So nothing was changed."
    )
    assert told == ToolError(code=ToolErrorCode.CHECK_FAILED, message=message)
    assert judged_evidence(context(bench, checks, task=task), "words.py", None, f"import re\n\n\n{text}") is None
