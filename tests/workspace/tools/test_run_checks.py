from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from mendgraph.nodes.execute_tools.evidence.checks import CheckRules, Checks, RanTests
from mendgraph.nodes.execute_tools.evidence.runners import LOOKED_FOR, Command, Runners
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.run_command import run_checks
from mendgraph.nodes.records import ChangeKind, FileChange, JsonMap, ToolError, ToolErrorCode, ToolResult
from mendgraph.nodes.small_model.request_checks import RequestChecks
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from tests.row_tables import rows
from tests.workspace.conftest import Bench

APP = 'def add(a, b):\n    """\n    >>> add(1, 1)\n    2\n    """\n    return a + b\n'
UNAVAILABLE = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no sandbox")
NPM = Command("npm test", (".js",))


def outcome(name: str, passed: int | None = 2, **failed: str) -> RanTests:
    lines = {} if passed is None else {"app.py": (6,)}
    return RanTests(name if passed is None else f"pytest {name}", passed=passed, failed=failed, lines=lines)


def entry(*results: tuple[str, str], error: str = "") -> JsonMap:
    return {"loaded": not error, "own": True, "error": error, "results": [list(result) for result in results]}


class Scripted(Checks):
    """Returns scripted results, and records the requests."""

    def __init__(
        self,
        examples: list[JsonMap] | ToolError = UNAVAILABLE,
        commands: tuple[str, ...] = (),
        *,
        evidence: bool = True,
    ) -> None:
        self.rules = CheckRules(commands, evidence=evidence)
        self.examples, self.before = examples, dict[str, RanTests | ToolError]()
        self.ends = dict[str, RanTests | ToolError]()
        self.asked: list[tuple[str, float]] = []
        self.found: tuple[Command, ...] = ()

    def in_scope(self, scope: CancellationScope | None) -> "Scripted":
        assert scope is None
        return self

    def runners(self, _path: str = "") -> Runners:
        return Runners(commands=self.found)

    def run_examples(self, modules: Any, seconds: float = 0.0) -> Any:
        self.asked.append((",".join(module["path"] for module in modules), seconds))
        return self.examples if isinstance(self.examples, ToolError) else self.examples[: len(modules)]

    def run_tests(
        self,
        path: str,
        seconds: float = 0.0,
        lines: Any = None,
        changed: Collection[str] = (),
        before: Mapping[str, bytes] | None = None,
    ) -> RanTests | ToolError:
        self.asked.append((path, seconds))
        self.changed, self.tests = lines, sorted(changed)
        return self.before[path] if before else self.ends.get(path, outcome(path))

    def run_command(
        self, command: str | Command, seconds: float = 0.0, before: Mapping[str, bytes] | None = None
    ) -> RanTests | ToolError:
        name = command if isinstance(command, str) else command.name
        self.asked.append((name, seconds))
        return self.before[name] if before else self.ends.get(name, RanTests(name))


def checked(bench: Bench, checks: Checks | ToolError | None, *paths: str, task: str = "", **options: Any) -> ToolResult:
    hints = RequestChecks(task) if task else None
    words: dict[str, Any] = {"task": task, "hints": hints}
    context = ToolContext(bench.workspace, checks=checks, timeout_s=20.0, seconds_left=15.0, **words, **options)
    output = run_checks.s(context, paths=list(paths))
    assert (output.changes, output.files_read, output.plan) == ((), {}, None)
    result: ToolResult = output.result
    return result


def none(*reasons: str) -> ToolResult:
    return ToolResult.success(checks="none", ran=[], lines=[], reason=" ".join(reasons))


def message(result: ToolResult) -> list[str]:
    assert result.error is not None
    assert result.error.code is ToolErrorCode.CHECK_FAILED
    return result.error.message.split("\n")


NO_TEST = (
    "No test of app.py was found (looked for test_app.py, tests/test_app.py, test/test_app.py, and what imports it)."
)
FIX = "Fix the bug in app.py."


COUNTS = ("1 test", "2 tests", "2 tests")


