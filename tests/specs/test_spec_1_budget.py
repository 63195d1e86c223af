"""Document 1, section 4: our API budget beside the document's own code."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies as st

from mendgraph.documents import (
    APILimits,
    APIUsageStats,
    check_api_limits,
    create_rate_limited_llm_caller,
    format_usage_stats,
    reset_turn_usage,
    update_usage_after_call,
)
from tests.specs import document_1
from tests.specs.document_1 import plain

counts = st.integers(0, 4)
four = st.tuples(counts, counts, counts, counts)


@given(four, four)
def test_limit_check_and_its_text_match_the_document(usage: tuple[int, ...], most: tuple[int, ...]) -> None:
    """The first limit in the document's order, its values and its message; equal is reached."""
    ours, theirs = (
        (APIUsageStats(*usage), APILimits(*most)),
        (
            document_1.APIUsageStats(*usage),
            document_1.APILimits(*most),
        ),
    )
    assert plain(check_api_limits(*ours)) == plain(document_1.check_api_limits(*theirs))
    assert format_usage_stats(*ours) == document_1.format_usage_stats(*theirs)


def test_default_limit_is_reached_when_the_count_equals_it() -> None:
    names = ("calls_per_session", "input_tokens_per_session", "output_tokens_per_session", "calls_per_turn")
    for place, (name, most) in enumerate(zip(names, (100, 100_000, 50_000, 10), strict=True)):
        usage = [0, 0, 0, 0]
        usage[place] = most - 1
        assert check_api_limits(APIUsageStats(*usage)).allowed
        usage[place] = most
        exceeded = check_api_limits(APIUsageStats(*usage)).exceeded
        assert exceeded is not None
        assert exceeded.limit_name == f"max_{name}"


@given(four, counts, counts)
def test_counting_and_resetting_match_the_document(usage: tuple[int, ...], inputs: int, outputs: int) -> None:
    """New values; what was given stays as it is."""
    ours, theirs = APIUsageStats(*usage), document_1.APIUsageStats(*usage)
    after = update_usage_after_call(ours, inputs, outputs)
    assert plain(after) == plain(document_1.update_usage_after_call(theirs, inputs, outputs))
    assert plain(reset_turn_usage(ours)) == plain(document_1.reset_turn_usage(theirs))
    assert ours == APIUsageStats(*usage)


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
    """The answer and the usage after each step, and the conversations of the base caller.

    The text of the error for an invalid count is left out: the document has that of Python's own TypeError.
    """
    conversations: list[Any] = []
    coming: list[Any] = []

    def base(conversation: Any) -> Any:
        conversations.append(conversation)
        if isinstance(coming[-1], Exception):
            raise coming[-1]
        return coming[-1]

    caller, seen = create(base, limits), []
    for number, step in enumerate(steps):
        coming.append(RESPONSES.get(step))
        answer = caller.reset_turn() if step == "reset" else caller([{"role": "user", "content": str(number)}])
        if step.endswith(" as a count") and answer["error"] == "api_error":
            answer = {**answer, "details": ""}
        seen.append((answer, plain(caller.get_usage())))
    return [*seen, conversations]


@given(four, st.lists(st.sampled_from([*RESPONSES, "reset"]), max_size=12))
def test_rate_limited_caller_matches_the_document(limits: tuple[int, ...], steps: list[str]) -> None:
    """Every answer and count; no call is made at a limit; a failure is a value and costs nothing."""
    ours = play(create_rate_limited_llm_caller, APILimits(*limits), steps)
    assert ours == play(document_1.create_rate_limited_llm_caller, document_1.APILimits(*limits), steps)


def test_invalid_token_count_is_an_api_error_and_counts_nothing() -> None:
    for count in (-1, True, 1.5, float("nan"), "1", None, [1]):
        for name in ("prompt_tokens", "completion_tokens"):
            usage = {"prompt_tokens": 1, "completion_tokens": 1, name: count}
            caller = create_rate_limited_llm_caller(lambda _, usage=usage: response("Hello", usage))  # type: ignore[misc]
            answer = caller([])
            assert (answer["success"], answer["error"], answer["content"]) == (False, "api_error", None), usage
            assert caller.get_usage() == APIUsageStats(0, 0, 0, 0)


def test_default_limits_end_a_runaway_loop_and_callers_count_separately() -> None:
    """10 calls in a turn, 100 in a session."""
    caller, other = (create_rate_limited_llm_caller(lambda _: RESPONSES["no counts"]) for _ in range(2))
    successes = []
    for _ in range(12):
        caller.reset_turn()
        successes.append(sum(caller([])["success"] for _ in range(12)))
    assert successes == [*[10] * 10, 0, 0]
    assert caller([])["details"]["message"] == "Limit 'max_calls_per_session' exceeded: 100/100"
    assert other.get_usage() == APIUsageStats(0, 0, 0, 0)
