"""The commands of a clean clone: what `make` says, and how `.ci/run` ends."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.product import ROOT, text_of
from tests.postgres import SERVER_VARIABLE

CHECKED = "machine runs checked: 20 (100,000 transitions), no violation"
BEFORE = ("setup", "sandbox", "postgres", "lint", "browser")
"""The stages before the tests, in the order in which they are told."""
SUMMARY = "=== 2 passed, 1 skipped in 0.50s ==="
TARGETS = [
    "help",
    "setup",
    "sandbox",
    "browser",
    "postgres",
    "demo",
    "test",
    "sweep",
    "coverage",
    "lint",
    "record",
    "studio",
    "bench",
    "scale",
    "pure",
    "eval",
    "fuzz",
    "mutants",
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
    assert re.fullmatch(r"\.venv/bin/pytest -n 4 --dist loadfile --no-loadscope-reorder *", tested)


def test_studio_is_not_started_anew_when_a_run_edits_a_file() -> None:
    """`langgraph dev` watches its folder, which may be the workspace: a run that edits it would end itself."""
    assert "langgraph dev --no-reload " in run("make", "-n", "studio", cwd=ROOT).stdout


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


@pytest.mark.parametrize(("program", "said"), [("initdb", ""), ("ls", "PostgreSQL's server is missing, so the tests")])
def test_a_missing_database_server_is_told_in_one_line_and_fails_nothing(
    tmp_path: Path, program: str, said: str
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    makefile = (tmp_path / "Makefile").read_text(encoding="utf-8").replace("/usr/lib/postgresql", str(tmp_path / "lib"))
    (tmp_path / "Makefile").write_text(makefile, encoding="utf-8")
    done = run(*shell_with(tmp_path / "bin", "postgres", **{program: ""}), cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", bool(said))
    assert done.stdout.startswith(said)
    (tmp_path / "lib" / "15" / "bin").mkdir(parents=True)
    (tmp_path / "lib" / "15" / "bin" / "initdb").touch()
    assert run(*shell_with(tmp_path / "other", "postgres"), cwd=tmp_path).stdout == ""


def shell_with(folder: Path, target: str, **scripts: str) -> list[str]:
    """The command that makes a target without any programs but the shell's and these, which are made of their text."""
    folder.mkdir()
    for name in ("make", "sh", "id", "grep", "mkdir", "touch", "cat"):
        (folder / name).symlink_to(shutil.which(name) or "/bin/true")
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return ["env", f"PATH={folder}", "make", "-s", "SHELL=/bin/sh", target]


def test_what_pages_and_terminals_need_is_told_in_one_line_and_fails_nothing(tmp_path: Path) -> None:
    done = run(*shell_with(tmp_path / "bin", "browser", tmux=""), cwd=ROOT)
    said = "missing for the tests of pages and terminals, which are skipped; all else works"
    remedy = "(Debian, Ubuntu: sudo apt install chromium chromium-driver nodejs npm)"
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", [f"{said} {remedy}"])


def test_npm_packages_are_installed_once_and_the_chat_page_is_built(tmp_path: Path) -> None:
    browser = tmp_path / "tests" / "browser"
    browser.mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("package-lock.json", "agent_chat.config.mjs"):
        (browser / name).write_text("", encoding="utf-8")
    (browser / "node_modules" / ".bin").mkdir(parents=True)
    (browser / "node_modules" / ".bin" / "vite").symlink_to(tmp_path / "bin" / "vite")
    npm = f'echo "npm $*" >> {tmp_path}/log; exit $(cat {tmp_path}/code)'
    vite = f'echo "vite $*" >> {tmp_path}/log; mkdir -p build'
    command = shell_with(
        tmp_path / "bin", "browser", npm=npm, vite=vite, node="", chromium="", chromedriver="", tmux=""
    )
    for code in ("1", "0", "1"):
        (tmp_path / "code").write_text(code, encoding="utf-8")
        done = run(*command, cwd=tmp_path)
        refused = "not there" in done.stdout
        assert (done.returncode, done.stderr, refused) == (0, "", (code, (browser / "build").exists()) == ("1", False))
    installed = "npm ci --ignore-scripts --no-audit --no-fund --loglevel=error"
    built = "vite build --config agent_chat.config.mjs"
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines() == [installed, installed, built]


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
        "setup sandbox browser postgres lint test sweep demo:\n\t@echo doing $@ $$MENDGRAPH_TEST_POSTGRES $(SWEEP)\n",
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
        "setup sandbox browser postgres lint test sweep demo:\n",
        f"\t@test $@ != sweep || echo '{few}'\n\t@test $@ != test || echo '{SUMMARY}'\n",
    ]
    (tmp_path / "Makefile").write_text("".join(rules), encoding="utf-8")
    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (
        1,
        ["24999 transitions of the machine were checked: 25,000 are wanted", SUMMARY],
    )


def test_ci_stops_at_the_first_failure_without_a_summary_of_its_own(tmp_path: Path) -> None:
    copy_ci(tmp_path)
    (tmp_path / "Makefile").write_text("setup sandbox browser postgres lint:\n\t@test $@ != lint\n", encoding="utf-8")
    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (2, "--- make lint")


def test_ci_tells_at_the_end_of_lint_what_the_browser_lacks(tmp_path: Path) -> None:
    copy_ci(tmp_path)
    rules = "setup sandbox browser postgres lint:\n\t@echo doing $@\n\t@test $@ != browser\n"
    (tmp_path / "Makefile").write_text(rules, encoding="utf-8")
    done = run(str(tmp_path / ".ci" / "run"), cwd=tmp_path)
    told = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("doing ")]
    assert (done.returncode, told) == (2, list(BEFORE))


def test_ci_is_a_program() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
