from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.budget import (
    DEFAULT_API_LIMITS,
    INITIAL_API_USAGE,
    APILimits,
    APIUsageStats,
    check_api_limits,
    create_rate_limited_llm_caller,
    format_usage_stats,
    reset_turn_usage,
    update_usage_after_call,
)

COUNTS = st.integers(0, 200_000)
USAGES = st.builds(APIUsageStats, COUNTS, COUNTS, COUNTS, COUNTS)
LIMITS = st.builds(APILimits, COUNTS, COUNTS, COUNTS, COUNTS)
CONVERSATION: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def response(content: str = "Hello", input_tokens: int = 7, output_tokens: int = 3) -> SimpleNamespace:
    usage = SimpleNamespace(prompt_tokens=input_tokens, completion_tokens=output_tokens)
    return SimpleNamespace(usage=usage, choices=[SimpleNamespace(message=SimpleNamespace(content=content))])


@given(USAGES, COUNTS, COUNTS)
def test_counting_and_resetting(usage: APIUsageStats, input_tokens: int, output_tokens: int) -> None:
    after = update_usage_after_call(usage, input_tokens, output_tokens)
    assert tuple(new - old for new, old in zip(after, usage, strict=True)) == (1, input_tokens, output_tokens, 1)
    assert reset_turn_usage(after) == APIUsageStats(*after[:3], 0)


def test_usage_is_shown_against_its_limits() -> None:
    assert format_usage_stats(APIUsageStats(3, 500, 40, 2), DEFAULT_API_LIMITS) == (
        "API Usage Stats:\n  Calls: 3/100\n  Turn Calls: 2/10\n  Input Tokens: 500/100000\n  Output Tokens: 40/50000"
    )


def test_a_call_that_is_allowed_is_made_and_counted() -> None:
    asked: list[list[dict[str, Any]]] = []

    def base(conversation: list[dict[str, Any]]) -> SimpleNamespace:
        asked.append(conversation)
        return response()

    caller = create_rate_limited_llm_caller(base)
    usage = {"total_calls": 1, "total_input_tokens": 7, "total_output_tokens": 3, "calls_in_current_turn": 1}
    assert caller(CONVERSATION) == {"success": True, "error": None, "content": "Hello", "usage": usage}
    assert (asked, caller.get_usage()) == ([CONVERSATION], APIUsageStats(1, 7, 3, 1))


def test_at_the_limit_no_call_is_made_until_the_next_turn() -> None:
    replies = iter([response(), response()])
    caller = create_rate_limited_llm_caller(lambda _: next(replies), APILimits(max_calls_per_turn=1))
    assert caller(CONVERSATION)["success"] is True
    assert caller(CONVERSATION) == {
        "success": False,
        "error": "rate_limit_exceeded",
        "content": None,
        "details": {
            "limit_name": "max_calls_per_turn",
            "current_value": 1,
            "max_value": 1,
            "message": "Limit 'max_calls_per_turn' exceeded: 1/1",
        },
    }
    caller.reset_turn()
    assert caller.get_usage() == APIUsageStats(1, 7, 3, 0)
    assert caller(CONVERSATION)["success"] is True
    assert next(replies, None) is None


def test_a_call_that_fails_is_a_value_and_is_not_counted() -> None:
    def base(_: list[dict[str, Any]]) -> SimpleNamespace:
        raise ConnectionError("no route")

    caller = create_rate_limited_llm_caller(base)
    assert caller(CONVERSATION) == {"success": False, "error": "api_error", "content": None, "details": "no route"}
    assert caller.get_usage() == INITIAL_API_USAGE


def test_a_response_without_token_counts_costs_a_call() -> None:
    bare = response()
    bare.usage = SimpleNamespace()
    caller = create_rate_limited_llm_caller(lambda _: bare)
    assert caller(CONVERSATION)["success"] is True
    assert caller.get_usage() == APIUsageStats(1, 0, 0, 1)


@given(st.lists(st.tuples(COUNTS, COUNTS), max_size=30), LIMITS)
def test_a_wrapped_caller_never_starts_a_call_at_a_limit(tokens: list[tuple[int, int]], limits: APILimits) -> None:
    replies = iter(tokens)
    caller = create_rate_limited_llm_caller(lambda _: response("x", *next(replies)), limits)
    for _ in tokens:
        allowed = check_api_limits(caller.get_usage(), limits).allowed
        assert caller(CONVERSATION)["success"] is allowed
