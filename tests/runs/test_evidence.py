"""What tests prove that a session has added or changed itself: whole runs, with the project's tests in a sandbox."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mendgraph import AgentContext, Session, run_task
from mendgraph.graph.runs.events import Ended
from mendgraph.nodes.records import Outcome, OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.sandboxes import needs_sandbox
from tests.workspace_files import write_files

pytestmark = needs_sandbox

DONE = Say("Done.")
WRONG, RIGHT, OTHER = "return a - b", "return a + b", "return a * b"
CALC = f"def add(a, b):\n    {WRONG}\n\n\ndef neg(a):\n    return 0 - a\n"
HEAD = "import unittest\n\nimport calc\n\n\nclass T(unittest.TestCase):\n"


def case(name: str, call: str, value: int) -> str:
    return f"    def test_{name}(self):\n        self.assertEqual(calc.{call}, {value})\n"


ZERO, SUM, NEG = case("zero", "add(0, 0)", 0), case("sum", "add(2, 3)", 5), case("neg", "neg(1)", -1)
DOUBLE = case("double", "double(2)", 4)
DOUBLE_CODE = "\n\ndef double(a):\n    return 2 * a\n"


def write(path: str, text: str) -> Use:
    return use(("write_file", {"path": path, "content": text}))


def edit(old: str, new: str, path: str = "calc.py") -> Use:
    return use(("edit_file", {"path": path, "old_str": old, "new_str": new}))


def read(path: str) -> Use:
    return use(("read_file", {"path": path}))


def settings(root: Path, **more: Any) -> AgentContext:
    return AgentContext(workspace=str(root), protocol="native", read_ahead=False, max_calls_per_turn=20, **more)


def finish(root: Path, *replies: Use | Say, files: Mapping[str, str] | None = None, **more: Any) -> Outcome:
    """The end of a run in a workspace with these files, in which the model makes these calls and answers."""
    write_files(root, {"calc.py": CALC, **(files or {})})
    model = ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in (*replies, DONE)])
    return run_task("Work on the project.", settings(root, **more), model=model).outcome


FIX = (read("calc.py"), edit(WRONG, RIGHT))
CHANGE = (read("calc.py"), edit(WRONG, OTHER))


def test_new_test_that_passes_on_the_old_files_verifies_nothing(tmp_path: Path) -> None:
    outcome = finish(tmp_path, *CHANGE, write("test_calc.py", HEAD + ZERO))

    assert (outcome.kind, outcome.verified.kind) == (OutcomeKind.FINISHED, "indistinct")
    assert (outcome.verified.ran, outcome.verified.indistinct) == (("unittest test_calc.py: 1 test",), ("T.test_zero",))
    assert "not verified: 1 test passes; T.test_zero does not distinguish before from after." in outcome.message


def test_where_checks_are_required_a_test_that_distinguishes_nothing_is_none(tmp_path: Path) -> None:
    outcome = finish(tmp_path, *CHANGE, write("test_calc.py", HEAD + ZERO), require_checks=True)

    assert (outcome.kind, outcome.reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.NOT_CHECKED)
    assert outcome.message.startswith("This run has to be checked, and no test that passes distinguishes its changes. ")


@pytest.mark.parametrize("require_checks", [False, True])
def test_tests_alone_do_not_distinguish_and_nobody_is_blamed(tmp_path: Path, require_checks: bool) -> None:
    outcome = finish(tmp_path, write("test_calc.py", HEAD + NEG), require_checks=require_checks)

    assert (outcome.kind, outcome.verified.kind) == (OutcomeKind.FINISHED, "indistinct")
    assert "1 test passes; T.test_neg does not distinguish before from after." in outcome.message
    assert "not verified" not in outcome.message


def test_test_that_fails_on_the_old_files_verifies(tmp_path: Path) -> None:
    outcome = finish(tmp_path, *FIX, write("test_calc.py", HEAD + SUM + ZERO))

    assert (outcome.kind, outcome.verified.kind) == (OutcomeKind.FINISHED, "passed")
    assert (outcome.verified.failed_before, outcome.verified.indistinct) == (("T.test_sum",), ("T.test_zero",))
    assert (
        "2 tests pass; T.test_sum failed before the change; T.test_zero does not distinguish before from after."
        in outcome.message
    )


def test_test_of_new_code_is_named_as_such(tmp_path: Path) -> None:
    added = edit("return 0 - a\n", f"return 0 - a\n{DOUBLE_CODE}")
    outcome = finish(tmp_path, read("calc.py"), added, write("test_calc.py", HEAD + DOUBLE))

    assert (outcome.verified.kind, outcome.verified.new_code) == ("passed", ("T.test_double",))
    assert "1 test passes; T.test_double tests new code." in outcome.message


def test_test_of_a_new_module_is_one_of_new_code(tmp_path: Path) -> None:
    test = "from pair import pair\n\n\ndef test_pair():\n    assert pair(1) == (1, 1)\n"
    outcome = finish(tmp_path, write("pair.py", "def pair(a):\n    return a, a\n"), write("test_pair.py", test))

    assert (outcome.verified.kind, outcome.verified.new_code) == ("passed", ("test_pair",))


def test_existing_test_that_failed_before_is_named(tmp_path: Path) -> None:
    outcome = finish(
        tmp_path,
        *FIX,
        read("test_calc.py"),
        edit(NEG, NEG + ZERO, "test_calc.py"),
        files={"test_calc.py": HEAD + SUM + NEG},
    )

    assert (outcome.verified.kind, outcome.verified.failed_before) == ("passed", ("T.test_sum",))
    assert outcome.verified.indistinct == ("T.test_zero",)


@pytest.mark.parametrize(("existing", "kind"), [(ZERO, "passed"), (NEG, "indistinct")], ids=["runs it", "does not"])
def test_existing_test_verifies_where_it_runs_a_changed_line(tmp_path: Path, existing: str, kind: str) -> None:
    added = case("ones", "add(0, 0)", 0)
    outcome = finish(
        tmp_path,
        *CHANGE,
        read("test_calc.py"),
        edit(existing, existing + added, "test_calc.py"),
        files={"test_calc.py": HEAD + existing},
    )

    assert (outcome.verified.kind, outcome.verified.indistinct) == (kind, ("T.test_ones",))


def test_inherited_test_is_changed_with_its_class(tmp_path: Path) -> None:
    base = f"import unittest\n\nimport calc\n\n\nclass Base:\n{ZERO}\n\nclass T(Base, unittest.TestCase):\n    pass\n"
    outcome = finish(tmp_path, *CHANGE, write("test_calc.py", base))

    assert (outcome.verified.kind, outcome.verified.indistinct) == ("indistinct", ("T.test_zero",))


def test_support_of_the_tests_stays_when_the_old_code_is_put_back(tmp_path: Path) -> None:
    test = (
        HEAD.replace("import calc", "from tests.numbers import check")
        + "    def test_zero(self):\n        check(self)\n"
    )
    support = "import calc\n\n\ndef check(test):\n    test.assertEqual(calc.add(0, 0), 0)\n"
    files = {"tests/__init__.py": ""}
    outcome = finish(
        tmp_path, *CHANGE, write("tests/numbers.py", support), write("tests/test_calc.py", test), files=files
    )

    assert (outcome.verified.kind, outcome.verified.indistinct) == ("indistinct", ("T.test_zero",))


def test_old_files_are_those_before_the_first_change_of_the_session(tmp_path: Path) -> None:
    write_files(tmp_path, {"calc.py": CALC})
    replies: tuple[Use | Say, ...] = (*FIX, DONE, write("test_calc.py", HEAD + SUM), DONE)
    model = ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])

    with Session(settings(tmp_path), model=model, thread_id="t") as session:
        for request in ("Fix add.", "Add a test."):
            *_, last = session.stream(request)

    assert isinstance(last, Ended)
    assert last.outcome.verified.kind == "passed"
    assert last.outcome.verified.failed_before == ("T.test_sum",)


def test_what_needs_a_deleted_module_is_told_as_unknown(tmp_path: Path) -> None:
    files = {
        "calc.py": "from old import minus\n\n\ndef add(a, b):\n    return minus(a, b)\n",
        "old.py": "def minus(a, b):\n    return a - b\n",
    }
    outcome = finish(
        tmp_path,
        read("calc.py"),
        write("calc.py", CALC),
        edit(WRONG, RIGHT),
        use(("delete_file", {"path": "old.py"})),
        write("test_calc.py", HEAD + SUM),
        files=files,
    )

    assert (outcome.verified.kind, outcome.verified.failed_before, outcome.verified.indistinct) == ("passed", (), ())
    assert "T.test_sum did not run on the files before the session's first change" in outcome.message


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("test", "others", "kind"),
    [
        ("add 0 0 | grep -qx 0", {}, "indistinct"),
        ("add 2 3 | grep -qx 5", {}, "passed"),
        ("add 0 0 | grep -qx 0", {"test_other.sh": "true\n"}, "passed"),
    ],
    ids=["the same before", "fails before", "beside another test"],
)
def test_command_runs_again_on_the_old_files_where_its_tests_changed(
    tmp_path: Path, test: str, others: dict[str, str], kind: str
) -> None:
    files = {"add.sh": "add() { echo $(($1 - $2)); }\n", "Makefile": "test:\n\tsh test_add.sh\n", **others}
    outcome = finish(
        tmp_path,
        read("add.sh"),
        edit("$1 - $2", "$1 + $2", "add.sh"),
        write("test_add.sh", f". ./add.sh\n{test}\n"),
        files=files,
    )

    assert (outcome.verified.kind, outcome.verified.ran) == (kind, ("make test",))
    assert bool(outcome.verified.indistinct) is ("0 0" in test)


def test_command_of_the_person_verifies_where_it_passes_with_the_old_tests(tmp_path: Path) -> None:
    added = (*CHANGE, write("test_calc.py", HEAD + ZERO))

    one = finish(tmp_path / "one", *added, checks=("grep -q test_zero test_calc.py",))
    two = finish(tmp_path / "two", *added, checks=("grep -q def calc.py",))

    assert (one.verified.kind, two.verified.kind) == ("indistinct", "passed")


def test_skipped_tests_are_counted_with_their_reason(tmp_path: Path) -> None:
    skipped = "".join(f"    @unittest.skip('no docker')\n{case(str(number), 'add(0, 0)', 1)}" for number in (1, 2))
    outcome = finish(tmp_path, *FIX, files={"test_calc.py": HEAD + SUM + skipped})

    assert (outcome.verified.kind, outcome.verified.skipped, outcome.verified.skip_reason) == ("passed", 2, "no docker")
    assert "1 test passes, 2 skipped: no docker." in outcome.message


# --- Where the run has changed what selects or runs its checks

SHELL = {"add.sh": "add() { echo $(($1 - $2)); }\n", "test_add.sh": ". ./add.sh\nadd 2 3 | grep -qx 5\n"}
OTHERWISE = (read("add.sh"), edit("$1 - $2", "$1 * $2", "add.sh"), read("Makefile"))


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("command", ["make test", "make -s test"], ids=["of the project", "of the person"])
def test_command_that_passes_only_with_the_changed_makefile_verifies_nothing(tmp_path: Path, command: str) -> None:
    files = {**SHELL, "Makefile": "test:\n\tsh test_add.sh\n"}
    more: dict[str, Any] = {} if command == "make test" else {"checks": (command,), "evidence": False}

    outcome = finish(tmp_path, *OTHERWISE, edit("sh test_add.sh", "true", "Makefile"), files=files, **more)

    assert (outcome.kind, outcome.verified.kind) == (OutcomeKind.FINISHED, "none")
    assert f"not checked: {command} does not pass with Makefile as before" in outcome.message


HOOK = "def pytest_pyfunc_call(pyfuncitem):\n    return True\n"
FIXTURE = "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n"
PROJECT = Path(__file__).parents[2]
"""What the plugin of pytest needs that is installed with this project."""
SUM_TEST = "import calc\n\n\ndef test_sum():\n    assert calc.add(2, 3) == 5\n"


@pytest.mark.parametrize(
    ("work", "conftest", "test", "kind", "message"),
    [
        (CHANGE, HOOK, "", "none", "test_calc.py::test_sum does not pass with conftest.py as before"),
        (
            FIX,
            FIXTURE,
            "\n\ndef test_two(two):\n    assert calc.add(two, 3) == 5\n",
            "passed",
            "2 tests pass; test_calc.py::test_two does not pass with conftest.py as before",
        ),
    ],
    ids=["a hook that passes all", "a fixture of a new test"],
)
def test_tests_of_pytest_also_run_with_the_old_conftest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: tuple[Use, ...],
    conftest: str,
    test: str,
    kind: str,
    message: str,
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    changes = (*work, write("conftest.py", conftest), read("test_calc.py"), write("test_calc.py", SUM_TEST + test))

    files = {"test_calc.py": SUM_TEST}
    outcome = finish(tmp_path, *(changes if test else changes[:-2]), files=files, readable_folders=(str(PROJECT),))

    assert outcome.verified.kind == kind
    assert message in outcome.message


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_command_that_passes_with_the_old_makefile_verifies(tmp_path: Path) -> None:
    files = {**SHELL, "Makefile": "test:\n\tsh test_add.sh\n"}
    mended = (read("add.sh"), edit("$1 - $2", "$1 + $2", "add.sh"), read("Makefile"))

    outcome = finish(tmp_path, *mended, edit("test:", "clean:\n\ntest:", "Makefile"), files=files)

    assert (outcome.verified.kind, outcome.verified.ran) == ("passed", ("make test",))


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_settings_that_are_gone_leave_nothing_verified(tmp_path: Path) -> None:
    files = {**SHELL, "GNUmakefile": "test:\n\tsh test_add.sh\n", "Makefile": "test:\n\ttrue\n"}
    deleted = use(("delete_file", {"path": "GNUmakefile"}))

    outcome = finish(
        tmp_path, read("add.sh"), edit("$1 - $2", "$1 * $2", "add.sh"), read("GNUmakefile"), deleted, files=files
    )

    assert (outcome.kind, outcome.verified.kind) == (OutcomeKind.FINISHED, "none")
    assert "nothing is verified: GNUmakefile was deleted, and its old version cannot be run" in outcome.message
