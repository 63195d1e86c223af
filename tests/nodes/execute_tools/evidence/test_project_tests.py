"""The program as it is started, but without a sandbox."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.evidence import checks, project_tests
from mendgraph.nodes.execute_tools.evidence.project_tests import NOTHING_RAN, by_hand, main, with_pytest

FIXTURE = """import pytest
from app import add

@pytest.mark.parametrize('n', [5])
def test_add(n):
    assert add(2, 3) == n
"""
PLAIN_PYTEST = {
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
RIGHT, WRONG = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize(("app", "code"), [(RIGHT, 0), (WRONG, 1)])
def test_with_pytest(tmp_path: Path, app: str, code: int) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "tests/test_app.py").write_text(FIXTURE)
    program = [sys.executable, "-B", project_tests.__file__, "tests/test_app.py"]
    env = {"PATH": os.environ["PATH"], **PLAIN_PYTEST}
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout


def test_the_exit_code_is_the_one_that_checks_know() -> None:
    assert checks.NOTHING_RAN == NOTHING_RAN


# --- Its parts, in this process


def loaded(code: str) -> ModuleType:
    module = ModuleType("checked_tests")
    exec(compile(code, "tests.py", "exec"), vars(module))  # noqa: S102 - our own code
    return module


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("def test_a(): pass\nX = test_b = 1\n", 0, ""),
        ("def test_a():\n    raise ValueError('no')\n", 1, "test_a failed at line 2: \nValueError: no\n"),
        ("def test_a(tmp_path): raise ValueError\n", NOTHING_RAN, ""),
        ("def helper(): raise ValueError\n", NOTHING_RAN, ""),
    ],
)
def test_functions_are_called_by_hand(capsys: pytest.CaptureFixture[str], code: str, status: int, said: str) -> None:
    assert (by_hand(loaded(code)), capsys.readouterr().out) == (status, said)


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 1), (2, 1), (4, 1), (5, NOTHING_RAN)])
def test_the_exit_codes_of_pytest_in_ours(monkeypatch: pytest.MonkeyPatch, code: int, status: int) -> None:
    def started(options: list[str]) -> int:
        assert options[-1] == "test_a.py"
        return code

    monkeypatch.setattr(pytest, "main", started)
    assert with_pytest("test_a.py") == status


@pytest.mark.parametrize(
    ("file", "tests", "there", "status"),
    [
        ("test_a.py", "def test_a(): pass\n", False, 0),
        ("test_a.py", "def test_a(): assert False\n", False, 1),
        ("test_a.py", "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): self.fail()\n", False, 1),
        ("test_a.py", "import pytest\n", False, NOTHING_RAN),
        ("test_a.txt", "def test_a(): pass\n", False, NOTHING_RAN),
        ("test_a.py", "def test_a(): pass\n", True, 1),
    ],
)
def test_which_way_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, tests: str, there: bool, status: int
) -> None:
    def found(name: str) -> Any:
        assert name == "pytest"
        return object() if there else None

    (tmp_path / file).write_text(tests)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(project_tests, "with_pytest", lambda _: 1)
    path = list(sys.path)
    assert main(file) == status
    assert sys.path == [str(tmp_path), str(tmp_path / "src"), str(tmp_path), *path]
