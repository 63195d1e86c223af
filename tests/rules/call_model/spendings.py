"""Limits, prices and counters of every kind, for tests of what is spent."""

from typing import Any

from mendgraph.nodes.call_model.budget import APIUsageStats
from mendgraph.nodes.call_model.ledger import Spending


def spent(calls: int = 0, tokens_in: int = 0, tokens_out: int = 0, **fields: Any) -> Spending:
    return Spending(usage=APIUsageStats(calls, tokens_in, tokens_out, calls), **fields)
