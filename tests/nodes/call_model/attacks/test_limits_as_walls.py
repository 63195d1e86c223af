"""No course of calls passes a limit, and the last call always still fits."""

from typing import Any

from hypothesis import given, settings, strategies as st

from mendgraph.nodes.call_model.ledger import (
    MIN_OUTPUT_TOKENS,
    Reservation,
    RunLimits,
    Spending,
    Used,
    begin_turn,
    charge,
    priced,
    reserve,
)
from mendgraph.nodes.call_model.prices import Price
from mendgraph.nodes.records import StopCause
from tests.nodes.call_model.spendings import LIMITS, PRICES, SECONDS

CALL = st.tuples(st.just("call"), st.integers(0, 400), st.tuples(st.integers(0, 400), st.floats(0, 1), SECONDS))
OTHER = st.sampled_from(["turn", "step"]).map(lambda kind: (kind, 0, (0, 0.0, 0.0)))
MOVES = st.lists(st.one_of(CALL, CALL, CALL, OTHER), max_size=25)


@settings(max_examples=100)
@given(LIMITS, PRICES, MOVES)
def test_a_call_is_granted_only_where_it_fits_into_every_limit(
    limits: RunLimits, price: Price | None, moves: list[Any]
) -> None:
    """Over any course of calls, turns and steps, with the real use at most what was granted and any input."""
    spending = begin_turn(Spending())
    for kind, estimated, (used_in, share_out, seconds) in moves:
        if kind == "turn":
            spending = begin_turn(spending)
            continue
        if kind == "step":
            spending = spending.model_copy(update={"steps": spending.steps + 1})
            continue
        leave = reserve(spending, limits, estimated, price)
        if isinstance(leave, StopCause):
            continue
        assert_fits(spending, limits, estimated, price, leave)
        output = int(leave.max_output_tokens * share_out)
        counted = Used(calls=1, input_tokens=min(used_in, estimated), output_tokens=output, seconds=seconds)
        used = charge(spending, priced(counted, price))
        assert_no_token_limit_is_passed(used, limits)
        spending = used


def assert_fits(spending: Spending, limits: RunLimits, estimated: int, price: Price | None, leave: Reservation) -> None:
    usage, granted = spending.usage, leave.max_output_tokens
    assert usage.total_calls < limits.api.max_calls_per_session
    assert usage.calls_in_current_turn < limits.api.max_calls_per_turn
    assert granted >= MIN_OUTPUT_TOKENS
    assert limits.max_output_tokens_per_call is None or granted <= limits.max_output_tokens_per_call
    counted = Used(calls=1, input_tokens=estimated, output_tokens=granted, cached_tokens=estimated)
    after = charge(spending, priced(counted, price))
    assert leave.input_tokens == estimated
    assert_no_token_limit_is_passed(after, limits)
    if limits.max_steps is not None and not limits.max_steps_soft:
        assert spending.steps < limits.max_steps
    if limits.max_seconds is None:
        assert leave.max_seconds is None
    else:
        assert leave.max_seconds == limits.max_seconds - spending.seconds > 0
    if price is None:
        assert leave.cost_usd is None is limits.max_cost_usd
    else:
        assert leave.cost_usd is not None
        assert leave.cost_usd >= after.cost_usd - spending.cost_usd - 1e-12
        if limits.max_cost_usd is not None:
            assert spending.cost_usd + leave.cost_usd <= limits.max_cost_usd + 1e-12


def assert_no_token_limit_is_passed(spending: Spending, limits: RunLimits) -> None:
    now, start = spending.usage, spending.at_turn_start
    assert now.total_input_tokens <= limits.api.max_input_tokens_per_session
    assert now.total_output_tokens <= limits.api.max_output_tokens_per_session
    if limits.max_input_tokens_per_turn is not None:
        assert now.total_input_tokens - start.total_input_tokens <= limits.max_input_tokens_per_turn
    if limits.max_output_tokens_per_turn is not None:
        assert now.total_output_tokens - start.total_output_tokens <= limits.max_output_tokens_per_turn
