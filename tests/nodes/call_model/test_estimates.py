from math import ceil

import pytest
from hypothesis import given, strategies as st

from nodes.call_model.estimates import (
    MOST_TOKENS,
    PREAMBLE_TOKENS,
    Gauge,
    countable,
    estimate_input,
    estimate_tokens,
)

SIZES = st.integers(0, 1_000_000)
MESSAGES = st.integers(0, 500)
ANY_COUNT = st.integers(-10, 10**15)
GAUGES = st.builds(Gauge, size=SIZES, messages=MESSAGES, tokens=ANY_COUNT)


@pytest.mark.parametrize(("size", "messages", "tokens"), [(0, 0, 0), (1, 1, 5), (300, 2, 108), (301, 0, 101)])
def test_without_a_count_the_length_decides(size: int, messages: int, tokens: int) -> None:
    assert estimate_tokens(size, messages) == tokens
    assert estimate_input(size, messages, Gauge()) == tokens


@pytest.mark.parametrize(
    ("size", "messages", "gauge", "counted", "tokens"),
    [
        (9_000, 5, Gauge(), 2_000, 2_020),  # a tokenizer's count, and four for each message
        (9_000, 5, Gauge(size=9_000, messages=5, tokens=9), 2_000, 2_020),
        (9_000, 5, Gauge(size=9_000, messages=5, tokens=2_500), None, 2_500),  # the same request again
        (9_300, 7, Gauge(size=9_000, messages=5, tokens=2_500), None, 2_608),  # 300 bytes at 3, two messages at 4
        (9_300, 7, Gauge(size=9_000, messages=5, tokens=6_000), None, 6_208),  # dense text stays dense: 300 at 1.5
        (4_500, 3, Gauge(size=9_000, messages=5, tokens=2_500), None, 1_375),  # half, and a tenth more
        (9_000, 5, Gauge(size=9_000, messages=5, tokens=0), None, 3_020),  # no usage, as before the first one
        (9_000, 5, Gauge(size=9_000, messages=5, tokens=-1), None, 3_020),
        (9_000, 5, Gauge(size=0, messages=5, tokens=7), None, 3_020),
        (9_000, 5, Gauge(size=9_000, messages=5, tokens=1), None, 1_125),  # a lie: 8 bytes a token at the most
        (9_000, 5, Gauge(size=9_000, messages=5, tokens=10**12), None, 10_020),  # a lie: a byte a token at the least
        (9_000, 5, Gauge(size=9_000, messages=5, tokens=9_900), None, 9_900),  # the endpoint's own instructions
        (9_000, 5, Gauge(size=9_000, messages=5, tokens=2_500), 0, 2_500),  # a tokenizer that counts nothing
    ],
)
def test_the_last_count_is_carried_on(size: int, messages: int, gauge: Gauge, counted: int | None, tokens: int) -> None:
    assert estimate_input(size, messages, gauge, counted) == tokens


@given(SIZES, MESSAGES, GAUGES)
def test_no_lie_makes_an_estimate_impossible(size: int, messages: int, gauge: Gauge) -> None:
    estimate = estimate_input(size, messages, gauge)
    assert ceil(size / 8) <= estimate <= size + 4 * max(messages, gauge.messages) + PREAMBLE_TOKENS


@given(SIZES, SIZES, MESSAGES, st.integers(0, 40), st.floats(0.125, 1), st.floats(0, 1))
def test_after_a_true_count_only_what_is_new_can_be_missed(
    size: int, new: int, messages: int, more: int, rate: float, new_rate: float
) -> None:
    """A tokenizer that works on bytes makes at most one token of a byte: two thirds of the new ones are missed."""
    before, after = ceil(size * rate), ceil(new * new_rate) + 4 * more
    gauge = Gauge(size=size, messages=messages, tokens=before)
    estimate = estimate_input(size + new, messages + more, gauge)
    already = size if size and before else 0  # where nothing was counted yet all of it is new
    assert before + after - estimate <= (size + new - already) * 2 / 3 + 1


@given(SIZES, SIZES, MESSAGES, GAUGES)
def test_what_is_longer_is_not_estimated_as_less(size: int, more: int, messages: int, gauge: Gauge) -> None:
    longer = max(size, gauge.size) + more
    assert estimate_input(longer, messages, gauge) >= estimate_input(max(size, gauge.size), messages, gauge)


@pytest.mark.parametrize(("told", "counted"), [(-1, 0), (0, 0), (7, 7), (10**40, MOST_TOKENS)])
def test_every_number_can_be_charged(told: int, counted: int) -> None:
    assert countable(told) == counted
