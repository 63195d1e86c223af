from math import ceil
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.ledger import (
    FREE,
    Entry,
    Mending,
    Price,
    Reservation,
    RunLimits,
    Spending,
    Used,
    account_problem,
    begin_turn,
    cost_of,
    count_mending,
    exhausted_limit,
    measured,
    priced,
    reserve,
    unknown_price,
    usage_report,
)
from mendgraph.nodes.call_model.prompts.estimates import MOST_TOKENS, Gauge, estimate_input
from mendgraph.nodes.records import StopCause, StopReason
from tests.nodes.call_model.spendings import spent

UNPRICED = (
    "Limit 'max_cost_usd' cannot be held: 2 calls of this thread went to a model whose price was not known."
    " Start a new thread, or leave max_cost_usd empty."
)


def stopped(reason: StopReason, message: str) -> StopCause:
    return StopCause(reason=reason, message=message)


@pytest.mark.parametrize(
    ("spending", "limits", "reason", "message"),
    [
        (spent(100), {}, "max_calls_per_session", "Limit 'max_calls_per_session' exceeded: 100/100"),
        (spent(10), {}, "max_calls_per_turn", "Limit 'max_calls_per_turn' exceeded: 10/10"),
        (spent(1, 100_000), {}, "max_input_tokens", "Limit 'max_input_tokens_per_session' exceeded: 100000/100000"),
        (spent(1, 0, 50_000), {}, "max_output_tokens", "Limit 'max_output_tokens_per_session' exceeded: 50000/50000"),
        (
            spent(1, 500),
            {"max_input_tokens_per_turn": 400},
            "max_input_tokens",
            "Limit 'max_input_tokens_per_turn' exceeded: 500/400",
        ),
        (
            spent(1, 0, 400),
            {"max_output_tokens_per_turn": 400},
            "max_output_tokens",
            "Limit 'max_output_tokens_per_turn' exceeded: 400/400",
        ),
        (spent(steps=3), {"max_steps": 3}, "max_steps", "Limit 'max_steps' exceeded: 3/3"),
        (spent(seconds=0.04), {"max_seconds": 0.03}, "wall_clock", "Limit 'max_seconds' exceeded: 0.04/0.03"),
        (spent(1, cost_usd=0.03), {"max_cost_usd": 0.03}, "max_cost", "Limit 'max_cost_usd' exceeded: 0.03/0.03"),
        (spent(3, unpriced_calls=2), {"max_cost_usd": 0.03}, "max_cost", UNPRICED),
    ],
)
def test_each_limit_has_its_reason(spending: Spending, limits: dict[str, Any], reason: str, message: str) -> None:
    assert exhausted_limit(spending, RunLimits(**limits)) == stopped(StopReason(reason), message)


def cut_off(output: int, usual: int = 0, cost: float | None = None) -> tuple[int, int, float | None]:
    call = Entry(thread="t", model="m", purpose="reply", input_tokens=1_000, output_tokens=output, cost_usd=cost)
    counted = call.if_cut_off(usual)
    assert (counted.thread, counted.model, counted.purpose) == ("t", "m", "reply")
    return counted.input_tokens, counted.output_tokens, counted.cost_usd


def test_call_that_was_cut_off_counts_with_its_input_and_at_most_an_ordinary_or_a_usual_reply() -> None:
    assert cut_off(500) == (1_000, 500, None)
    assert cut_off(50_000) == (1_000, 2_048, None)
    assert cut_off(50_000, usual=300) == (1_000, 2_048, None)
    assert cut_off(50_000, usual=9_000) == (1_000, 9_000, None)
    assert cut_off(5_000, usual=9_000) == (1_000, 5_000, None)


@given(st.floats(0, 100), st.floats(1, 10), st.integers(0, 100_000), st.integers(0, 200_000), st.integers(0, 90_000))
def test_cost_of_a_call_that_was_cut_off_is_between_that_of_its_tokens_and_what_was_reserved(
    usd: float, times: float, inputs: int, outputs: int, usual: int
) -> None:
    price = Price(input=usd, output=usd * times)
    reserved = cost_of(price, inputs, outputs)
    call = Entry(
        thread="t", model="m", purpose="reply", input_tokens=inputs, output_tokens=outputs, cost_usd=reserved
    ).if_cut_off(usual)
    assert call.cost_usd is not None
    assert cost_of(price, inputs, call.output_tokens) - 1e-9 <= call.cost_usd <= reserved + 1e-9


def leave(estimated: int, most: int = 2_048, seconds: float | None = None, cost: float | None = None) -> Reservation:
    return Reservation(input_tokens=estimated, max_output_tokens=most, max_seconds=seconds, cost_usd=cost)


