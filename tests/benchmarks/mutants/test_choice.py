import pytest
from hypothesis import given, strategies as st

from benchmarks.mutants.choice import chosen, interval, shares
from benchmarks.mutants.mutation import mutants_of

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), min_size=1)
SOURCE = "def f(a, b):\n    return a + b - 1\n\n\ndef g():\n    return [1, 2, 3]\n"


@given(COUNTS, st.integers(1, 400))
def test_each_file_has_its_part_of_the_sample(counts: dict[str, int], wanted: int) -> None:
    found = shares(counts, wanted)
    total = sum(counts.values())
    assert sum(found.values()) == min(wanted, total)
    for file, count in counts.items():
        exact = min(wanted, total) * count / (total or 1)
        assert exact - 1 < found[file] < exact + 1
        assert found[file] <= count


def test_the_same_mutants_are_chosen_each_time_in_the_order_of_the_text() -> None:
    mutants = mutants_of("a.py", SOURCE)
    few = chosen(mutants, SOURCE, 3)
    assert len(few) == 3
    assert chosen(mutants[::-1], SOURCE, 3) == few
    assert few == sorted(few, key=lambda each: each.start)
    assert set(few) <= set(chosen(mutants, SOURCE, 4))


def test_a_change_elsewhere_in_the_file_chooses_no_other_mutants() -> None:
    moved = f"import a\n\n\n{SOURCE}"
    before = [(each.function, each.text) for each in chosen(mutants_of("a.py", SOURCE), SOURCE, 3)]
    after = [(each.function, each.text) for each in chosen(mutants_of("a.py", moved), moved, 3)]
    assert after == before


def test_what_is_no_program_is_not_chosen() -> None:
    source = "def f(*, a):\n    for b in a:\n        continue\n"
    texts = {each.applied(source) for each in chosen(mutants_of("a.py", source), source, 10)}
    assert texts == {"def f(*, a):\n    for b in a:\n        break\n"}


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 0, 0.0, 1.0), (10, 10, 0.7225, 1.0), (850, 1_000, 0.8265, 0.8708), (0, 10, 0.0, 0.2775)],
)
def test_the_interval_is_wilsons(successes: int, trials: int, low: float, high: float) -> None:
    assert interval(successes, trials) == pytest.approx((low, high), abs=1e-4)
