import pytest

from mendgraph.graph.langchain.failures import Refusal
from mendgraph.graph.langchain.learned import LIMIT, STREAM, TOOLS, Learned, Lessons

SENT = frozenset({"temperature", "stop", "seed", "stream_options", "response_format", TOOLS, STREAM, LIMIT})
WANTED = 2_048


def refusal(message: str, parameter: str = "", status: int | None = 400) -> Refusal:
    return Refusal(status, message, frozenset(), parameter, None)


@pytest.mark.parametrize(
    ("message", "parameter", "learned"),
    [
        (
            "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default is supported.",
            "temperature",
            "temperature",
        ),
        ("`temperature` is deprecated for this model.", "", "temperature"),
        ("Unsupported parameter: 'stop' is not supported with this model.", "stop", "stop"),
        ("stop: Extra inputs are not permitted", "stop", "stop"),
        ("Unknown name: stream_options", "", "stream_options"),
        ("This response_format type is unavailable now", "", "response_format"),
        ("Invalid schema", "response_format.json_schema", "response_format"),
        ("registry.ollama.ai/library/m does not support tools", "", TOOLS),
        ("No endpoints found that support tool use.", "", TOOLS),
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "", TOOLS),
        ("Your organization must be verified to stream this model.", "stream", STREAM),
        ("Streaming is not supported for this model", "", STREAM),
        ("The conversation must begin with a user's message", "", ""),
        ("The stopwatch has stopped", "", ""),
        ("top_k is not supported", "top_k", ""),
    ],
)
def test_what_a_refusal_names_is_left_out(message: str, parameter: str, learned: str) -> None:
    known = Learned()
    assert known.learn(refusal(message, parameter), SENT, WANTED) == learned
    assert known.dropped == ({learned} - {"", TOOLS, STREAM})
    assert (known.tools, known.streams) == (learned != TOOLS, learned != STREAM)


def test_what_was_not_sent_is_not_to_blame() -> None:
    known = Learned()
    assert known.learn(refusal("temperature, tools", "temperature"), frozenset({STREAM}), WANTED) == ""
    assert known.learn(refusal("m does not support tools"), frozenset({STREAM}), WANTED) == ""


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (
            "max_tokens",
            "max_completion_tokens",
            "Unsupported parameter: 'max_tokens' is not supported here. Use 'max_completion_tokens' instead.",
        ),
        ("max_completion_tokens", "max_tokens", "max_completion_tokens: Extra inputs are not permitted"),
        ("max_completion_tokens", "max_tokens", "Unrecognized request argument supplied: max_completion_tokens"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_the_limit_has_two_names_and_each_is_tried_once(first: str, other: str, message: str, named: bool) -> None:
    known, refused = Learned(first), refusal(message, first if named else "")
    assert (known.learn(refused, SENT, WANTED), known.limit_name) == (LIMIT, other)
    assert (known.learn(refused, SENT, WANTED), known.limit_name) == ("", other)
    assert known.dropped == frozenset()


@pytest.mark.parametrize(
    ("message", "most"),
    [
        ("max_tokens is too large: 2048. This model supports at most 1024 completion tokens.", 1024),
        ("max_tokens: 2048 > 1024, which is the maximum allowed number of output tokens for m", 1024),
        ("Range of max_tokens should be [1, 1,024]", 1024),
        ("max_completion_tokens must be below 999_999 for 3 of 4", None),
        ("max_tokens is odd", None),
    ],
)
def test_a_limit_that_is_too_large_is_lowered_to_what_the_refusal_allows(message: str, most: int | None) -> None:
    known = Learned()
    assert known.learn(refusal(message), SENT, WANTED) == ("" if most is None else "max_tokens")
    assert (known.limited(WANTED), known.limited(100)) == (most or WANTED, 100)
    assert known.learn(refusal(message), SENT, WANTED) == ""  # what is repeated teaches nothing


def test_lessons_are_kept_for_each_model_at_each_endpoint_until_they_are_forgotten() -> None:
    lessons = Lessons()
    made = lessons.of("", "http://a", "m", lambda: Learned("max_tokens"))
    assert made.limit_name == "max_tokens"
    assert lessons.of("", "http://a", "m") is made
    others = [lessons.of(*key) for key in (("", "http://b", "m"), ("", "http://a", "n"), ("p", "http://a", "m"))]
    assert made not in others
    lessons.forget()
    assert lessons.of("", "http://a", "m") is not made


def test_a_process_that_meets_many_models_forgets_rather_than_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.langchain.learned.MOST_ENTRIES", 3)
    lessons = Lessons()
    first = lessons.of("", "", "0")
    for number in range(1, 4):
        lessons.of("", "", str(number))
    assert lessons.of("", "", "0") is not first
