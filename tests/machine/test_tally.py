"""What was checked is counted once, whichever process has checked it."""

from types import SimpleNamespace

import pytest

from tests.machine import tally
from tests.machine.tally import KEY, Tally


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tally of the test's own."""
    monkeypatch.setattr(tally, "_CHECKED", Tally())


def told(failed: int = 0) -> list[str]:
    lines: list[str] = []
    tally.tell(SimpleNamespace(stats={"failed": ["a test"] * failed}, write_line=lines.append))
    return lines


def test_what_was_checked_is_told() -> None:
    tally.count(transitions=1_200, runs=60)
    tally.count(transitions=34, runs=1)
    assert told() == ["machine runs checked: 61 (1,234 transitions), no violation"]
    assert told(failed=2) == ["machine runs checked: 61 (1,234 transitions), 2 tests failed"]


def test_nothing_is_told_where_nothing_was_checked() -> None:
    assert told() == []


def test_a_worker_hands_over_what_the_controller_adds() -> None:
    tally.count(transitions=5, runs=1)
    worker = SimpleNamespace(workeroutput={})
    tally.hand_over(worker)
    assert worker.workeroutput == {KEY: {"transitions": 5, "runs": 1}}
    tally.take_over(worker.workeroutput)
    assert tally.counted() == {"transitions": 10, "runs": 2}


@pytest.mark.parametrize("output", [None, {}, {"other": 1}])
def test_a_worker_that_crashed_adds_nothing(output: object) -> None:
    tally.take_over(output)
    assert tally.counted() == {"transitions": 0, "runs": 0}


def test_a_session_of_one_process_hands_nothing_over() -> None:
    tally.hand_over(SimpleNamespace())
    assert tally.counted() == {"transitions": 0, "runs": 0}
