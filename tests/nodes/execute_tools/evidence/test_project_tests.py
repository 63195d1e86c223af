"""The program as it is started, but without a sandbox, and its parts in this process."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.evidence import checks, project_tests
from mendgraph.nodes.execute_tools.evidence.project_tests import NOTHING_RAN, main, with_pytest

PLAIN = "from app import add\ndef test_add(): assert add(2, 3) == 5\ndef test_needs(tmp_path): assert False\n"
UNIT = (
    "import unittest\nfrom app import add\n"
    "class Adding(unittest.TestCase):\n    def test_add(self): self.assertEqual(add(2, 3), 5)\n"
)
FIXTURE = (
    "import pytest\nfrom app import add\n@pytest.mark.parametrize('n', [5])\ndef test_add(n): assert add(2, 3) == n\n"
)
RIGHT, WRONG = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize(("app", "code"), [(RIGHT, 0), (WRONG, 1)])
def test_with_pytest(tmp_path: Path, app: str, code: int) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "tests/test_app.py").write_text(FIXTURE)
    program = [sys.executable, "-B", project_tests.__file__, "tests/test_app.py"]
    env = {"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout


def test_the_exit_code_is_the_one_that_checks_know() -> None:
    assert checks.NOTHING_RAN == NOTHING_RAN


@pytest.mark.parametrize(("code", "status"), [(0, 0), (4, 1), (5, NOTHING_RAN)])
def test_the_exit_codes_of_pytest_in_ours(monkeypatch: pytest.MonkeyPatch, code: int, status: int) -> None:
    monkeypatch.setattr(pytest, "main", lambda _: code)
    assert with_pytest("test_a.py") == status


@pytest.mark.parametrize(
    ("app", "tests", "status"),
    [
        (RIGHT, PLAIN, 0),
        (WRONG, PLAIN, 1),
        (RIGHT, UNIT, 0),
        (WRONG, UNIT, 1),
        (RIGHT, "def test_a(tmp_path): raise ValueError\ndef helper(): raise ValueError\n", NOTHING_RAN),
    ],
)
def test_without_pytest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    app: str,
    tests: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "test_app.py").write_text(tests)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main("test_app.py") == status
    assert ("test_add" in capsys.readouterr().out) == (status == 1)