def test_examples_tests_and_commands_run_in_this_order(bench: Bench) -> None:
    tests = ("test_app.py", "tests/test_app.py", "tests/test_lib.py")
    bench.put({"app.py": APP, "src/lib.py": "x = 1\n", **dict.fromkeys(tests, "")})
    checks = Scripted([{**entry(("passed", "")), "lines": [2, 3, 4, 6]}], ("make test",))
    checks.ends = {"test_app.py": RanTests("pytest test_app.py", passed=1, lines={"app.py": [6, 7]})}
    result = checked(bench, checks, "app.py", "src/lib.py", "gone.py", task="Rename old to add")
    reported = ["1 example of app.py", *(f"pytest {test}: {count}" for test, count in zip(tests, COUNTS, strict=True))]
    assert result == ToolResult.success(
        checks="passed", ran=[*reported, "make test"], lines=["app.py:2-4", "app.py:6-7"]
    )
    assert [name for name, _ in checks.asked] == ["app.py", *tests, "make test"]
    assert all(10.0 < seconds <= 15.0 for _, seconds in checks.asked)


def test_most_informative_failures_come_first(bench: Bench) -> None:
    bench.put({"app.py": APP, "test_app.py": ""})
    checks = Scripted([entry(("different", "-1"), ("raised", "ValueError: x"))], ("make test", "make lint"))
    slow = {"make lint": "make lint does not end within 60 s."}
    checks.ends = {
        "test_app.py": outcome("test_app.py", 1, test_a="E  assert 1 == 2\n", test_b="E  assert 2 == 3"),
        "make test": RanTests("make test", failed={"make test": ""}),
        "make lint": RanTests("make lint", failed=slow),
    }
    task = "Fix this. Delete the function add. add(2, 3) should return 5."
    assert message(checked(bench, checks, "app.py", task=task)) == [
        "add is still in app.py, line 1.",
        "add(2, 3) gives -1, but must give 5.",
        "add(1, 1) raises ValueError: x, but must give 2.",
        "test_app.py fails:",
        "E  assert 1 == 2",
        "make test fails.",
    ]
    assert message(checked(bench, checks)) == ["make test fails.", "make lint does not end within 60 s."]


def test_import_error_is_reported_unless_arguments_are_missing(bench: Bench) -> None:
    bench.put({"app.py": APP})
    error = "NameError: name 'x' is not defined"
    assert message(checked(bench, Scripted([entry(error=error)]), "app.py")) == [f"app.py cannot be imported: {error}."]
    assert checked(bench, Scripted([entry(error="IndexError: no argument")]), "app.py") == none(NO_TEST)


@rows(True, False)
def test_file_without_examples_is_imported_in_a_gated_run(gated: bool, bench: Bench) -> None:
    bench.put({"app.py": "x = 1\n"})
    error = "ImportError: cannot import name 'x' from partially initialized module 'app'"
    checks = Scripted([{"loaded": False, "own": True, "error": error, "results": []}])
    result = checked(bench, checks, "app.py", evidence_required=gated)
    assert (message(result) if gated else result) == (
        [f"app.py cannot be imported: {error}."] if gated else none(NO_TEST)
    )


def test_reason_is_given_if_nothing_can_run(bench: Bench) -> None:
    bench.put({"app.py": APP, "test_app.py": "", "a.js": "", "a.css": "", "own.py": ""})
    assert checked(bench, UNAVAILABLE) == none("no sandbox")
    assert checked(bench, None) == checked(bench, Scripted(evidence=False), "app.py") == none("Checks are turned off.")
    checks = Scripted(UNAVAILABLE, ("mak test",))
    checks.ends = {"mak test": ToolError(code=ToolErrorCode.NOT_FOUND, message="'mak' is not installed")}
    assert checked(bench, checks) == none("'mak' is not installed")
    bench.put({"alone.py": APP})
    assert checked(bench, Scripted(), "alone.py").data["reason"].startswith("no sandbox")
    unfit = f"No test runner for a.js was found (looked for {LOOKED_FOR})."
    assert checked(bench, Scripted(), "a.js") == none(unfit)
    checks = Scripted([entry(("unknown", ""))])
    checks.found = (NPM,)
    other = f"No test runner for a.css was found (those of the project are for {', '.join(NPM.suffixes)})."
    assert checked(bench, checks, "a.css") == none(other)
    lacking = ToolError(code=ToolErrorCode.UNAVAILABLE, message="npm test took longer than 60 s.")
    checks.ends = {
        "npm test": lacking,
        "test_app.py": outcome("test_app.py", 0, a="ModuleNotFoundError: No module named 'numpy.linalg'"),
    }
    needs = "test_app.py needs numpy, which is not installed where checks can see it."
    assert checked(bench, checks, "app.py", "a.js") == none(needs, lacking.message)
    checks.ends = {"test_app.py": outcome("test_app.py", 0, a="ModuleNotFoundError: No module named 'own.part'")}
    assert message(checked(bench, checks, "app.py", task=FIX))[0] == "test_app.py fails:"
    checks.ends = {"test_app.py": outcome("test_app.py", 0)}
    assert checked(bench, checks, "app.py") == none("All tests of test_app.py were skipped.")


