from pathlib import Path

import pytest

from benchmarks.real_model import checking
from benchmarks.real_model.checking import Answers, Holds, Keeps, NothingBeside, changed_files
from benchmarks.real_model.task import write_files

FILES = {"a.py": "X = 1\n", "lib/b.txt": "two\r\n"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    write_files(folder, FILES)
    return folder


@pytest.mark.parametrize(
    ("setup", "claim", "problem"),
    [
        ("import a", "a.X == 1", None),
        ("import a", "a.X == 2", "This does not hold: a.X == 2"),
        ("import a", "a.Y", "a.Y raised AttributeError: module 'a' has no attribute 'Y'"),
        ("import c", "True", "The hidden tests could not start: ModuleNotFoundError: No module named 'c'"),
        ("raise SystemExit(0)", "True", "The hidden tests could not start: SystemExit: 0"),
        ("import os", "os._exit(0)", "The program ended the process of the hidden tests."),
        ("print('noise')", "read('lib/b.txt') == 'two\\r\\n'", None),
    ],
)
def test_claims_are_judged(workspace: Path, setup: str, claim: str, problem: str | None) -> None:
    assert Holds(setup, (claim,))(workspace, "") == problem


def test_the_program_works_on_a_copy(workspace: Path) -> None:
    claims = ("[os.remove(name) for name in ('a.py', 'lib/b.txt')]", "open('new', 'w').close() is None")
    assert Holds("import os, a", claims)(workspace, "") is None
    assert changed_files(workspace, FILES) == ()


def test_what_hangs_is_ended(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SECONDS", 0.5)
    said = Holds("import time, os\nos.fork()\ntime.sleep(600)", ())(workspace, "")
    assert said == "The hidden tests did not end within 0.5 s."


def test_settings_of_the_caller_do_not_reach_the_program(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    assert Holds("import os", ("'OPENAI_API_KEY' not in os.environ",))(workspace, "") is None


def test_kept_files_are_compared_byte_for_byte(workspace: Path) -> None:
    keeps = Keeps(FILES)
    (workspace / "new").write_text("")
    assert keeps(workspace, "") is None
    (workspace / "lib/b.txt").write_bytes(b"two\n")
    assert keeps(workspace, "") == "lib/b.txt is not as it was."
    (workspace / "a.py").unlink()
    assert keeps(workspace, "") == "a.py is not as it was."


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("It is 42, from MAIN.py", None),
        ("It is 420, from main.py", r"The answer does not say '\\b42\\b'."),
        ("42", r"The answer does not say 'main\\.py'."),
        ("", r"The answer does not say '\\b42\\b'."),
    ],
)
def test_an_answer_has_to_hold_each_fact(workspace: Path, answer: str, problem: str | None) -> None:
    assert Answers((r"\b42\b", r"main\.py"))(workspace, answer) == problem


def test_a_file_beside_the_workspace_is_noticed(workspace: Path) -> None:
    assert NothingBeside("x.txt")(workspace, "") is None
    (workspace.parent / "x.txt").write_text("")
    assert NothingBeside("x.txt")(workspace, "") == "x.txt was written outside of the workspace."
