import pytest
from hypothesis import given, strategies as st

from benchmarks.overhead.figures import Row, growth, per_unit, ratio, rows


def test_rows_have_the_figures_cheapest_first() -> None:
    series = {"ours": [2.0, 4.0, 3.0], "theirs": [10.0, 8.0, 12.0], "nobody": []}
    assert rows(series, "ours") == [Row("ours", 3.0, 2.0, 4.0, 1.0), Row("theirs", 10.0, 8.0, 12.0, 0.25)]


def test_the_ratio_is_taken_in_each_round() -> None:
    """A machine that is ten times slower for a round slows both of it."""
    assert ratio([1.0, 10.0, 1.0], [2.0, 20.0, 2.0]) == 0.5


def test_there_is_no_ratio_to_nothing() -> None:
    assert (ratio([], [1.0]), ratio([1.0], [0.0])) == (None, None)
    assert rows({"theirs": [1.0]}, "") == [Row("theirs", 1.0, 1.0, 1.0, None)]


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 1), st.lists(st.integers(1, 500), min_size=3, max_size=3))
def test_growth_is_that_of_a_step_whatever_the_fixed_part(
    fixed: float, each: float, more: float, gaps: list[int]
) -> None:
    steps = [sum(gaps[: place + 1]) for place in range(3)]
    costs = [fixed + each * n + more * n * (n - 1) / 2 for n in steps]
    assert growth(steps, costs) == pytest.approx(more, abs=1e-6)


def test_whole_runs_are_shared_out_among_their_units() -> None:
    assert per_unit({"a": [0.5, 1.0]}, 100) == {"a": [5.0, 10.0]}
