"""How long each of them takes at a quarter of its largest input and at all of it."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.pure.cases import Case, cases


@pytest.mark.parametrize("scale", [1, 4])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_speed(benchmark: BenchmarkFixture, case: Case, scale: int) -> None:
    """Times come in the table that the benchmark prints."""
    benchmark.group = case.name
    benchmark(case.made(scale))
