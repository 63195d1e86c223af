"""The commands of a clean clone: what `make` says, and how `.ci/run` ends."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.house import ROOT, text_of

CHECKED = "machine runs checked: 20 (100,000 transitions), no violation"
SUMMARY = "=== 2 passed, 1 skipped in 0.50s ==="
TARGETS = [
    "help",
    "setup",
    "sandbox",
    "demo",
    "test",
    "sweep",
    "coverage",
    "lint",
    "record",
    "studio",
    "bench",
    "pure",
    "eval",
    "fuzz",
    "mutants",
    "clean",
]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command as in a shell of its own: these tests may themselves be run by `make test`."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    return subprocess.run(
        command, cwd=cwd, env=ours, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_make_prints_its_targets() -> None:
    printed = run("make", cwd=ROOT).stdout
    assert re.findall(r"^  make (\w+) +\S", printed, re.MULTILINE) == TARGETS


def test_every_target_is_phony() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text_of("Makefile"), re.MULTILINE)
    assert phony.split() == TARGETS


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("exit 127", "mendgraph needs Python 3.11 to 3.14, and ./python is missing: try make"),
        ('test "$1" != -c && echo Python 3.10.1', "3.14, and ./python is Python 3.10.1: try make PYTHON=python3.12"),
        ("case $2 in *ensurepip*) exit 1; esac", "./python has no venv module: install it"),
    ],
)
def test_a_python_that_will_not_do_is_told_in_one_line(tmp_path: Path, python: str, message: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{python}\n", encoding="utf-8")
    script.chmod(0o755)
    done = run("make", "-s", "PYTHON=./python", ".tools/uv/bin/uv", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert message in done.stdout


@pytest.mark.parametrize(
    ("program", "said"), [("bwrap", ""), ("ls", "bubblewrap is missing, so run_command is refused")]
)
def test_a_missing_sandbox_is_told_in_one_line_and_fails_nothing(tmp_path: Path, program: str, said: str) -> None:
    for name in {"make", "sh", "id", "grep", program}:
        (tmp_path / name).symlink_to(shutil.which(name) or "/bin/true")
    command = ["env", f"PATH={tmp_path}", "make", "-s", "SHELL=/bin/sh", "sandbox"]
    done = run(*command, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(said)
    assert done.stdout.count("\n") == bool(said)


@pytest.mark.parametrize(
    ("broken", "stages", "code"),
    [
        ("nothing", ["setup", "sandbox", "lint", "test", "sweep", "demo"], 0),
        ("demo", ["setup", "sandbox", "lint", "test", "sweep", "demo"], 2),
        ("test", ["setup", "sandbox", "lint", "test"], 2),
        ("sweep", ["setup", "sandbox", "lint", "test", "sweep"], 2),
    ],
)
def test_ci_ends_with_the_summary_of_the_tests(tmp_path: Path, broken: str, stages: list[str], code: int) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    rules = [
        "setup sandbox lint test sweep demo:\n\t@echo doing $@\n",
        f"\t@test $@ != test || echo '{CHECKED}'\n\t@test $@ != test || echo '{SUMMARY}'\n\t@test $@ != {broken}\n",
    ]
    (tmp_path / "Makefile").write_text("".join(rules), encoding="utf-8")
    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert [line.removeprefix("doing ") for line in lines if line.startswith("doing ")] == stages
    assert (done.returncode, lines[-1], lines.count(SUMMARY)) == (code, SUMMARY, 2)


def test_ci_wants_a_hundred_thousand_transitions(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    few = CHECKED.replace("100,000", "99,999")
    rules = ["setup sandbox lint test sweep demo:\n", f"\t@test $@ != test || echo '{few}'\n\t@echo '{SUMMARY}'\n"]
    (tmp_path / "Makefile").write_text("".join(rules), encoding="utf-8")
    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (
        1,
        ["99999 transitions of the machine were checked: 100,000 are wanted", SUMMARY],
    )


def test_ci_stops_at_the_first_failure_without_a_summary_of_its_own(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text("setup sandbox lint:\n\t@test $@ != lint\n", encoding="utf-8")
    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (2, "--- make lint")


def test_ci_is_a_program() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
