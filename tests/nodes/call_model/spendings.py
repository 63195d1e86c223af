"""Limits, prices and counters of every kind, for tests of what is spent."""

from typing import Any

from hypothesis import strategies as st

from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.ledger import MIN_OUTPUT_TOKENS, Mending, RunLimits, Spending
from mendgraph.nodes.call_model.prices import Price
from mendgraph.nodes.call_model.prompts.estimates import Gauge

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
    max_cost_usd=mostly(None, st.floats(1e-6, 0.01)),
    wrap_up=st.booleans(),
)
USD = st.sampled_from([0.0, 0.15, 3.0, 60.0])
PRICES = st.none() | st.builds(Price, input=USD, output=USD, cached_input=st.none() | USD, cache_write=st.none() | USD)

SPENDINGS = st.builds(
    lambda calls, tokens, turn, steps, seconds, mended: Spending(
        usage=APIUsageStats(calls, tokens[0] + turn[0], tokens[1] + turn[1], min(calls, 3)),
        at_turn_start=APIUsageStats(0, tokens[0], tokens[1], 0),
        steps=steps,
        seconds=seconds,
        mending=Mending(rescued=mended[0], asked_again=mended[1], cut=mended[2]),
        cached_tokens=tokens[0] // 2,
        reasoning_tokens=tokens[1] // 3,
        cache_write_tokens=tokens[0] // 5,
        cost_usd=tokens[1] / 1_000_000,
        unpriced_calls=max(0, calls - 10),
        gauge=Gauge(size=turn[0], messages=mended[0], tokens=turn[1]),
        booked=tokens[1],
    ),
    st.integers(0, 12),
    st.tuples(TOKENS, TOKENS),
    st.tuples(TOKENS, TOKENS),
    st.integers(0, 6),
    SECONDS,
    st.tuples(*[st.integers(0, 5)] * 3),
)


def spent(calls: int = 0, tokens_in: int = 0, tokens_out: int = 0, **fields: Any) -> Spending:
    return Spending(usage=APIUsageStats(calls, tokens_in, tokens_out, calls), **fields)
