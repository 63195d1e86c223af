"""Four times the input costs about four times the time: a reply that a model repeats itself in must not stop a run."""

from collections.abc import Callable
from time import thread_time
from typing import Any, Final

import pytest

from benchmarks.pure.cases import Case, cases

MOST_GROWTH: Final = 8.0
"""Linear is 4, and somewhat more where the larger input leaves the processor's caches; quadratic is 16."""
ROUNDS: Final = 3


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_linear(case: Case) -> None:
    """The least of several rounds, in which both sizes take turns, in processor time."""
    small, large = case.made(1), case.made(4)
    times = [(_seconds(small), _seconds(large)) for _ in range(ROUNDS)]
    growth = min(each for _, each in times) / min(each for each, _ in times)
    assert growth < MOST_GROWTH, f"{case.name}: 4 times the input costs {growth:.1f} times the time"


def _seconds(call: Callable[[], Any]) -> float:
    begun = thread_time()
    call()
    return thread_time() - begun
