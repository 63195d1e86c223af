"""Processes reserve, settle and are killed in any order: the calls of an account never exceed its limit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surfaces.spending.reserving import CAP, TRIES
from tests.surfaces.spending.spending_entries import rows

NAMES = ("t0", "t1", "t2", "t3")


@pytest.mark.usefixtures("any_store")
def test_four_killed_processes_get_exactly_the_calls_that_fit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.surfaces.spending.reserving", str(tmp_path), *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert (json.loads(done.stdout), done.stderr) == ([-9] * 4, "")

    answers = [answer for name in NAMES for answer in (tmp_path / f"{name}.answers").read_text().split()]
    numbers = [answer for answer in answers if answer.isdigit()]
    assert (len(answers), len(numbers), len(set(numbers))) == (4 * TRIES, 20, 20)
    assert set(answers) - set(numbers) == {"account_limit"}
    assert rows(tmp_path, "SELECT count(*) FROM entries") == [(20,)]
    assert rows(tmp_path, "SELECT account, calls, tokens, cost_usd FROM accounts") == [(CAP.account, 20, 2_000, 5.0)]
