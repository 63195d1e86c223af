from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.call_model.budget import APILimits
from nodes.call_model.limits import RunLimits, account_problem, kept_for_account, less_wrap_up, unknown_price
from nodes.call_model.prices import FREE, Price
from nodes.records import StopCause, StopReason

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


@pytest.mark.parametrize("name", ["", "a", "batch/nightly 7", "bücher", "x" * 200])
def test_an_account_may_have_any_name_that_can_be_shown(name: str) -> None:
    assert account_problem(name) is None


@pytest.mark.parametrize("name", ["x" * 201, "a\nb", "a\tb", "\x1b[31m", "a\x00", "\ud800", "a\u202eb", "\u2028"])
def test_what_cannot_be_shown_is_no_name_of_an_account(name: str) -> None:
    assert account_problem(name) == "an account's name is empty, or has 1 to 200 printable characters"


def test_without_a_limit_on_cost_no_price_is_needed() -> None:
    assert unknown_price(RunLimits(max_tokens_per_day=1, max_tokens_per_account=1, account="a"), None) is None


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


@given(st.floats(1e-6, 1e6))
def test_what_costs_nothing_is_not_held_back(most: float) -> None:
    for price in (FREE, None):
        assert less_wrap_up(RunLimits(max_cost_usd=most), price).max_cost_usd == most


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


def test_other_words_for_a_limit_stay() -> None:
    cause = StopCause(reason=StopReason.MAX_COST, message="Limit 'max_cost_usd' cannot be held: 2 calls.")
    assert kept_for_account(cause, RunLimits(max_cost_usd=1.0)) == cause


def test_what_nobody_limits_has_no_limit_but_that_of_a_reply() -> None:
    limits = RunLimits()
    assert limits.model_dump(exclude={"api"}) == {
        "max_input_tokens_per_turn": None,
        "max_output_tokens_per_turn": None,
        "max_output_tokens_per_call": 2_048,
        "max_steps": None,
        "max_steps_soft": False,
        "max_seconds": None,
        "max_cost_usd": None,
        "max_tokens_per_day": None,
        "max_cost_usd_per_day": None,
        "account": "",
        "account_days": False,
        "max_tokens_per_account": None,
        "max_cost_usd_per_account": None,
        "wrap_up": False,
    }
