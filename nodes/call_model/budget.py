"""Spec 1's API budget: what was used, what may be used, and the check between them.

Pure, except for what `create_rate_limited_llm_caller` returns, which the spec wants to hold its own counters.
The machine itself keeps its counters in the checkpointed state, and counts and checks them with these functions
(`mendgraph.nodes.call_model.ledger`).
Source: spec 1 section 4.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class APIUsageStats(NamedTuple):
    """What a session has used so far: calls and tokens."""

    total_calls: int
    total_input_tokens: int
    total_output_tokens: int
    calls_in_current_turn: int


class APILimits(NamedTuple):
    """What a session may use: calls and tokens. A limit is reached when the count equals it."""

    max_calls_per_session: int = 100
    max_calls_per_turn: int = 10
    max_input_tokens_per_session: int = 100_000
    max_output_tokens_per_session: int = 50_000


class LimitExceeded(NamedTuple):
    """Which limit was reached, and how far."""

    limit_name: str
    current_value: int
    max_value: int
    message: str


class LimitCheckResult(NamedTuple):
    """May another call be made? `exceeded` names the first limit that says no."""

    allowed: bool
    exceeded: LimitExceeded | None


DEFAULT_API_LIMITS = APILimits()
INITIAL_API_USAGE = APIUsageStats(total_calls=0, total_input_tokens=0, total_output_tokens=0, calls_in_current_turn=0)


def check_api_limits(usage: APIUsageStats, limits: APILimits = DEFAULT_API_LIMITS) -> LimitCheckResult:
    """Say whether one more call is allowed; the limits are asked in the order of `APILimits`."""
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
    """Return new counters after a call that used these tokens; `calls` counts its retries too."""
    return APIUsageStats(
        total_calls=usage.total_calls + calls,
        total_input_tokens=usage.total_input_tokens + input_tokens,
        total_output_tokens=usage.total_output_tokens + output_tokens,
        calls_in_current_turn=usage.calls_in_current_turn + calls,
    )


def reset_turn_usage(usage: APIUsageStats) -> APIUsageStats:
    """Return new counters for the start of a user's turn."""
    return usage._replace(calls_in_current_turn=0)


def format_usage_stats(usage: APIUsageStats, limits: APILimits) -> str:
    """Render the counters against their limits, for people."""
    return f"""
API Usage Stats:
  Calls: {usage.total_calls}/{limits.max_calls_per_session}
  Turn Calls: {usage.calls_in_current_turn}/{limits.max_calls_per_turn}
  Input Tokens: {usage.total_input_tokens}/{limits.max_input_tokens_per_session}
  Output Tokens: {usage.total_output_tokens}/{limits.max_output_tokens_per_session}
""".strip()


class RateLimitedCaller:
    """A call with its own counters: what `create_rate_limited_llm_caller` returns."""

    def __init__(self, base_caller: Callable[[list[dict[str, Any]]], Any], limits: APILimits) -> None:
        self._base_caller = base_caller
        self._limits = limits
        self._usage = INITIAL_API_USAGE

    def __call__(self, conversation: list[dict[str, Any]]) -> Mapping[str, Any]:
        """Make one call, or say why not."""
        checked = check_api_limits(self._usage, self._limits)
        if checked.exceeded is not None:
            details = checked.exceeded._asdict()
            return {"success": False, "error": "rate_limit_exceeded", "content": None, "details": details}

        try:
            response = self._base_caller(conversation)
            input_tokens = getattr(response.usage, "prompt_tokens", 0)
            output_tokens = getattr(response.usage, "completion_tokens", 0)
            content = response.choices[0].message.content
            usage = update_usage_after_call(self._usage, input_tokens, output_tokens)
            _check_counts(input_tokens, output_tokens)
        except Exception as error:  # noqa: BLE001 - the spec's contract: a failed call is a value
            return {"success": False, "error": "api_error", "content": None, "details": str(error)}

        self._usage = usage
        return {"success": True, "error": None, "content": content, "usage": self._usage._asdict()}

    def reset_turn(self) -> None:
        """Start a user's turn."""
        self._usage = reset_turn_usage(self._usage)

    def get_usage(self) -> APIUsageStats:
        """What was used so far."""
        return self._usage


def _check_counts(*counts: object) -> None:
    for count in counts:
        if type(count) is not int or count < 0:
            raise ValueError(f"the usage has a number of tokens that is none: {count!r}")


def create_rate_limited_llm_caller(
    base_caller: Callable[[list[dict[str, Any]]], Any], limits: APILimits = DEFAULT_API_LIMITS
) -> RateLimitedCaller:
    """Wrap a caller of an OpenAI-style client so that it stops at the limits.

    Returns what is called with the conversation and never raises: its mapping has `success`, `error`
    (`rate_limit_exceeded`, `api_error` or None), `content`, and `usage` or `details`. A usage that has no count of
    tokens counts as 0; one whose count is no whole number of 0 or more is an `api_error`.
    """
    return RateLimitedCaller(base_caller, limits)