def test_missing_runner_is_reported_beside_passed_checks(bench: Bench) -> None:
    bench.put({"app.py": APP, "test_app.py": ""})
    checks = Scripted([entry(("passed", ""))])
    checks.ends = {"test_app.py": UNAVAILABLE}
    reason = "no sandbox Nothing checked a.js."
    assert checked(bench, checks, "app.py", "a.js") == ToolResult.success(
        checks="passed", ran=["1 example of app.py"], lines=[], reason=reason
    )


def test_only_configured_commands_run_without_evidence(bench: Bench) -> None:
    bench.put({"app.py": APP, "test_app.py": ""})
    checks = Scripted([entry(("passed", ""))], ("make test",), evidence=False)
    result = checked(bench, checks, "app.py", task="add(2, 3) should return 5.")
    assert result == ToolResult.success(checks="passed", ran=["make test"], lines=[])
    assert [name for name, _ in checks.asked] == ["make test"]


def test_check_of_requested_names_needs_no_sandbox(bench: Bench) -> None:
    bench.put({"app.py": APP})
    assert message(checked(bench, None, "app.py", task="Delete the function add")) == [
        "add is still in app.py, line 1."
    ]


def test_tests_are_found_by_name_or_import(bench: Bench) -> None:
    texts = ["import pkg.cart\n", "from pkg import (\n    other,\n    cart,\n)\n", "from .cart import x\n"]
    bench.put({f"tests/test_{number}.py": text for number, text in enumerate([*texts, "import scart, pkg\n", ""])})
    bench.put(
        {"pkg/cart.py": "x = 1\n", "pkg/__init__.py": "", "src/a/b.py": "", "tests/a/test_b.py": "import cart2\n"}
    )
    checks = Scripted()
    result = checked(bench, checks, "pkg/cart.py", "src/a/b.py", "tests/test_4.py")
    names = ["tests/test_0.py", "tests/test_1.py", "tests/test_2.py", "tests/a/test_b.py", "tests/test_4.py"]
    assert result.data["ran"] == [f"pytest {name}: 2 tests" for name in names]
    assert [name for name, _ in checks.asked] == names
    bench.put({"tax.py": "", "till.py": "import tax\n", "test_shop.py": "from till import pay\n"})
    bench.put({"test_no.py": "import shop\n"})
    assert checked(bench, Scripted(), "tax.py").data["ran"] == ["pytest test_shop.py: 2 tests"]


def test_resource_limit_fails_only_configured_commands(bench: Bench) -> None:
    bench.put({"app.py": "x = 1\n", "test_app.py": ""})
    checks, limit = Scripted(commands=("make test",)), ToolErrorCode.RESOURCE_LIMIT
    checks.ends = {"test_app.py": ToolError(code=limit, message="test_app.py was stopped")}
    assert checked(bench, checks, "app.py").data["reason"] == "test_app.py was stopped"
    checks.ends = {"make test": ToolError(code=limit, message="make test was stopped")}
    assert message(checked(bench, checks, "app.py")) == ["make test was stopped"]


# --- What failed before

