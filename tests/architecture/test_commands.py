"""The commands of a clean clone: what `make` says, and how `.ci/run` ends."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.product import ROOT
from tests.postgres import SERVER_VARIABLE

CHECKED = "machine runs checked: 20 (100,000 transitions), no violation"
BEFORE = ("setup", "sandbox", "postgres", "lint", "docs", "browser")
"""The stages before the tests, in the order in which they are told."""
SUMMARY = "=== 2 passed, 1 skipped in 0.50s ==="
TARGETS = [
    *("help", "setup", "sandbox", "browser", "postgres", "demo", "test", "sweep", "coverage", "lint", "docs", "record"),
    *("studio", "bench", "scale", "pure", "eval", "everyday", "commits", "redteam", "fuzz", "mutants", "planted"),
    "clean",
]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command as in a shell of its own: these tests may themselves be run by `make test`, and that by `.ci/run`."""
    theirs = ("MAKE", "MFLAGS", "ARGS", SERVER_VARIABLE)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return subprocess.run(
        command, cwd=cwd, env=ours, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_make_prints_its_targets() -> None:
    printed = run("make", cwd=ROOT).stdout
    assert re.findall(r"^  make (\w+) +\S", printed, re.MULTILINE) == TARGETS


def test_make_test_prepares_the_environment_and_runs_all_tests() -> None:
    """Where the environment is not that of the lock file: it is made first, and pytest gets no choice of tests."""
    *_, made, _, tested = run("make", "-n", "--what-if=uv.lock", "test", cwd=ROOT).stdout.splitlines()
    assert re.search(r"uv sync\b.* --locked --all-extras\b", made)
    assert re.fullmatch(r"\.venv/bin/pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore tests/architecture *", tested)


def test_make_demo_fetches_what_the_demo_needs_alone() -> None:
    made = run("make", "-n", "--what-if=uv.lock", "demo", cwd=ROOT).stdout
    assert re.search(r"uv sync\b.* --locked --inexact --no-dev --extra local\b", made)
    assert "--all-extras" not in made


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("exit 127", "mendgraph needs Python 3.11.4 to 3.14, and ./python is missing: try make"),
        ('test "$1" != -c && echo Python 3.10.1', "3.14, and ./python is Python 3.10.1: try make PYTHON=python3.12"),
        ("case $2 in *ensurepip*) exit 1; esac", "./python has no venv module: install it"),
    ],
)
def test_python_that_will_not_do_is_told_in_one_line(tmp_path: Path, python: str, message: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{python}\n", encoding="utf-8")
    script.chmod(0o755)
    done = run("make", "-s", "PYTHON=./python", ".tools/uv/bin/uv", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert message in done.stdout


@pytest.mark.parametrize(
    ("program", "said"), [("bwrap", ""), ("ls", "bubblewrap is missing, so programs run below Landlock")]
)
def test_missing_sandbox_is_told_in_one_line_and_fails_nothing(tmp_path: Path, program: str, said: str) -> None:
    for name in {"make", "sh", "id", "grep", program}:
        (tmp_path / name).symlink_to(shutil.which(name) or "/bin/true")
    command = ["env", f"PATH={tmp_path}", "make", "-s", "SHELL=/bin/sh", "sandbox"]
    done = run(*command, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(said)
    assert done.stdout.count("\n") == bool(said)


def copy_ci(folder: Path) -> None:
    """`.ci/run`, and what stands for the database server that it starts: it ends when its input does."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    server = folder / ".venv" / "bin" / "python"
    server.parent.mkdir(parents=True)
    server.write_text("#!/bin/sh\necho postgresql://there\nexec cat\n", encoding="utf-8")
    server.chmod(0o755)


@pytest.mark.parametrize(
    ("broken", "stages", "code"),
    [
        ("nothing", [*BEFORE, "test", "sweep", "demo"], 0),
        ("demo", [*BEFORE, "test", "sweep", "demo"], 2),
        ("test", [*BEFORE, "test"], 2),
        ("sweep", [*BEFORE, "test", "sweep"], 2),
    ],
)
def test_ci_ends_with_the_summary_of_the_tests(tmp_path: Path, broken: str, stages: list[str], code: int) -> None:
    copy_ci(tmp_path)
    rules = [
        "setup sandbox browser postgres lint docs test sweep demo:\n",
        "\t@echo doing $@ $$MENDGRAPH_TEST_POSTGRES $(SWEEP)\n",
        f"\t@test $@ != sweep || echo '{CHECKED}'\n\t@test $@ != test || echo '{SUMMARY}'\n\t@test $@ != {broken}\n",
    ]
    (tmp_path / "Makefile").write_text("".join(rules), encoding="utf-8")
    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    lines = done.stdout.splitlines()
    done_with = [line.split()[1:] for line in lines if line.startswith("doing ")]
    after = {"test": [], "sweep": ["turns"], "demo": []}
    assert done_with == [[each] if each in BEFORE else [each, "postgresql://there", *after[each]] for each in stages]
    assert (done.returncode, lines[-1], lines.count(SUMMARY)) == (code, SUMMARY, 2)


def test_ci_wants_twenty_five_thousand_transitions(tmp_path: Path) -> None:
    copy_ci(tmp_path)
    few = CHECKED.replace("100,000", "24,999")
    rules = [
        "setup sandbox browser postgres lint docs test sweep demo:\n",
        f"\t@test $@ != sweep || echo '{few}'\n\t@test $@ != test || echo '{SUMMARY}'\n",
    ]
    (tmp_path / "Makefile").write_text("".join(rules), encoding="utf-8")
    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (
        1,
        ["24999 transitions of the machine were checked: 25,000 are wanted", SUMMARY],
    )
