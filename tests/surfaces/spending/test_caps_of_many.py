"""Processes reserve, settle and are killed in any order: the calls of an account never exceed its limit."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.spending.reserving import CAP, TRIES
from tests.surfaces.spending.spending_entries import rows


@pytest.mark.usefixtures("any_store")
def test_four_killed_processes_get_exactly_the_calls_that_fit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.surfaces.spending.reserving", str(tmp_path)]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    running = [subprocess.Popen([*command, f"t{number}"], **pipes) for number in range(4)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120) for process in running]
    assert [errors for _, errors in outputs] == [""] * 4
    answers = [answer for output, _ in outputs for answer in output.split()]
    numbers = [answer for answer in answers if answer.isdigit()]
    assert [process.returncode for process in running] == [-9] * 4
    assert (len(answers), len(numbers), len(set(numbers))) == (4 * TRIES, 20, 20)
    assert set(answers) - set(numbers) == {"account_limit"}
    assert rows(tmp_path, "SELECT count(*) FROM entries") == [(20,)]
    assert rows(tmp_path, "SELECT account, calls, tokens, cost_usd FROM accounts") == [(CAP.account, 20, 2_000, 5.0)]