ALREADY = "still fails, as before the change."
OLD = APP.replace("+", "-")
CHANGED = FileChange(path="app.py", kind=ChangeKind.EDITED, sha256_before="1", sha256_after="2", diff="")
NEW, GONE = (
    CHANGED.model_copy(update=fields) for fields in ({"path": "new.py", "sha256_before": ""}, {"path": "b.py"})
)


def judged(bench: Bench, checks: Scripted, *changes: FileChange, task: str = "Add hints.") -> ToolResult:
    bench.put({"app.py": APP, "new.py": "y = 1\n", "tests/test_app.py": "", "tests/test_new.py": ""})
    texts = {"1": OLD.encode()}
    return checked(bench, checks, "app.py", task=task, changes=changes, backup=texts.get)


def old_failure(before: str = "test_b") -> Scripted:
    checks = Scripted([entry(("passed", ""))], ("make",))
    checks.ends = {
        "tests/test_app.py": outcome("tests/test_app.py", 1, test_b="E  two"),
        "make": RanTests("make", failed={"lint": "", "spell": ""}),
    }
    checks.before = {
        "tests/test_app.py": outcome("tests/test_app.py", 1, **{before: "E  one"}),
        "make": RanTests("make", failed={"lint": "", "spell": ""}),
    }
    return checks


def test_earlier_failure_is_reported_and_does_not_count(bench: Bench) -> None:
    checks = old_failure()
    result = judged(bench, checks, CHANGED, NEW)
    assert checks.changed == {"app.py": [6]}
    reason = "lint, spell still fail, as before the change. test_b still fails"
    assert result.data["ran"] == ["1 example of app.py", "pytest tests/test_app.py: 1 test"]
    assert result.data["reason"] == f"{reason}, as before the change."
    assert result.data["failed_already"]["test_b"] == "tests/test_app.py fails:\nE  two"
    assert message(judged(bench, old_failure(), CHANGED, task="Let test_b pass."))[0] == "tests/test_app.py fails:"
    assert message(judged(bench, old_failure("test_c"), CHANGED))[1] == "E  two"


def test_name_of_a_failing_test_of_a_command_is_in_the_message(bench: Bench) -> None:
    checks = Scripted([entry()], ("make",))
    checks.ends["make"] = RanTests("make", failed={"old": "E", "new": "E"})
    checks.before["make"] = RanTests("make", failed={"old": ""})
    assert message(judged(bench, checks, CHANGED, task="")) == ["new of make fails:", "E"]


def test_test_files_of_django_run_by_its_own_command_only(bench: Bench) -> None:
    bench.put({"app.py": APP, "test_app.py": "from django.test import TestCase\n", "tests/test_app.py": ""})
    checks = Scripted([entry()])
    checks.found = (Command("python manage.py test", (".py",), is_python=True),)
    assert checked(bench, checks, "app.py").data["ran"] == [
        "pytest tests/test_app.py: 2 tests",
        "python manage.py test",
    ]

    bench.put({"lib.py": APP})
    assert checked(bench, checks, "lib.py").data == {"checks": "passed", "ran": ["python manage.py test"], "lines": []}


def test_tests_that_take_too_long_before_and_after_are_not_said_to_fail(bench: Bench) -> None:
    checks = Scripted([entry()])
    failure = "tests/test_app.py does not end within 60 s."
    slow = RanTests("tests/test_app.py", failed={"tests/test_app.py": failure}, timed_out=True)
    checks.ends["tests/test_app.py"] = checks.before["tests/test_app.py"] = slow
    result = judged(bench, checks, CHANGED, task="")
    assert (result.data["checks"], result.data["ran"]) == ("none", [])
    assert result.data["reason"] == "tests/test_app.py does not end within 60 s, as before the change."


def test_wording_of_the_request_is_ignored_for_large_models(bench: Bench) -> None:
    assert judged(bench, old_failure(), CHANGED, task="").data["checks"] == "passed"
    assert message(judged(bench, old_failure("test_c"), CHANGED, task=""))[1] == "E  two"
    before_the_first_change = old_failure()
    before_the_first_change.rules = CheckRules()
    assert message(judged(bench, before_the_first_change, task=""))[0] == "tests/test_app.py fails:"


