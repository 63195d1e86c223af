from importlib import import_module
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.evidence.checks import NOTHING_RAN, CheckRules, Checks
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope
from mendgraph.nodes.execute_tools.processes.commands import CommandResult
from mendgraph.nodes.execute_tools.processes.processes import Ends, Limit, LimitReached
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.run_checks import LONGEST_OUTPUT, run_checks
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode, ToolResult
from tests.nodes.execute_tools.conftest import Bench

MODULE = import_module("mendgraph.nodes.execute_tools.tools.run_checks")
APP = 'def add(a, b):\n    """\n    >>> add(1, 1)\n    2\n    """\n    return a + b\n'
UNAVAILABLE = ToolError(code=ToolErrorCode.UNAVAILABLE, message="no sandbox")


def ended(
    exit_code: int = 0, said: str = "", *, timed_out: bool = False, limit: LimitReached | None = None
) -> CommandResult:
    stdout = Ends(said.encode(), b"", len(said.encode()))
    return CommandResult(exit_code, stdout, Ends(), 0.1, 60.0, timed_out, limit=limit)


def entry(*results: tuple[str, str], error: str = "") -> JsonMap:
    return {"loaded": not error, "own": True, "error": error, "results": [list(each) for each in results]}


class Scripted(Checks):
    """Answers what it was told to, and remembers what it was asked."""

    def __init__(
        self,
        examples: list[JsonMap] | ToolError = UNAVAILABLE,
        commands: tuple[str, ...] = (),
        *,
        evidence: bool = True,
    ) -> None:
        self.rules = CheckRules(commands, evidence=evidence)
        self.examples, self.ends = examples, dict[str, CommandResult | ToolError]()
        self.asked: list[tuple[str, float]] = []

    def in_scope(self, scope: CancellationScope | None) -> "Scripted":
        assert scope is None
        return self

    def run_examples(self, modules: Any, seconds: float = 0.0) -> Any:
        self.asked.append((",".join(each["path"] for each in modules), seconds))
        return self.examples

    def run_tests(self, path: str, seconds: float = 0.0) -> CommandResult | ToolError:
        self.asked.append((path, seconds))
        return self.ends.get(path, ended())

    def run_command(self, command: str, seconds: float = 0.0) -> CommandResult | ToolError:
        return self.run_tests(command, seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "monotonic_s", lambda: 100.0)


def ran(bench: Bench, checks: Checks | ToolError | None, *paths: str, task: str = "") -> ToolResult:
    context = ToolContext(bench.workspace, task=task, checks=checks, timeout_s=20.0, seconds_left=15.0)
    output = run_checks.s(context, paths=list(paths))
    assert (output.changes, output.files_read, output.plan) == ((), {}, None)
    result: ToolResult = output.result
    return result


def message(result: ToolResult) -> list[str]:
    assert result.error is not None
    assert result.error.code is ToolErrorCode.CHECK_FAILED
    return result.error.message.split("\n")


def test_everything_passes(bench: Bench) -> None:
    bench.put(
        {"app.py": APP, "tests/test_app.py": "", "test_app.py": "", "src/lib.py": "x = 1\n", "tests/test_lib.py": ""}
    )
    checks = Scripted([entry(("passed", ""))], ("make test",))
    result = ran(bench, checks, "app.py", "src/lib.py", "notes.md", "gone.py", task="Rename old to add")
    assert result == ToolResult.success(
        checks="passed",
        ran=[
            "what the task asks of names",
            "examples of app.py",
            "test_app.py",
            "tests/test_app.py",
            "tests/test_lib.py",
            "make test",
        ],
    )
    assert checks.asked == [
        (name, 15.0) for name in ("app.py", "test_app.py", "tests/test_app.py", "tests/test_lib.py", "make test")
    ]


def test_failures_are_told_the_most_telling_first(bench: Bench) -> None:
    bench.put({"app.py": APP, "test_app.py": ""})
    checks = Scripted([entry(("different", "-1"), ("raised", "ValueError: x"))], ("make test", "make lint"))
    checks.ends = {
        "test_app.py": ended(1, "E  assert 1 == 2\n"),
        "make test": ended(2),
        "make lint": ended(timed_out=True),
    }
    task = "Delete the function add. add(2, 3) should return 5."
    assert message(ran(bench, checks, "app.py", task=task)) == [
        "add is still in app.py, line 1.",
        "add(2, 3) gives -1, but must give 5.",
        "add(1, 1) raises ValueError: x, but must give 2.",
        "test_app.py fails:",
        "E  assert 1 == 2",
        "make test fails.",
    ]
    assert message(ran(bench, checks)) == ["make test fails.", "make lint does not end within 60 s."]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("NameError: name 'x' is not defined", ["app.py cannot be imported: NameError: name 'x' is not defined."]),
        ("IndexError: no argument", []),
    ],
)
def test_a_file_that_cannot_be_imported(bench: Bench, error: str, told: list[str]) -> None:
    bench.put({"app.py": APP})
    result = ran(bench, Scripted([entry(error=error)]), "app.py")
    assert (message(result) if told else result) == (told or ToolResult.success(checks="none", ran=[]))


