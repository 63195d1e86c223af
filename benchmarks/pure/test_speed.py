"""The duration of each case at a quarter of the maximum size and at the maximum size."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.pure.cases import Case, cases


@pytest.mark.parametrize("scale", [1, 4])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_speed(benchmark: BenchmarkFixture, case: Case, scale: int) -> None:
    """Measure a case for the table of pytest-benchmark."""
    benchmark.group = case.name
    benchmark(case.prepare(scale))