def test_test_that_failed_for_lack_of_a_new_file_counts(bench: Bench) -> None:
    checks = old_failure()
    checks.before["tests/test_app.py"] = outcome("tests/test_app.py", 0, test_b="No module named 'new'")
    assert message(judged(bench, checks, CHANGED, NEW, task=""))[1] == "E  two"
    assert judged(bench, checks, CHANGED, task="").data["checks"] == "passed"


def test_exit_code_of_a_configured_command_always_counts(bench: Bench) -> None:
    checks = old_failure()
    checks.ends["make"] = checks.before["make"] = RanTests("make", failed={"make": "no rule"})
    assert message(judged(bench, checks, CHANGED, task="")) == ["make fails:", "no rule"]


NUMPY, JEST = "ModuleNotFoundError: No module named 'numpy'", "sh: 1: jest: not found"
NEEDS = "test_app.py needs numpy, which is not installed where checks can see it."


@rows(
    ("test_b", NUMPY, {"test_b": NUMPY}, FIX, NEEDS),
    ("test_b", NUMPY, {}, FIX, ""),
    ("test_b", JEST, {"test_b": JEST}, FIX, f"test_app.py cannot be run here: {JEST}"),
    ("test_b", "order 5: not found", {}, "Add hints.", ""),
    ("tests/test_app.py", "ImportError", {"tests/test_app.py": "ImportError"}, "Add hints to app.py.", None),
    ("make", "NameError: x", {"make": "2 fail"}, "Add hints.", ""),
)
def test_missing_package_counts_only_if_the_change_introduced_it(
    test: str, now: str, before: dict[str, str], task: str, reason: str | None, bench: Bench
) -> None:
    checks = Scripted([entry(("passed", ""))])
    checks.ends = {"tests/test_app.py": outcome("tests/test_app.py", 1, **{test: now})}
    checks.before = {"tests/test_app.py": outcome("tests/test_app.py", 1, **before)}
    result = judged(bench, checks, CHANGED, task=task)
    text = message(result)[1] if reason == "" else result.data["reason"]
    assert text == {"": now, None: f"{test} {ALREADY}"}.get(reason, f"tests/{reason}")


def test_module_that_the_run_deleted_is_no_missing_package(bench: Bench) -> None:
    deleted = CHANGED.model_copy(update={"path": "own/part.py", "kind": ChangeKind.DELETED, "sha256_after": ""})
    failure = "ModuleNotFoundError: No module named 'own'"
    checks = Scripted([entry(("passed", ""))])
    checks.ends = {"tests/test_app.py": outcome("tests/test_app.py", 1, test_b=failure)}
    checks.before = {"tests/test_app.py": outcome("tests/test_app.py", 1, test_b="E  one")}
    assert message(judged(bench, checks, CHANGED, deleted)) == ["tests/test_app.py fails:", failure]


@rows(("numpy==2.0\n", False), ("pandas\n", True))
def test_package_from_a_changed_manifest_may_be_missing(manifest: str, counts: bool, bench: Bench) -> None:
    checks = Scripted([entry(("passed", ""))])
    checks.ends = {"tests/test_app.py": outcome("tests/test_app.py", 1, test_b=NUMPY)}
    checks.before = {"tests/test_app.py": outcome("tests/test_app.py", 2)}
    bench.put({"requirements.txt": manifest})
    result = judged(bench, checks, CHANGED, NEW.model_copy(update={"path": "requirements.txt"}))
    assert (message(result)[1] if counts else result.data["reason"]) == (NUMPY if counts else f"tests/{NEEDS}")


@rows(((CHANGED, GONE),), ((CHANGED.model_copy(update={"sha256_before": "?"}),),))
def test_all_failures_count_if_the_previous_state_is_unknown(changes: tuple[FileChange, ...], bench: Bench) -> None:
    assert message(judged(bench, old_failure(), *changes))[0] == "tests/test_app.py fails:"


TESTED = NEW.model_copy(update={"path": "tests/test_app.py"})
SETTINGS = NEW.model_copy(update={"path": "conftest.py"})


