"""The duration grows linearly with the input, so that a repetitive reply of a model cannot stop a run."""

from collections.abc import Callable
from time import thread_time
from typing import Any, Final

import pytest

from benchmarks.pure.cases import Case, cases

MOST_GROWTH: Final = 8.0
"""Linear growth is 4, or slightly more if the larger input exceeds the processor's caches. Quadratic growth is 16."""
ROUNDS: Final = 3


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_linear(case: Case) -> None:
    """Compare the minimum CPU times of both sizes over several interleaved rounds."""
    small = case.prepare(1)
    large = case.prepare(4)
    small_times = []
    large_times = []
    for _ in range(ROUNDS):
        small_times.append(_cpu_s(small))
        large_times.append(_cpu_s(large))

    growth = min(large_times) / min(small_times)
    assert growth < MOST_GROWTH, f"{case.name}: 4 times the input costs {growth:.1f} times the time"


def _cpu_s(call: Callable[[], Any]) -> float:
    start = thread_time()
    call()
    return thread_time() - start
