from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from nodes.call_model.budget import APILimits, APIUsageStats
from nodes.call_model.ledger import (
    MIN_OUTPUT_TOKENS,
    Mending,
    Reservation,
    RunLimits,
    Spending,
    begin_turn,
    cost_usd,
    count_mending,
    estimate_tokens,
    exhausted_limit,
    reserve,
    settle,
    usage_report,
)
from nodes.records import StopCause, StopReason

TOKENS = st.integers(0, 3_000)
SECONDS = st.floats(0, 50)


def mostly(usual: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A limit that is seldom narrow, so that the others are reached too."""
    return st.one_of(*[st.just(usual)] * 3, values)


LIMITS = st.builds(
    RunLimits,
    api=st.builds(
        APILimits,
        mostly(100, st.integers(1, 8)),
        mostly(100, st.integers(1, 4)),
        mostly(100_000, st.integers(1, 1_500)),
        mostly(50_000, st.integers(1, 500)),
    ),
    max_input_tokens_per_turn=mostly(None, st.integers(1, 1_000)),
    max_output_tokens_per_turn=mostly(None, st.integers(1, 300)),
    max_output_tokens_per_call=st.integers(MIN_OUTPUT_TOKENS, 200),
    max_steps=mostly(None, st.integers(1, 5)),
    max_steps_soft=st.booleans(),
    max_seconds=mostly(None, st.floats(0.01, 100)),
    max_cost_usd=st.floats(1e-6, 0.01),
    usd_per_million_input=mostly(None, st.sampled_from([0.0, 0.15, 3.0])),
    usd_per_million_output=st.sampled_from([None, 0.0, 15.0, 60.0]),
)
CALL = st.tuples(st.just("call"), st.integers(0, 400), st.tuples(st.integers(0, 400), st.floats(0, 1), SECONDS))
OTHER = st.sampled_from(["turn", "step"]).map(lambda kind: (kind, 0, (0, 0.0, 0.0)))
MOVES = st.lists(st.one_of(CALL, CALL, CALL, OTHER), max_size=25)


def spent(calls: int = 0, tokens_in: int = 0, tokens_out: int = 0, **fields: Any) -> Spending:
    return Spending(usage=APIUsageStats(calls, tokens_in, tokens_out, calls), **fields)


def stopped(reason: StopReason, message: str) -> StopCause:
    return StopCause(reason=reason, message=message)


@settings(max_examples=300)
@given(LIMITS, MOVES)
def test_a_call_is_granted_only_where_it_fits_into_every_limit(limits: RunLimits, moves: list[Any]) -> None:
    """Over any course of calls, turns and steps, with the real use at most what was granted and any input."""
    spending = begin_turn(Spending())
    for kind, estimated, (used_in, share_out, seconds) in moves:
        if kind == "turn":
            spending = begin_turn(spending)
            continue
        if kind == "step":
            spending = spending.model_copy(update={"steps": spending.steps + 1})
            continue
        leave = reserve(spending, limits, estimated)
        if isinstance(leave, StopCause):
            continue
        assert_fits(spending, limits, estimated, leave)
        used = settle(spending, min(used_in, estimated), int(leave.max_output_tokens * share_out), seconds)
        assert_no_token_limit_is_passed(used, limits)
        spending = used


def assert_fits(spending: Spending, limits: RunLimits, estimated: int, leave: Reservation) -> None:
    usage, granted = spending.usage, leave.max_output_tokens
    assert usage.total_calls < limits.api.max_calls_per_session
    assert usage.calls_in_current_turn < limits.api.max_calls_per_turn
    assert MIN_OUTPUT_TOKENS <= granted <= limits.max_output_tokens_per_call
    after = settle(spending, estimated, granted, 0.0)
    assert_no_token_limit_is_passed(after, limits)
    if limits.max_steps is not None and not limits.max_steps_soft:
        assert spending.steps < limits.max_steps
    if limits.max_seconds is None:
        assert leave.max_seconds is None
    else:
        assert leave.max_seconds == limits.max_seconds - spending.seconds > 0
    cost = cost_usd(after, limits)
    if cost is not None and limits.max_cost_usd is not None:
        assert cost <= limits.max_cost_usd + 1e-9


def assert_no_token_limit_is_passed(spending: Spending, limits: RunLimits) -> None:
    now, start = spending.usage, spending.at_turn_start
    assert now.total_input_tokens <= limits.api.max_input_tokens_per_session
    assert now.total_output_tokens <= limits.api.max_output_tokens_per_session
    if limits.max_input_tokens_per_turn is not None:
        assert now.total_input_tokens - start.total_input_tokens <= limits.max_input_tokens_per_turn
    if limits.max_output_tokens_per_turn is not None:
        assert now.total_output_tokens - start.total_output_tokens <= limits.max_output_tokens_per_turn


SPENDINGS = st.builds(
    lambda calls, tokens, turn, steps, seconds, mended: Spending(
        usage=APIUsageStats(calls, tokens[0] + turn[0], tokens[1] + turn[1], min(calls, 3)),
        at_turn_start=APIUsageStats(0, tokens[0], tokens[1], 0),
        steps=steps,
        seconds=seconds,
        mending=Mending(rescued=mended[0], asked_again=mended[1], cut=mended[2]),
    ),
    st.integers(0, 12),
    st.tuples(TOKENS, TOKENS),
    st.tuples(TOKENS, TOKENS),
    st.integers(0, 6),
    SECONDS,
    st.tuples(*[st.integers(0, 5)] * 3),
)


@given(SPENDINGS, LIMITS, TOKENS)
def test_an_exhausted_limit_and_a_refused_reservation_agree(
    spending: Spending, limits: RunLimits, estimated: int
) -> None:
    exhausted, leave = exhausted_limit(spending, limits), reserve(spending, limits, estimated)
    if exhausted is not None:
        assert leave == exhausted
    soft = limits.model_copy(update={"max_steps_soft": True})
    without = limits.model_copy(update={"max_steps": None})
    assert exhausted_limit(spending, soft) == exhausted_limit(spending, without)
    assert reserve(spending, soft, estimated) == reserve(spending, without, estimated)


@given(SPENDINGS)
def test_a_new_turn_resets_only_the_turn(spending: Spending) -> None:
    fresh = begin_turn(spending)
    assert fresh == Spending(usage=spending.usage._replace(calls_in_current_turn=0), at_turn_start=fresh.usage)
    report = usage_report(fresh, RunLimits())
    assert [value for name, value in report.items() if name.endswith("current_turn")] == [0, 0, 0, 0, 0.0]
    assert not [name for name in report if name.startswith("replies_")]


@given(SPENDINGS, TOKENS, TOKENS, SECONDS, st.integers(1, 5))
def test_settling_adds_up(spending: Spending, tokens_in: int, tokens_out: int, seconds: float, calls: int) -> None:
    old, new = spending.usage, settle(spending, tokens_in, tokens_out, seconds, calls)
    added = APIUsageStats(old[0] + calls, old[1] + tokens_in, old[2] + tokens_out, old[3] + calls)
    expected = {"usage": added, "seconds": spending.seconds + seconds}
    assert new == spending.model_copy(update=expected)


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
        (
            spent(1, 1_000, 1_000),
            {"max_cost_usd": 0.03, "usd_per_million_input": 10.0, "usd_per_million_output": 20.0},
            "max_cost",
            "Limit 'max_cost_usd' exceeded: 0.03/0.03",
        ),
    ],
)
def test_each_limit_has_its_reason(spending: Spending, limits: dict[str, Any], reason: str, message: str) -> None:
    assert exhausted_limit(spending, RunLimits(**limits)) == stopped(StopReason(reason), message)


@pytest.mark.parametrize(
    ("spending", "limits", "estimated", "expected"),
    [
        (spent(), {}, 1_000, Reservation(max_output_tokens=2_048, max_seconds=None)),
        (spent(0, 0, 49_000), {}, 1_000, Reservation(max_output_tokens=1_000, max_seconds=None)),
        (spent(seconds=9.96), {"max_seconds": 10.0}, 1, Reservation(max_output_tokens=2_048, max_seconds=10 - 9.96)),
        (
            spent(0, 99_500),
            {},
            501,
            stopped(StopReason.MAX_INPUT_TOKENS, "The next call needs about 501 input tokens, and 500 are left."),
        ),
        (spent(0, 99_500), {}, 500, Reservation(max_output_tokens=2_048, max_seconds=None)),
        (spent(0, 0, 49_984), {}, 1, Reservation(max_output_tokens=16, max_seconds=None)),
        (
            spent(0, 400, 300),
            {"max_input_tokens_per_turn": 1_000, "max_output_tokens_per_turn": 500},
            600,
            Reservation(max_output_tokens=200, max_seconds=None),
        ),
        (
            spent(0, 400),
            {"max_input_tokens_per_turn": 1_000},
            601,
            stopped(StopReason.MAX_INPUT_TOKENS, "The next call needs about 601 input tokens, and 600 are left."),
        ),
        (spent(0, 0, 49_985), {}, 1, stopped(StopReason.MAX_OUTPUT_TOKENS, "Only 15 output tokens are left.")),
        (
            spent(),
            {"max_cost_usd": 0.01, "usd_per_million_input": 1.0, "usd_per_million_output": 10.0},
            1_000,
            Reservation(max_output_tokens=900, max_seconds=None),
        ),
        (
            spent(1, 5, 4),
            {"max_cost_usd": 20.0, "usd_per_million_input": 0.0, "usd_per_million_output": 1_000_000.0},
            9,
            Reservation(max_output_tokens=16, max_seconds=None),
        ),
        (
            spent(1, 1, 1),
            {"max_cost_usd": 20.0, "usd_per_million_input": 1_000_000.0, "usd_per_million_output": 1_000_000.0},
            3,
            stopped(StopReason.MAX_COST, "The next call may cost more than is left of max_cost_usd=20.0."),
        ),
        (
            spent(),
            {"max_cost_usd": 0.01, "usd_per_million_input": 10.0, "usd_per_million_output": 0.0},
            1_001,
            stopped(StopReason.MAX_COST, "The next call may cost more than is left of max_cost_usd=0.01."),
        ),
        (
            spent(),
            {"max_cost_usd": 0.01, "usd_per_million_input": 10.0, "usd_per_million_output": 0.0},
            1_000,
            Reservation(max_output_tokens=2_048, max_seconds=None),
        ),
        (
            spent(),
            {"max_cost_usd": 0.01, "usd_per_million_input": 0.0, "usd_per_million_output": 5e-324},
            1,
            Reservation(max_output_tokens=2_048, max_seconds=None),
        ),
    ],
)
def test_a_reservation_is_cut_to_what_is_left(
    spending: Spending, limits: dict[str, Any], estimated: int, expected: Reservation | StopCause
) -> None:
    assert reserve(spending, RunLimits(**limits), estimated) == expected


def test_without_both_prices_there_is_no_cost_and_no_cost_limit() -> None:
    limits = RunLimits(max_cost_usd=0.000001, usd_per_million_input=5.0)
    assert cost_usd(spent(1, 1_000, 1_000), limits) is None
    assert reserve(spent(1, 1_000, 1_000), limits, 100) == Reservation(max_output_tokens=2_048, max_seconds=None)


@pytest.mark.parametrize(("characters", "messages", "tokens"), [(0, 0, 0), (1, 1, 5), (300, 2, 108), (301, 0, 101)])
def test_estimates_are_on_the_high_side(characters: int, messages: int, tokens: int) -> None:
    assert estimate_tokens(characters, messages) == tokens


def test_the_report_holds_json_values() -> None:
    start = APIUsageStats(2, 100, 50, 0)
    spending = Spending(usage=APIUsageStats(5, 1_100, 450, 3), at_turn_start=start, steps=2, seconds=1.23456)
    limits = RunLimits(usd_per_million_input=1.0, usd_per_million_output=2.0)
    assert usage_report(spending, limits) == {
        "total_calls": 5,
        "total_input_tokens": 1_100,
        "total_output_tokens": 450,
        "calls_in_current_turn": 3,
        "input_tokens_in_current_turn": 1_000,
        "output_tokens_in_current_turn": 400,
        "steps_in_current_turn": 2,
        "seconds_in_current_turn": 1.235,
        "cost_usd": 0.002,
    }


# --- Replies that had to be mended


@given(SPENDINGS, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_mended_replies_add_up_and_cost_nothing(spending: Spending, rescued: int, asked: int, cut: int) -> None:
    old = spending.mending
    new = Mending(rescued=old.rescued + rescued, asked_again=old.asked_again + asked, cut=old.cut + cut)
    counted = count_mending(spending, rescued=rescued, asked_again=asked, cut=cut)
    assert counted == spending.model_copy(update={"mending": new})
    assert count_mending(spending) == spending


@given(SPENDINGS, LIMITS, TOKENS)
def test_mended_replies_are_no_limit(spending: Spending, limits: RunLimits, estimated: int) -> None:
    unmended = spending.model_copy(update={"mending": Mending()})
    assert exhausted_limit(spending, limits) == exhausted_limit(unmended, limits)
    assert reserve(spending, limits, estimated) == reserve(unmended, limits, estimated)


@pytest.mark.parametrize(
    ("mending", "told"),
    [
        (Mending(), {}),
        (Mending(rescued=2), {"replies_rescued": 2}),
        (Mending(asked_again=1), {"replies_asked_again": 1}),
        (Mending(cut=3), {"replies_cut": 3}),
        (
            Mending(rescued=1, asked_again=2, cut=3),
            {"replies_rescued": 1, "replies_asked_again": 2, "replies_cut": 3},
        ),
    ],
)
def test_the_report_tells_only_of_what_had_to_be_mended(mending: Mending, told: dict[str, int]) -> None:
    report = usage_report(spent(mending=mending), RunLimits())
    assert report == {**usage_report(spent(), RunLimits()), **told}
    assert list(report)[-1] == "cost_usd"