@pytest.mark.parametrize(
    ("spending", "limits", "estimated", "expected"),
    [
        (spent(), {}, 1_000, leave(1_000)),
        (spent(0, 0, 49_000), {}, 1_000, leave(1_000, 1_000)),
        (spent(seconds=9.96), {"max_seconds": 10.0}, 1, leave(1, seconds=10 - 9.96)),
        (
            spent(0, 99_500),
            {},
            501,
            stopped(StopReason.MAX_INPUT_TOKENS, "The next call needs about 501 input tokens, and 500 are left."),
        ),
        (spent(0, 0, 49_984), {}, 1, leave(1, 16)),
        (
            spent(0, 400, 300),
            {"max_input_tokens_per_turn": 1_000, "max_output_tokens_per_turn": 500},
            600,
            leave(600, 200),
        ),
        (
            spent(0, 400),
            {"max_input_tokens_per_turn": 1_000},
            601,
            stopped(StopReason.MAX_INPUT_TOKENS, "The next call needs about 601 input tokens, and 600 are left."),
        ),
        (spent(0, 0, 49_985), {}, 1, stopped(StopReason.MAX_OUTPUT_TOKENS, "Only 15 output tokens are left.")),
    ],
)
def test_reservation_is_cut_to_what_is_left(
    spending: Spending, limits: dict[str, Any], estimated: int, expected: Reservation | StopCause
) -> None:
    assert reserve(spending, RunLimits(**limits), estimated, None) == expected


@pytest.mark.parametrize(
    ("cost", "cap", "price", "estimated", "expected"),
    [
        (0.0, 0.01, Price(input=1.0, output=10.0), 1_000, leave(1_000, 900, cost=0.01)),
        (4.0, 20.0, Price(input=0.0, output=1_000_000.0), 9, leave(9, 16, cost=16.0)),
        (
            2.0,
            20.0,
            Price(input=1_000_000.0, output=1_000_000.0),
            3,
            stopped(StopReason.MAX_COST, "The next call may cost more than is left of max_cost_usd=20.0."),
        ),
        (
            0.0,
            0.01,
            Price(input=10.0, output=0.0),
            1_001,
            stopped(StopReason.MAX_COST, "The next call may cost more than is left of max_cost_usd=0.01."),
        ),
        (0.0, 0.01, Price(input=10.0, output=0.0), 1_000, leave(1_000, cost=0.01)),
        (0.0, 0.02, Price(input=10.0, output=0.0, cached_input=20.0), 1_000, leave(1_000, cost=0.02)),
        (0.0, 0.02, Price(input=10.0, output=0.0, cache_write=20.0), 1_000, leave(1_000, cost=0.02)),
        (0.0, 0.01, Price(input=0.0, output=5e-324), 1, leave(1, cost=0.0)),
        (5.0, None, Price(input=1.0, output=0.0), 1_000_000, None),
    ],
)
def test_reservation_is_cut_to_what_can_be_paid(
    cost: float, cap: float | None, price: Price, estimated: int, expected: Reservation | StopCause | None
) -> None:
    limits = RunLimits(max_cost_usd=cap, api=APILimits(max_input_tokens_per_session=1_000_000))
    wanted = leave(estimated, cost=1.0) if expected is None else expected
    assert reserve(spent(cost_usd=cost), limits, estimated, price) == wanted


# --- What a killed process has spent, and what an endpoint counted


@pytest.mark.parametrize(
    ("counted", "gauge"),
    [
        ((300, 2, 90), Gauge(size=300, messages=2, tokens=90)),
        ((300, 2, 10**30), Gauge(size=300, messages=2, tokens=MOST_TOKENS)),
        ((300, 2, 0), Gauge(size=9, messages=1, tokens=3)),
    ],
)
def test_gauge_is_the_last_count_that_was_told(counted: tuple[int, int, int], gauge: Gauge) -> None:
    spending = spent(gauge=Gauge(size=9, messages=1, tokens=3))
    assert measured(spending, *counted) == spent(gauge=gauge)


# --- The report


def test_report_holds_json_values() -> None:
    start = APIUsageStats(2, 100, 50, 0)
    spending = Spending(
        usage=APIUsageStats(5, 1_100, 450, 3),
        at_turn_start=start,
        steps=2,
        seconds=1.23456,
        cached_tokens=900,
        reasoning_tokens=80,
        cache_write_tokens=70,
        cost_usd=0.1 + 0.2,
    )
    report = {
        "total_calls": 5,
        "total_input_tokens": 1_100,
        "total_output_tokens": 450,
        "calls_in_current_turn": 3,
        "input_tokens_in_current_turn": 1_000,
        "output_tokens_in_current_turn": 400,
        "steps_in_current_turn": 2,
        "seconds_in_current_turn": 1.235,
        "cached_tokens": 900,
        "reasoning_tokens": 80,
        "cache_write_tokens": 70,
        "cost_usd": 0.3,
    }
    assert usage_report(spending) == report
    unpriced = spending.model_copy(update={"unpriced_calls": 1})
    assert usage_report(unpriced) == {**report, "unpriced_calls": 1, "cost_usd": None}


