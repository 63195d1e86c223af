"""A small project whose tests notice some changes and others not. It is judged by a process of its own, which forks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mutants.verdicts import Verdict
from tests.architecture.product import ROOT

SOURCE = """from functools import cache

LIMIT = 3


def early(n):
    return n * 2


EARLY = early(2)


@cache
def remembered(n):
    return n + 10


def unseen(n):
    return n + 20


def counted(n):
    while n > 0:
        n -= 1
    return n


def shared():
    return [30]
"""
TESTS = """import pytest
from first.second import EARLY, LIMIT, counted, early, remembered, shared, unseen


@pytest.fixture(scope="module")
def kept():
    return shared()


def test_first(kept):
    assert remembered(1) > 0


def test_limit(kept):
    assert LIMIT == 3
    assert remembered(1) == 11


def test_early():
    assert EARLY == 4


def test_unseen():
    assert unseen(1)


def test_counted():
    assert counted(3) == 0


def test_kept(kept):
    assert kept == [30]
"""
PROGRAM = """
import hypothesis, json, sys
from pathlib import Path
from benchmarks.mutants.mutation import mutants_of
from benchmarks.mutants.verdicts import Place, judge

root, folder = map(Path, sys.argv[1:])
sys.path.insert(0, str(root))
hypothesis.settings.register_profile("mutants")
source = (root / "first/second.py").read_text()
wanted = json.loads(sys.stdin.read())
mutants = [each for each in mutants_of("first/second.py", source) if list(each.lines(source)[1:]) in wanted]
place = Place(root, "first/second.py", source, ("test_second.py",), folder, ())
print(json.dumps([[*each.mutant.lines(source)[1:], each.verdict, each.by] for each in judge(place, mutants)]))
"""


EXPECTED = {
    ("LIMIT = 3", "LIMIT = 4"): (Verdict.KILLED, "test_limit"),
    ("return n * 2", "return n / 2"): (Verdict.KILLED, "test_early"),
    ("return n + 10", "return n + 11"): (Verdict.KILLED, "test_limit"),
    ("return n + 20", "return n + 21"): (Verdict.SURVIVED, ""),
    ("n -= 1", "n += 1"): (Verdict.TIMEOUT, ""),
    ("return [30]", "return [31]"): (Verdict.KILLED, "test_kept"),
}
"""Of a line before and after: the verdict, and the test that notices it."""
NAMES = ["of the module", "called at import", "remembered", "unnoticed", "endless", "in a shared fixture"]
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "_hypothesis_pytestplugin"}


def judged(root: Path, tests: str) -> subprocess.CompletedProcess[str]:
    project, folder = root / "project", root / "folder"
    (project / "first").mkdir(parents=True)
    folder.mkdir()
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (project / "first/__init__.py").write_text("")
    (project / "first/second.py").write_text(SOURCE)
    (project / "test_second.py").write_text(tests)
    command = [sys.executable, "-c", PROGRAM, str(project), str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=json.dumps(list(EXPECTED)),
        env=os.environ | QUICK,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (project / "first/second.py").read_text() == SOURCE
    return done


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[str, str]]:
    done = judged(tmp_path_factory.mktemp("judged"), TESTS)
    assert done.returncode == 0, done.stderr
    return {(before, after): (verdict, by.rpartition(":")[2]) for before, after, verdict, by in json.loads(done.stdout)}


@pytest.mark.parametrize("change", EXPECTED, ids=NAMES)
def test_a_mutant_is_killed_by_a_test_that_notices_it(
    verdicts: dict[tuple[str, str], tuple[str, str]], change: tuple[str, str]
) -> None:
    assert verdicts[change] == EXPECTED[change]


def test_nothing_is_said_of_mutants_where_the_tests_fail_without_any(tmp_path: Path) -> None:
    done = judged(tmp_path, "def test_red():\n    assert False\n")
    assert done.returncode == 1
    assert "test_second.py: not green without a mutant" in done.stderr
