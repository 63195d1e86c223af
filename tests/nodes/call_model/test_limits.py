from math import ceil
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.limits import (
    Entry,
    RunLimits,
    Used,
    account_problem,
    kept_for_account,
    less_wrap_up,
    unknown_price,
)
from mendgraph.nodes.call_model.prices import FREE, Price
from mendgraph.nodes.call_model.prompts.estimates import (
    PREAMBLE_TOKENS,
    Gauge,
    estimate_input,
)
from mendgraph.nodes.records import StopCause, StopReason

PRICE = Price(input=20.0, output=150.0, cached_input=2.0)
"""With this the call that is held back costs 0.1 USD."""


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("max_cost_usd", StopReason.MAX_COST),
        ("max_cost_usd_per_day", StopReason.DAY_LIMIT),
        ("max_cost_usd_per_account", StopReason.ACCOUNT_LIMIT),
    ],
)
def test_a_limit_on_cost_needs_a_price(limit: str, reason: StopReason) -> None:
    limits = RunLimits(**{limit: 5.0})
    message = (
        f"Limit '{limit}' cannot be held: no price is known for {{}}. Add it to prices.toml in the configuration"
        f" folder, or to the file that MENDGRAPH_PRICES names; or leave {limit} empty."
    )
    assert unknown_price(limits, None) == StopCause(reason=reason, message=message.format("the model"))
    assert unknown_price(limits, None, "big-1") == StopCause(reason=reason, message=message.format("the model 'big-1'"))
    assert unknown_price(limits, FREE, "big-1") is None


@pytest.mark.parametrize("name", ["x" * 201, "a\nb", "a\tb", "\x1b[31m", "a\x00", "\ud800", "a\u202eb", "\u2028"])
def test_what_cannot_be_shown_is_no_name_of_an_account(name: str) -> None:
    assert account_problem(name) == "an account's name is empty, or has 1 to 200 printable characters"


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"api": APILimits(3, 3, 20_000, 4_000)}, {"api": APILimits(2, 2, 18_000, 3_600)}),
        ({"api": APILimits(2, 2, 19_999, 3_999)}, {"api": APILimits(2, 2, 19_999, 3_999)}),
        ({"max_input_tokens_per_turn": 20_000}, {"max_input_tokens_per_turn": 18_000}),
        ({"max_input_tokens_per_turn": 19_999}, {"max_input_tokens_per_turn": 19_999}),
        ({"max_output_tokens_per_turn": 4_000}, {"max_output_tokens_per_turn": 3_600}),
        ({"max_output_tokens_per_turn": 3_999}, {"max_output_tokens_per_turn": 3_999}),
        ({"max_cost_usd": 1.0}, {"max_cost_usd": 0.9}),
        ({"max_cost_usd": 0.99}, {"max_cost_usd": 0.99}),
    ],
)
def test_the_last_call_is_held_back_from_every_limit_that_is_large_enough(
    limits: dict[str, Any], left: dict[str, Any]
) -> None:
    expected = RunLimits(**{"api": APILimits(99, 9, 98_000, 49_600), "max_steps": 5, **left})
    assert less_wrap_up(RunLimits(max_steps=5, **limits), PRICE) == expected


@pytest.mark.parametrize(
    ("exceeded", "reached"),
    [
        ("'max_calls_per_turn' exceeded: 9/9", "'max_calls_per_turn' reached: 9/10, the last of them"),
        ("'max_calls_per_session' exceeded: 99/99", "'max_calls_per_session' reached: 99/100, the last of them"),
        (
            "'max_input_tokens_per_session' exceeded: 98500/98000",
            "'max_input_tokens_per_session' reached: 98500/100000, the rest",
        ),
        (
            "'max_output_tokens_per_turn' exceeded: 3600/3600",
            "'max_output_tokens_per_turn' reached: 3600/4000, the rest",
        ),
        ("'max_cost_usd' exceeded: 0.91/0.9", "'max_cost_usd' reached: 0.91/1.0, the rest"),
        ("'max_cost_usd' exceeded: 1e-05/9e-06", "'max_cost_usd' reached: 1e-05/1.0, the rest"),
    ],
)
def test_a_limit_is_named_with_the_number_that_the_user_set(exceeded: str, reached: str) -> None:
    limits = RunLimits(api=APILimits(100, 10, 100_000, 50_000), max_output_tokens_per_turn=4_000, max_cost_usd=1.0)
    cause = StopCause(reason=StopReason.MAX_COST, message=f"Limit {exceeded}")
    message = f"Limit {reached} is kept for the account of the run."
    assert kept_for_account(cause, limits) == StopCause(reason=StopReason.MAX_COST, message=message)


@pytest.mark.parametrize(
    ("used", "passed"),
    [
        (Used(input_tokens=100, output_tokens=50, cost_usd=0.5), False),
        (Used(input_tokens=150, output_tokens=0, cost_usd=0.5), False),
        (Used(input_tokens=101, output_tokens=50), True),
        (Used(cost_usd=0.51), True),
        (Used(cost_usd=None), False),
    ],
)
def test_an_entry_is_passed_by_what_costs_more_than_it_says(used: Used, passed: bool) -> None:
    entry = Entry(thread="t", model="m", purpose="reply", input_tokens=100, output_tokens=50, cost_usd=0.5)
    assert entry.is_passed_by(used) is passed
    assert not entry.model_copy(update={"cost_usd": None}).is_passed_by(Used())


SIZES = st.integers(0, 1_000_000)
MESSAGES = st.integers(0, 500)
ANY_COUNT = st.integers(-10, 10**15)
GAUGES = st.builds(Gauge, size=SIZES, messages=MESSAGES, tokens=ANY_COUNT)


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
