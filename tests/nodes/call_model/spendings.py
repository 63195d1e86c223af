"""Limits, prices and counters of every kind, for tests of what is spent."""

from typing import Any

from hypothesis import strategies as st

from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.ledger import MIN_OUTPUT_TOKENS, RunLimits, Spending
from mendgraph.nodes.call_model.prices import Price

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
)
USD = st.sampled_from([0.0, 0.15, 3.0, 60.0])
PRICES = st.none() | st.builds(Price, input=USD, output=USD, cached_input=st.none() | USD, cache_write=st.none() | USD)


def spent(calls: int = 0, tokens_in: int = 0, tokens_out: int = 0, **fields: Any) -> Spending:
    return Spending(usage=APIUsageStats(calls, tokens_in, tokens_out, calls), **fields)