@rows(
    (
        (CHANGED.model_copy(update={"sha256_before": "?"}), TESTED),
        outcome("tests/test_app.py"),
        "did not run on the files before the session's first change: what app.py held is not kept.",
    ),
    (
        (CHANGED, TESTED),
        UNAVAILABLE,
        "did not run on the files before the session's first change: no sandbox.",
    ),
    ((CHANGED, SETTINGS), UNAVAILABLE, "did not run with conftest.py as before: no sandbox."),
)
def test_tests_that_cannot_run_on_the_previous_files_are_reported(
    changes: tuple[FileChange, ...], before: RanTests | ToolError, reason: str, bench: Bench
) -> None:
    checks = Scripted([entry(("passed", ""))])
    changed_lines = {"test_b": {"app.py": [6]}} if TESTED in changes else {}
    checks.ends = {"tests/test_app.py": replace(outcome("tests/test_app.py"), changed=changed_lines)}
    checks.before = {"tests/test_app.py": before}
    bench.put({"conftest.py": "x = 1\n"})
    assert reason in judged(bench, checks, *changes).data["reason"]


def test_failures_before_the_first_change_are_reported_only_for_the_task(bench: Bench) -> None:
    checks = old_failure()
    checks.rules = CheckRules()
    assert message(judged(bench, checks, task=FIX))[0] == "tests/test_app.py fails:"
    assert judged(bench, checks).data["checks"] == "passed"
    checks.rules = CheckRules(("make",))
    assert message(judged(bench, checks)) == ["lint of make fails."]


@rows(
    ("different", "Add hints.", False),
    ("different", "Fix add.", True),
    ("different", "Fix new.", True),
    ("passed", "Add hints.", True),
)
def test_example_that_failed_before_counts_only_for_a_repair(
    before: str, task: str, counts: bool, bench: Bench
) -> None:
    checks: Any = Scripted([entry(("different", "0"))])
    first = iter([[entry(("different", "0"))], [entry((before, "1"))]])
    checks.run_examples = lambda *_: next(first)
    result = judged(bench, checks, CHANGED, task=task)
    reason = "an example of add still fails, as before the change."
    assert (message(result) if counts else result.data["reason"]) == (
        ["add(1, 1) gives 0, but must give 2."] if counts else reason
    )


@rows(("Fix other.", True), ("Document other.", False))
def test_earlier_failure_of_repaired_code_counts(task: str, counts: bool, bench: Bench) -> None:
    other = "\n\ndef other():\n    return add(1, 1)\n"
    bench.put({"app.py": APP.replace("+", "*") + other})
    checks = Scripted([entry(("different", "1"))])
    result = checked(bench, checks, "app.py", task=task, changes=(CHANGED,), backup=lambda _: (OLD + other).encode())
    assert (result.error is not None) is counts


@rows(b"def add(a, b):\n    return a - b\n", None)
@rows(("Mend it.", False), ("Write a docstring.", True))
def test_examples_added_in_the_same_turn_are_no_evidence(
    task: str, requested: bool, before: bytes | None, bench: Bench
) -> None:
    bench.put({"app.py": APP})
    checks = Scripted([entry(("passed", ""))])
    result = checked(bench, checks, "app.py", task=task, changes=(CHANGED,), backup=lambda _: before)
    assert result == none(NO_TEST.replace(").", "), and its examples are as new as its code."))
    checks.examples = [entry(("different", "0"))]
    new = NEW.model_copy(update={"path": "app.py"})
    assert (checked(bench, checks, "app.py", task=task, changes=(new,)).error is not None) is requested
    assert [name for name, _ in checks.asked if name == "app.py"][:2] == ["app.py"] * 2 * requested


def test_command_counts_without_line_coverage(bench: Bench) -> None:
    for commands, kind in (((), "none"), (("make",), "passed")):
        checks = Scripted([entry(("passed", ""))], commands)
        checks.ends = {"tests/test_app.py": RanTests("pytest tests/test_app.py", passed=1), "make": RanTests("make")}
        assert judged(bench, checks, CHANGED).data["checks"] == kind
