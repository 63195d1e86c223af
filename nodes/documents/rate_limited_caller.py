"""Spec 1's rate-limited caller (section 4.4): the machine's budget functions around a client of the caller's own."""

from collections.abc import Callable, Mapping
from typing import Any

from mendgraph.nodes.call_model.budget import (
    DEFAULT_API_LIMITS,
    INITIAL_API_USAGE,
    APILimits,
    APIUsageStats,
    check_api_limits,
    reset_turn_usage,
    update_usage_after_call,
)


class RateLimitedCaller:
    """Calls `base_caller` with a conversation until a limit is reached."""

    def __init__(self, base_caller: Callable[[list[dict[str, Any]]], Any], limits: APILimits) -> None:
        self._base_caller = base_caller
        self._limits = limits
        self._usage = INITIAL_API_USAGE

    def __call__(self, conversation: list[dict[str, Any]]) -> Mapping[str, Any]:
        """Make one call and return its content, or the limit or error that prevented it."""
        checked = check_api_limits(self._usage, self._limits)
        if checked.exceeded is not None:
            return _failure("rate_limit_exceeded", checked.exceeded._asdict())

        try:
            response = self._base_caller(conversation)
            input_tokens = _count(getattr(response.usage, "prompt_tokens", 0))
            output_tokens = _count(getattr(response.usage, "completion_tokens", 0))
            content = response.choices[0].message.content
        except Exception as error:  # noqa: BLE001 - spec 1: a failed call is a value
            return _failure("api_error", str(error))

        self._usage = update_usage_after_call(self._usage, input_tokens, output_tokens)
        return {"success": True, "error": None, "content": content, "usage": self._usage._asdict()}

    def reset_turn(self) -> None:
        """Start a new turn."""
        self._usage = reset_turn_usage(self._usage)

    def get_usage(self) -> APIUsageStats:
        """Return the usage so far."""
        return self._usage


def create_rate_limited_llm_caller(
    base_caller: Callable[[list[dict[str, Any]]], Any], limits: APILimits = DEFAULT_API_LIMITS
) -> RateLimitedCaller:
    """Wrap a caller of an OpenAI-style client so that it stops at the limits and never raises.

    The result has `success`, `error` (`rate_limit_exceeded`, `api_error` or None), `content`, and `usage` or `details`.
    """
    return RateLimitedCaller(base_caller, limits)


def _failure(error: str, details: object) -> Mapping[str, Any]:
    return {"success": False, "error": error, "content": None, "details": details}


def _count(tokens: object) -> int:
    if type(tokens) is not int or tokens < 0:
        raise ValueError(f"the usage has a number of tokens that is none: {tokens!r}")

    return tokens
