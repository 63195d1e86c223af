"""What tests prove that the session itself added or changed: whole runs, with the tests in a sandbox."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mendgraph import AgentContext, Ended, Outcome, Session
from tests.doubles.replies import Say
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.sandboxes import needs_sandbox
from tests.surfaces.runs.tool_play import PROTOCOLS, play, reads, scripted_model
from tests.workspace_files import write_files

pytestmark = needs_sandbox
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")

DONE = Say("Done.")
WRONG, RIGHT, OTHER = "return a - b", "return a + b", "return a * b"
CALC = f"def add(a, b):\n    {WRONG}\n\n\ndef neg(a):\n    return 0 - a\n"
HEAD = "import unittest\n\nimport calc\n\n\nclass T(unittest.TestCase):\n"


def case(name: str, call: str, value: int) -> str:
    return f"    def test_{name}(self):\n        self.assertEqual(calc.{call}, {value})\n"


ZERO, SUM, NEG = case("zero", "add(0, 0)", 0), case("sum", "add(2, 3)", 5), case("neg", "neg(1)", -1)
ONES, DOUBLE = case("ones", "add(0, 0)", 0), case("double", "double(2)", 4)


def write(path: str, text: str) -> Use:
    return use(("write_file", {"path": path, "content": text}))


def edit(old: str, new: str, path: str = "calc.py") -> Use:
    return use(("edit_file", {"path": path, "old_str": old, "new_str": new}))


def finish(root: Path, *replies: Use | Say, files: Mapping[str, str] | None = None, **more: Any) -> Outcome:
    """The end of a run in a workspace with these files, in which the model makes these calls and answers."""
    write_files(root, {"calc.py": CALC, **(files or {})})
    settings = {"evidence": True, "max_calls_per_turn": 20, **more}
    return play(root, *replies, DONE, request="Work on the project.", **settings).outcome


FIX = (reads("calc.py"), edit(WRONG, RIGHT))
CHANGE = (reads("calc.py"), edit(WRONG, OTHER))

PAIR_TEST = "from pair import pair\n\n\ndef test_pair():\n    assert pair(1) == (1, 1)\n"
INHERITED = f"import unittest\n\nimport calc\n\n\nclass Base:\n{ZERO}\n\nclass T(Base, unittest.TestCase):\n    pass\n"
SUPPORT = "import calc\n\n\ndef check(test):\n    test.assertEqual(calc.add(0, 0), 0)\n"
SUPPORTED = HEAD.replace("import calc", "from tests.numbers import check")
SUPPORTED += "    def test_zero(self):\n        check(self)\n"
OLD = {
    "calc.py": "from old import minus\n\n\ndef add(a, b):\n    return minus(a, b)\n",
    "old.py": "def minus(a, b):\n    return a - b\n",
}
SKIPPED = "".join(f"    @unittest.skip('no docker')\n{case(str(number), 'add(0, 0)', 1)}" for number in (1, 2))

Case = tuple[tuple[Use, ...], dict[str, str], str, str]
CASES: dict[str, Case] = {
    "a new test that passes on the old files": (
        (*CHANGE, write("test_calc.py", HEAD + ZERO)),
        {},
        "indistinct",
        "not verified: 1 test passes; T.test_zero does not distinguish before from after.",
    ),
    "a new test that fails on the old files": (
        (*FIX, write("test_calc.py", HEAD + SUM + ZERO)),
        {},
        "passed",
        "2 tests pass; T.test_sum failed before the change; T.test_zero does not distinguish before from after.",
    ),
    "a test of new code": (
        (
            reads("calc.py"),
            edit("return 0 - a\n", "return 0 - a\n\n\ndef double(a):\n    return 2 * a\n"),
            write("test_calc.py", HEAD + DOUBLE),
        ),
        {},
        "passed",
        "1 test passes; T.test_double tests new code.",
    ),
    "a test of a new module": (
        (write("pair.py", "def pair(a):\n    return a, a\n"), write("test_pair.py", PAIR_TEST)),
        {},
        "passed",
        "test_pair tests new code",
    ),
    "an existing test that failed before": (
        (*FIX, reads("test_calc.py"), edit(NEG, NEG + ZERO, "test_calc.py")),
        {"test_calc.py": HEAD + SUM + NEG},
        "passed",
        "T.test_sum failed before the change; T.test_zero does not distinguish",
    ),
    "an existing test that runs a changed line": (
        (*CHANGE, reads("test_calc.py"), edit(ZERO, ZERO + ONES, "test_calc.py")),
        {"test_calc.py": HEAD + ZERO},
        "passed",
        "T.test_ones does not distinguish",
    ),
    "an existing test that runs no changed line": (
        (*CHANGE, reads("test_calc.py"), edit(NEG, NEG + ONES, "test_calc.py")),
        {"test_calc.py": HEAD + NEG},
        "indistinct",
        "T.test_ones does not distinguish",
    ),
    "an inherited test": (
        (*CHANGE, write("test_calc.py", INHERITED)),
        {},
        "indistinct",
        "T.test_zero does not distinguish",
    ),
    "support of the tests, which stays when the old code is put back": (
        (*CHANGE, write("tests/numbers.py", SUPPORT), write("tests/test_calc.py", SUPPORTED)),
        {"tests/__init__.py": ""},
        "indistinct",
        "T.test_zero does not distinguish",
    ),
    "a deleted module that the old code needs": (
        (
            reads("calc.py"),
            write("calc.py", CALC),
            edit(WRONG, RIGHT),
            use(("delete_file", {"path": "old.py"})),
            write("test_calc.py", HEAD + SUM),
        ),
        OLD,
        "passed",
        "T.test_sum did not run on the files before the session's first change",
    ),
    "skipped tests": (FIX, {"test_calc.py": HEAD + SUM + SKIPPED}, "passed", "1 test passes, 2 skipped: no docker."),
}


@pytest.mark.parametrize("name", CASES)
def test_own_test_verifies_only_if_it_distinguishes_the_change(tmp_path: Path, name: str) -> None:
    replies, files, kind, message = CASES[name]
    outcome = finish(tmp_path, *replies, files=files)
    assert (outcome.kind, outcome.verified.kind) == ("FINISHED", kind)
    assert message in outcome.message


@slow
def test_test_that_distinguishes_nothing_does_not_count_as_a_required_check(tmp_path: Path) -> None:
    outcome = finish(tmp_path, *CHANGE, write("test_calc.py", HEAD + ZERO), require_checks=True)
    assert (outcome.kind, outcome.reason) == ("SYSTEM_ERROR", "not_checked")
    assert outcome.message.startswith("This run has to be checked, and no test that passes distinguishes its changes. ")


@slow
def test_run_that_adds_only_tests_is_finished_as_indistinct(tmp_path: Path) -> None:
    outcome = finish(tmp_path, write("test_calc.py", HEAD + NEG), require_checks=True)
    assert (outcome.kind, outcome.verified.kind) == ("FINISHED", "indistinct")
    assert "1 test passes; T.test_neg does not distinguish before from after." in outcome.message
    assert "not verified" not in outcome.message


@slow
def test_old_files_are_those_before_the_first_change_of_the_session(tmp_path: Path) -> None:
    write_files(tmp_path, {"calc.py": CALC})
    model = scripted_model(PROTOCOLS[1], *FIX, DONE, write("test_calc.py", HEAD + SUM), DONE)
    context = AgentContext(workspace=str(tmp_path), protocol="native", read_ahead=False)
    with Session(context, model=model) as session:
        session.work("Fix add.")
        last = session.work("Add a test.")
    assert isinstance(last, Ended)
    assert last.outcome.verified.failed_before == ("T.test_sum",)


# --- Commands, and where the run has changed what selects or runs its checks

SHELL = {"add.sh": "add() { echo $(($1 - $2)); }\n", "test_add.sh": ". ./add.sh\nadd 2 3 | grep -qx 5\n"}
MAKEFILE = {"Makefile": "test:\n\tsh test_add.sh\n"}
PLUS, TIMES = (edit("$1 - $2", f"$1 {sign} $2", "add.sh") for sign in "+*")


@slow
@needs_make
@pytest.mark.parametrize(
    ("test", "others", "kind"),
    [
        ("add 0 0 | grep -qx 0", {}, "indistinct"),
        ("add 2 3 | grep -qx 5", {}, "passed"),
        ("add 0 0 | grep -qx 0", {"test_other.sh": "true\n"}, "passed"),
    ],
    ids=["the same before", "fails before", "beside another test"],
)
def test_check_command_reruns_on_the_old_files_if_its_tests_changed(
    tmp_path: Path, test: str, others: dict[str, str], kind: str
) -> None:
    files = {"add.sh": SHELL["add.sh"], **MAKEFILE, **others}
    outcome = finish(tmp_path, reads("add.sh"), PLUS, write("test_add.sh", f". ./add.sh\n{test}\n"), files=files)
    assert (outcome.verified.kind, outcome.verified.ran) == (kind, ("make test",))
    assert bool(outcome.verified.indistinct) is ("0 0" in test)


@slow
def test_users_check_command_verifies_if_it_passes_with_the_old_tests(tmp_path: Path) -> None:
    added = (*CHANGE, write("test_calc.py", HEAD + ZERO))
    one = finish(tmp_path / "one", *added, checks=("grep -q test_zero test_calc.py",))
    two = finish(tmp_path / "two", *added, checks=("grep -q def calc.py",))
    assert (one.verified.kind, two.verified.kind) == ("indistinct", "passed")


@slow
@needs_make
@pytest.mark.parametrize("command", ["make test", "make -s test"], ids=["of the project", "of the person"])
def test_command_that_passes_only_with_the_changed_makefile_verifies_nothing(tmp_path: Path, command: str) -> None:
    more: dict[str, Any] = {} if command == "make test" else {"checks": (command,), "evidence": False}
    changes = (reads("add.sh", "Makefile"), TIMES, edit("sh test_add.sh", "true", "Makefile"))
    outcome = finish(tmp_path, *changes, files={**SHELL, **MAKEFILE}, **more)
    assert (outcome.kind, outcome.verified.kind) == ("FINISHED", "none")
    assert f"not checked: {command} does not pass with Makefile as before" in outcome.message


@slow
@needs_make
def test_command_that_passes_with_the_old_makefile_verifies(tmp_path: Path) -> None:
    changes = (reads("add.sh", "Makefile"), PLUS, edit("test:", "clean:\n\ntest:", "Makefile"))
    outcome = finish(tmp_path, *changes, files={**SHELL, **MAKEFILE})
    assert (outcome.verified.kind, outcome.verified.ran) == ("passed", ("make test",))


@slow
@needs_make
def test_deleted_check_settings_leave_nothing_verified(tmp_path: Path) -> None:
    files = {**SHELL, "GNUmakefile": MAKEFILE["Makefile"], "Makefile": "test:\n\ttrue\n"}
    deleted = use(("delete_file", {"path": "GNUmakefile"}))
    outcome = finish(tmp_path, reads("add.sh", "GNUmakefile"), TIMES, deleted, files=files)
    assert (outcome.kind, outcome.verified.kind) == ("FINISHED", "none")
    assert "nothing is verified: GNUmakefile was deleted, and its old version cannot be run" in outcome.message


HOOK = "def pytest_pyfunc_call(pyfuncitem):\n    return True\n"
FIXTURE = "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n"
PROJECT = Path(__file__).parents[4]
"""What the plugin of pytest needs that is installed with this project."""
SUM_TEST = "import calc\n\n\ndef test_sum():\n    assert calc.add(2, 3) == 5\n"
TWO_TEST = SUM_TEST + "\n\ndef test_two(two):\n    assert calc.add(two, 3) == 5\n"


@slow
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            (*CHANGE, write("conftest.py", HOOK)),
            "none",
            "test_calc.py::test_sum does not pass with conftest.py as before",
        ),
        (
            (*FIX, write("conftest.py", FIXTURE), reads("test_calc.py"), write("test_calc.py", TWO_TEST)),
            "passed",
            "2 tests pass; test_calc.py::test_two does not pass with conftest.py as before",
        ),
    ],
    ids=["a hook that passes all", "a fixture of a new test"],
)
def test_pytest_tests_also_run_with_the_old_conftest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: tuple[Use, ...], kind: str, message: str
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    outcome = finish(tmp_path, *changes, files={"test_calc.py": SUM_TEST}, readable_folders=(str(PROJECT),))
    assert outcome.verified.kind == kind
    assert message in outcome.message
