"""The limits of the terminal and of unattended runs, which are enough to finish a task on a hosted model."""

from collections.abc import Mapping
from typing import Any

HOSTED: Mapping[str, Any] = {
    "max_calls_per_turn": 60,
    "max_calls_per_session": 180,  # and two resumed turns
    "max_input_tokens_per_session": 3_000_000,  # a prompt of 4,000 tokens that grows by 1,500 with each of 60 calls
    "max_output_tokens_per_session": 200_000,
    "max_output_tokens_per_call": 16_384,  # a file of some 1,600 lines, or the thoughts of a reasoning model
}
"""The terminal's limits for hosted models, which are enough to finish a task."""

UNATTENDED: Mapping[str, Any] = {
    **HOSTED,
    "mode": "auto",
    "evidence": True,
    "require_checks": True,
    "max_seconds": 3_600.0,
    "tool_timeout_s": 120.0,
    "checks_timeout_s": 300.0,
}
"""The fields that `AgentContext.unattended` sets: limits for one task on a hosted model."""
