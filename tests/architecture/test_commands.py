"""The commands of a clean clone: what `make` says, and how `.ci/run` ends."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.product import ROOT
from tests.postgres import SERVER_VARIABLE

CHECKED = "machine runs checked: 20 ({} transitions), no violation"
BEFORE = ["setup", "sandbox", "postgres", "lint", "docs", "browser"]
"""The stages before the tests, in the order in which they are printed."""
SUMMARY = "=== 2 passed, 1 skipped in 0.50s ==="


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command as in a shell of its own: these tests may themselves be run by `make lint`, and that by `.ci/run`."""
    theirs = ("MAKE", "MFLAGS", "ARGS", SERVER_VARIABLE)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return subprocess.run(
        command, cwd=cwd, env=ours, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_make_prints_every_target() -> None:
    printed = re.findall(r"^  make (\w+) +\S", run("make").stdout, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony is not None
    assert sorted(printed) == sorted(phony[1].split())


def test_make_test_prepares_the_environment_and_runs_all_tests_but_the_slow_ones() -> None:
    """If the environment does not match the lock file, it is updated first."""
    *_, sync_command, _, test_command = run("make", "-n", "--what-if=uv.lock", "test").stdout.splitlines()
    assert re.search(r"uv sync\b.* --locked --all-extras\b", sync_command)
    options = '-n 3 --dist loadfile --no-loadscope-reorder --ignore tests/architecture -m "not slow"'
    assert re.fullmatch(rf"\.venv/bin/pytest {options} *", test_command)

    sync_command = run("make", "-n", "--what-if=uv.lock", "demo").stdout
    assert re.search(r"uv sync\b.* --locked --inexact --no-dev --extra local\b", sync_command)
    assert "--all-extras" not in sync_command


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("exit 127", "mendgraph needs Python 3.11.4 to 3.14, and ./python is missing: try make"),
        ('test "$1" != -c && echo Python 3.10.1', "3.14, and ./python is Python 3.10.1: try make PYTHON=python3.12"),
        ("case $2 in *ensurepip*) exit 1; esac", "./python has no venv module: install it"),
    ],
)
def test_unsuitable_python_is_reported_in_one_line(tmp_path: Path, python: str, message: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{python}\n", encoding="utf-8")
    script.chmod(0o755)
    done = run("make", "-s", "PYTHON=./python", ".tools/uv/bin/uv", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert message in done.stdout


def test_missing_sandbox_is_reported_in_one_line_without_failing(tmp_path: Path) -> None:
    for name in ("make", "sh", "id", "grep"):
        (tmp_path / name).symlink_to(shutil.which(name) or "/bin/true")
    done = run("env", f"PATH={tmp_path}", "make", "-s", "SHELL=/bin/sh", "sandbox")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert done.stdout.startswith("bubblewrap is missing, so programs run below Landlock")


@pytest.mark.parametrize(
    ("broken", "checked", "stages", "code"),
    [
        ("nothing", "25,000", ["test", "sweep turns", "demo"], 0),
        ("demo", "25,000", ["test", "sweep turns", "demo"], 2),
        ("test", "25,000", ["test"], 2),
        ("sweep", "25,000", ["test", "sweep turns"], 2),
        ("nothing", "24,999", ["test", "sweep turns"], 1),
    ],
)
def test_ci_ends_with_the_summary_of_the_tests(
    tmp_path: Path, broken: str, checked: str, stages: list[str], code: int
) -> None:
    """It stops at the stage that fails, and where fewer than 25,000 transitions of the machine were checked."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    server = tmp_path / ".venv" / "bin" / "python"
    server.parent.mkdir(parents=True)
    server.write_text("#!/bin/sh\necho postgresql://there\nexec cat\n", encoding="utf-8")  # ends when its input does
    server.chmod(0o755)
    rules = [
        f"{' '.join(BEFORE)} test sweep demo:\n",
        "\t@echo doing $@ $(SWEEP) $$MENDGRAPH_TEST_POSTGRES\n",
        f"\t@test $@ != sweep || echo '{CHECKED.format(checked)}'\n",
        f"\t@test $@ != test || echo '{SUMMARY}'\n\t@test $@ != {broken}\n",
    ]
    (tmp_path / "Makefile").write_text("".join(rules), encoding="utf-8")

    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    lines = done.stdout.splitlines()
    played = [" ".join(line.split()[1:]) for line in lines if line.startswith("doing ")]
    assert played == [*BEFORE, *(f"{stage} postgresql://there" for stage in stages)]
    assert (done.returncode, lines[-1]) == (code, SUMMARY)
