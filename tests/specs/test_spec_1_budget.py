"""Document 1, section 4: our API budget beside the document's own code."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.call_model.budget import (
    APILimits,
    APIUsageStats,
    check_api_limits,
    create_rate_limited_llm_caller,
    format_usage_stats,
    reset_turn_usage,
    update_usage_after_call,
)
from tests.specs import document_1
from tests.specs.same_values import plain

counts = st.integers(0, 4)
usages = st.tuples(counts, counts, counts, counts)
limits_of_a_run = st.tuples(counts, counts, counts, counts)


@given(usages, limits_of_a_run)
def test_check_is_the_documents(usage: tuple[int, ...], limits: tuple[int, ...]) -> None:
    """The first limit in the document's order, its values and its message; equal is reached."""
    ours = check_api_limits(APIUsageStats(*usage), APILimits(*limits))
    theirs = document_1.check_api_limits(document_1.APIUsageStats(*usage), document_1.APILimits(*limits))
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("below", [0, 1])
@pytest.mark.parametrize("at", range(4))
def test_each_default_limit_is_reached_when_the_count_equals_it(at: int, below: int) -> None:
    counts = [0, 0, 0, 0]
    counts[at] = (100, 100_000, 50_000, 10)[at] - below
    name = ("max_calls_per_session", "max_input_tokens_per_session", "max_output_tokens_per_session")
    result = check_api_limits(APIUsageStats(*counts))
    assert result.allowed is bool(below)
    assert plain(result) == plain(document_1.check_api_limits(document_1.APIUsageStats(*counts)))
    assert result.exceeded is None or result.exceeded.limit_name == (*name, "max_calls_per_turn")[at]


@given(usages, counts, counts)
def test_counting_and_resetting_are_the_documents(usage: tuple[int, ...], given_tokens: int, taken: int) -> None:
    """New values; what was given stays as it is."""
    ours, theirs = APIUsageStats(*usage), document_1.APIUsageStats(*usage)
    after = update_usage_after_call(ours, given_tokens, taken)
    assert plain(after) == plain(document_1.update_usage_after_call(theirs, given_tokens, taken))
    assert plain(reset_turn_usage(ours)) == plain(document_1.reset_turn_usage(theirs))
    assert ours == APIUsageStats(*usage)


@given(usages, limits_of_a_run)
def test_usage_is_shown_as_in_the_document(usage: tuple[int, ...], limits: tuple[int, ...]) -> None:
    shown = document_1.format_usage_stats(document_1.APIUsageStats(*usage), document_1.APILimits(*limits))
    assert format_usage_stats(APIUsageStats(*usage), APILimits(*limits)) == shown


# --- 4.4 create_rate_limited_llm_caller


def response(content: Any, usage: dict[str, Any]) -> SimpleNamespace:
    message = SimpleNamespace(content=content)
    return SimpleNamespace(usage=SimpleNamespace(**usage), choices=[SimpleNamespace(message=message)])


RESPONSES: dict[str, Any] = {
    "answer": response("Hello", {"prompt_tokens": 2, "completion_tokens": 1}),
    "no text": response(None, {"prompt_tokens": 1, "completion_tokens": 1}),
    "no counts": response("Hello", {}),
    "no usage": SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="Hello"))]),
    "None as a count": response("Hello", {"prompt_tokens": None, "completion_tokens": None}),
    "text as a count": response("Hello", {"prompt_tokens": 1, "completion_tokens": "1"}),
    "no choices": SimpleNamespace(usage=SimpleNamespace(prompt_tokens=1, completion_tokens=1), choices=[]),
    "error": ConnectionError("no route"),
}


def play(create: Any, limits: Any, steps: list[str]) -> list[Any]:
    """What a caller answers to each step and what it has counted by then, and the conversations of its base."""
    asked: list[Any] = []
    coming: list[Any] = []

    def base(conversation: Any) -> Any:
        asked.append(conversation)
        if isinstance(coming[-1], Exception):
            raise coming[-1]
        return coming[-1]

    caller, seen = create(base, limits), []
    for number, step in enumerate(steps):
        coming.append(RESPONSES.get(step))
        answer = caller.reset_turn() if step == "reset" else caller([{"role": "user", "content": str(number)}])
        seen.append((answer, plain(caller.get_usage())))
    return [*seen, asked]


@given(limits_of_a_run, st.lists(st.sampled_from([*RESPONSES, "reset"]), max_size=12))
def test_rate_limited_caller_is_the_documents(limits: tuple[int, ...], steps: list[str]) -> None:
    """Every answer, every count, and that no call is made at a limit; a failure is a value and costs nothing."""
    ours = play(create_rate_limited_llm_caller, APILimits(*limits), steps)
    assert ours == play(document_1.create_rate_limited_llm_caller, document_1.APILimits(*limits), steps)


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize("count", [-1, True, 1.5, float("nan"), "1", None, [1]])
def test_count_that_is_no_number_of_tokens_is_an_api_error_and_counts_nothing(name: str, count: object) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, name: count}
    caller = create_rate_limited_llm_caller(lambda _: response("Hello", usage))
    answer = caller([])
    assert (answer["success"], answer["error"], answer["content"]) == (False, "api_error", None)
    assert caller.get_usage() == APIUsageStats(0, 0, 0, 0)


def test_two_callers_count_apart() -> None:
    first, second = (create_rate_limited_llm_caller(lambda _: RESPONSES["answer"]) for _ in range(2))
    assert first([])["success"]
    assert (first.get_usage(), second.get_usage()) == (APIUsageStats(1, 2, 1, 1), APIUsageStats(0, 0, 0, 0))


def test_default_limits_end_a_runaway_loop() -> None:
    """10 calls in a turn, 100 in a session."""
    caller = create_rate_limited_llm_caller(lambda _: RESPONSES["no counts"])
    made = []
    for _ in range(12):
        caller.reset_turn()
        made.append(sum(caller([])["success"] for _ in range(12)))
    assert made == [*[10] * 10, 0, 0]
    assert caller([])["details"]["message"] == "Limit 'max_calls_per_session' exceeded: 100/100"
