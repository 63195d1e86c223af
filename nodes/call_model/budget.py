"""Spec 1's API budget (section 4): counters, limits and the check between them. `ledger` builds on these functions."""

from typing import NamedTuple


class APIUsageStats(NamedTuple):
    """Calls and tokens that a session has used."""

    total_calls: int
    total_input_tokens: int
    total_output_tokens: int
    calls_in_current_turn: int


class APILimits(NamedTuple):
    """Calls and tokens that a session may use. A limit is reached when the count equals it."""

    max_calls_per_session: int = 100
    max_calls_per_turn: int = 10
    max_input_tokens_per_session: int = 100_000
    max_output_tokens_per_session: int = 50_000


class LimitExceeded(NamedTuple):
    """The limit that was reached, and the count."""

    limit_name: str
    current_value: int
    max_value: int
    message: str


class LimitCheckResult(NamedTuple):
    """Whether another call is allowed; `exceeded` is the first limit that forbids it."""

    allowed: bool
    exceeded: LimitExceeded | None


DEFAULT_API_LIMITS = APILimits()
INITIAL_API_USAGE = APIUsageStats(total_calls=0, total_input_tokens=0, total_output_tokens=0, calls_in_current_turn=0)


def check_api_limits(usage: APIUsageStats, limits: APILimits = DEFAULT_API_LIMITS) -> LimitCheckResult:
    """Return whether one more call is allowed; the limits are checked in the order of `APILimits`."""
    checks = (
        ("max_calls_per_session", usage.total_calls, limits.max_calls_per_session),
        ("max_calls_per_turn", usage.calls_in_current_turn, limits.max_calls_per_turn),
        ("max_input_tokens_per_session", usage.total_input_tokens, limits.max_input_tokens_per_session),
        ("max_output_tokens_per_session", usage.total_output_tokens, limits.max_output_tokens_per_session),
    )

    for name, current, maximum in checks:
        if current >= maximum:
            message = f"Limit '{name}' exceeded: {current}/{maximum}"
            return LimitCheckResult(allowed=False, exceeded=LimitExceeded(name, current, maximum, message))

    return LimitCheckResult(allowed=True, exceeded=None)


def update_usage_after_call(
    usage: APIUsageStats, input_tokens: int, output_tokens: int, calls: int = 1
) -> APIUsageStats:
    """Return the counters after a call that used these tokens; `calls` includes its retries."""
    return APIUsageStats(
        total_calls=usage.total_calls + calls,
        total_input_tokens=usage.total_input_tokens + input_tokens,
        total_output_tokens=usage.total_output_tokens + output_tokens,
        calls_in_current_turn=usage.calls_in_current_turn + calls,
    )


def reset_turn_usage(usage: APIUsageStats) -> APIUsageStats:
    """Return the counters at the start of a new turn."""
    return usage._replace(calls_in_current_turn=0)


def format_usage_stats(usage: APIUsageStats, limits: APILimits) -> str:
    """Return the counters and their limits as text."""
    return f"""
API Usage Stats:
  Calls: {usage.total_calls}/{limits.max_calls_per_session}
  Turn Calls: {usage.calls_in_current_turn}/{limits.max_calls_per_turn}
  Input Tokens: {usage.total_input_tokens}/{limits.max_input_tokens_per_session}
  Output Tokens: {usage.total_output_tokens}/{limits.max_output_tokens_per_session}
""".strip()
