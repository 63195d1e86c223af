"""Killed between a person's answer and the effects, and after them: each happens at most once, asked about once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.house import ROOT
from tests.runs.approval_play import AFTER, BUG, THREE, asked, session

LONGEST_S = 120


def played(root: Path, way: str, death: str) -> subprocess.CompletedProcess[str]:
    """A process that answers or resumes, and is killed where `death` says."""
    command = [sys.executable, "-m", "tests.runs.approval_play", str(root), way, death]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace of a run that waits for an answer, whose process has ended."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    root = tmp_path / "work"
    root.mkdir()
    (root / "calc.py").write_text(BUG, encoding="utf-8")
    with session(root, THREE) as now:
        asked(now.stream("Fix add"))
    return root


@pytest.mark.parametrize("death", ["guarded", "before", "after"])
def test_a_kill_after_the_answer_neither_loses_nor_repeats_an_effect(waiting: Path, death: str) -> None:
    killed = played(waiting, "answer", death)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = played(waiting, "resume", "never")
    assert json.loads(resumed.stdout) == ["Ended", AFTER], resumed.stderr
    assert not (waiting.parent / "rung").exists()


def test_a_kill_before_the_answer_asks_again(waiting: Path) -> None:
    resumed = played(waiting, "resume", "never")
    assert json.loads(resumed.stdout) == ["Asked", {"calc.py": BUG}], resumed.stderr
    answered = played(waiting, "answer", "never")
    assert json.loads(answered.stdout) == ["Ended", AFTER], answered.stderr


def test_a_file_that_changes_between_the_answer_and_the_effect_is_left_alone(waiting: Path) -> None:
    killed = played(waiting, "answer", "guarded")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (waiting / "calc.py").write_text("# new\n" + BUG, encoding="utf-8")
    resumed = played(waiting, "resume", "never")
    assert json.loads(resumed.stdout) == ["Ended", {"calc.py": "# new\n" + BUG, "log.txt": "two"}], resumed.stderr