FULL = LimitReached(Limit.MEMORY, 150_000_000, 120_000_000)
USED_UP = (
    "was stopped: all its processes together used 150 MB of memory, and may use 120 MB. Let it do less at once, or work"
    " on less data."
)


def test_tests_that_take_too_much_say_nothing_of_the_code(bench: Bench) -> None:
    bench.put({"app.py": "x = 1\n", "test_app.py": ""})
    checks = Scripted()
    checks.ends = {"test_app.py": ended(137, limit=FULL)}
    expected = ToolResult.success(checks="unavailable", ran=[], reason=f"test_app.py {USED_UP}")
    assert ran(bench, checks, "app.py") == expected


def test_without_evidence_only_the_configured_commands_are_run(bench: Bench) -> None:
    bench.put({"app.py": APP, "test_app.py": ""})
    checks = Scripted([entry(("passed", ""))], ("make test",), evidence=False)
    result = ran(bench, checks, "app.py", task="add(2, 3) should return 5.")
    assert (result, checks.asked) == (ToolResult.success(checks="passed", ran=["make test"]), [("make test", 15.0)])


def test_tests_that_cannot_be_run_are_no_failure(bench: Bench) -> None:
    bench.put({"app.py": APP, "test_app.py": ""})
    checks = Scripted([entry(("passed", ""))])
    checks.ends = {"test_app.py": UNAVAILABLE}
    assert ran(bench, checks, "app.py") == ToolResult.success(
        checks="unavailable", ran=["examples of app.py"], reason="no sandbox"
    )


@pytest.mark.parametrize("gated", [True, False])
def test_in_a_gated_run_a_file_without_examples_is_loaded(bench: Bench, gated: bool) -> None:
    bench.put({"app.py": "x = 1\n"})
    error = "ImportError: cannot import name 'x' from partially initialized module 'app'"
    checks: Any = Scripted([{"loaded": False, "own": True, "error": error, "results": []}])
    context = ToolContext(bench.workspace, checks=checks, gated=gated)
    result = run_checks.s(context, paths=["app.py"]).result
    told = [f"app.py cannot be imported: {error}."]
    assert (message(result) if gated else result) == (told if gated else ToolResult.success(checks="none", ran=[]))


def test_what_cannot_be_run_is_no_failure(bench: Bench) -> None:
    bench.put({"app.py": APP})
    assert ran(bench, UNAVAILABLE) == ToolResult.success(checks="unavailable", ran=[], reason="no sandbox")
    checks = Scripted(UNAVAILABLE, ("mak test",))
    checks.ends = {"mak test": ToolError(code=ToolErrorCode.NOT_FOUND, message="'mak' is not installed")}
    assert ran(bench, checks, "app.py").data == {"checks": "unavailable", "ran": [], "reason": "no sandbox"}
    assert ran(bench, checks).data == {"checks": "unavailable", "ran": [], "reason": "'mak' is not installed"}
    assert ran(bench, Scripted([entry(("unknown", ""))]), "app.py").data == {"checks": "none", "ran": []}


def test_what_the_task_asks_of_names_needs_no_sandbox(bench: Bench) -> None:
    bench.put({"app.py": APP})
    assert message(ran(bench, None, "app.py", task="Delete the function add")) == ["add is still in app.py, line 1."]


def test_a_test_file_that_cannot_be_run(bench: Bench) -> None:
    bench.put({"app.py": "x = 1\n", "test_app.py": "", "own.py": ""})
    checks = Scripted()
    checks.ends = {"test_app.py": ended(NOTHING_RAN, "pytest is not installed here.")}
    assert ran(bench, checks, "app.py").data == {"checks": "none", "ran": []}
    checks.ends = {"test_app.py": ended(1, "ModuleNotFoundError: No module named 'numpy.linalg'")}
    reason = "test_app.py needs numpy, which is not installed where checks can see it."
    assert ran(bench, checks, "test_app.py").data == {"checks": "unavailable", "ran": [], "reason": reason}
    checks.ends = {"test_app.py": ended(1, "ModuleNotFoundError: No module named 'own.part'")}
    assert message(ran(bench, checks, "app.py"))[0] == "test_app.py fails:"


def test_only_the_end_of_a_long_output_is_told(bench: Bench) -> None:
    checks = Scripted(commands=("make",))
    checks.ends = {"make": ended(1, "first\n" + "line\n" * 400 + "x" * 100)}
    told = message(ran(bench, checks))
    assert told[0] == "make fails:"
    assert (told[1], told[-1]) == ("line", "x" * 100)
    assert len("\n".join(told[1:])) <= LONGEST_OUTPUT


def test_a_check_that_takes_too_much_fails(bench: Bench) -> None:
    checks = Scripted(commands=("make test",))
    checks.ends = {"make test": ended(137, "half\n", limit=FULL)}
    assert message(ran(bench, checks)) == [f"make test {USED_UP}", "half"]