# --- What a run may use


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("max_cost_usd", StopReason.MAX_COST),
        ("max_cost_usd_per_day", StopReason.DAY_LIMIT),
        ("max_cost_usd_per_account", StopReason.ACCOUNT_LIMIT),
    ],
)
def test_limit_on_cost_needs_a_price(limit: str, reason: StopReason) -> None:
    limits = RunLimits.model_validate({limit: 5.0})
    message = (
        f"Limit '{limit}' cannot be held: no price is known for {{}}. Add it to prices.toml in the configuration"
        f" folder, or to the file that MENDGRAPH_PRICES names; or leave {limit} empty."
    )
    assert unknown_price(limits, None) == StopCause(reason=reason, message=message.format("the model"))
    assert unknown_price(limits, None, "big-1") == StopCause(reason=reason, message=message.format("the model 'big-1'"))
    assert unknown_price(limits, FREE, "big-1") is None


@pytest.mark.parametrize(
    ("used", "passed"),
    [
        (Used(input_tokens=100, output_tokens=50, cost_usd=0.5), False),
        (Used(input_tokens=150, output_tokens=0, cost_usd=0.5), False),
        (Used(input_tokens=101, output_tokens=50), True),
        (Used(cost_usd=None), False),
    ],
)
def test_entry_is_passed_by_what_costs_more_than_it_says(used: Used, passed: bool) -> None:
    entry = Entry(thread="t", model="m", purpose="reply", input_tokens=100, output_tokens=50, cost_usd=0.5)
    assert entry.is_passed_by(used) is passed
    assert not entry.model_copy(update={"cost_usd": None}).is_passed_by(Used())


SIZES = st.integers(0, 1_000_000)
MESSAGES = st.integers(0, 500)


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


def test_new_turn_counts_what_had_to_be_mended_and_its_seconds_anew() -> None:
    before = count_mending(count_mending(spent(2, seconds=3.0), rescued=1, cut=2), cut=1, asked_again=1)
    assert before.mending == Mending(rescued=1, asked_again=1, cut=3)
    anew = begin_turn(before)
    assert (anew.mending, anew.seconds, anew.steps) == (Mending(), 0.0, 0)
    assert Mending() == Mending(rescued=0, asked_again=0, cut=0)


def test_call_reasons_in_no_more_tokens_than_it_wrote() -> None:
    assert [priced(Used(output_tokens=7, reasoning_tokens=each), None).reasoning_tokens for each in (5, 9)] == [5, 7]


@pytest.mark.parametrize(
    ("cached", "written", "counted"),
    [
        (30, 50, (30, 50)),
        (100, 0, (100, 0)),
        (101, 0, (100, 0)),
        (0, 101, (0, 100)),
        (60, 60, (60, 40)),
        (10**15, 10**15, (100, 0)),
        (-5, -5, (0, 0)),
    ],
)
def test_tokens_of_the_cache_are_part_of_the_input(cached: int, written: int, counted: tuple[int, int]) -> None:
    price = Price(input=1_000_000.0, output=0.0, cached_input=100.0, cache_write=10_000_000.0)
    used = priced(Used(input_tokens=100, cached_tokens=cached, cache_write_tokens=written), price)
    assert (used.cached_tokens, used.cache_write_tokens) == counted
    assert used.cost_usd == pytest.approx((100 - sum(counted)) * 1.0 + counted[0] * 0.0001 + counted[1] * 10.0)


def test_run_limits_are_bounded_by_default() -> None:
    assert RunLimits().model_dump(exclude_defaults=False) == {
        "api": APILimits(100, 10, 100_000, 50_000),
        "max_output_tokens_per_call": 2_048,
        "max_steps_soft": False,
        "account": "",
        "account_days": False,
        **dict.fromkeys(("max_input_tokens_per_turn", "max_output_tokens_per_turn", "max_steps", "max_seconds")),
        **dict.fromkeys(("max_cost_usd", "max_tokens_per_day", "max_cost_usd_per_day")),
        **dict.fromkeys(("max_tokens_per_account", "max_cost_usd_per_account")),
    }


@pytest.mark.parametrize(("account", "good"), [("", True), ("x" * 200, True), ("x" * 201, False), ("a\nb", False)])
def test_account_has_a_short_name_on_one_line(account: str, good: bool) -> None:
    assert (account_problem(account) is None) == good
