"""Parameters that endpoints refuse, in the words of real ones: one retry, one reply, and later calls know it."""

from dataclasses import replace
from typing import Any

import pytest

from mendgraph.graph.langchain.failures import LIMIT, STREAM, TOOLS, Learned, Refusal
from mendgraph.nodes.call_model.endpoint import ModelOptions
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import LenientServer, Reply, Say, ScriptedServer, Status
from tests.langchain.model_calls import MESSAGES, TOOL, ask, model_at, reply_of
from tests.row_tables import rows


def in_text() -> Prompt:
    """The same request in the text protocol."""
    return replace(FULL.prompt, tools=(), messages=(*MESSAGES[:1], {"role": "user", "content": "in text"}))


FULL = Call(
    prompt=Prompt(messages=MESSAGES, tools=(TOOL,), stop=("\ntool_result(",), temperature=0.5, without_tools=in_text),
    max_output_tokens=2_048,
    timeout_s=20.0,
    seed=7,
)


def refusal_status(message: str, status: int = 400, **more: Any) -> Status:
    return Status(status, {"error": {"message": message, "type": "invalid_request_error", **more}})


DEFAULT = "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) is supported."
NEW_LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
TOO_LARGE = "max_tokens is too large: 2048. This model supports at most 1024 completion tokens."
UNVERIFIED = "Your organization must be verified to stream this model."
PYDANTIC = {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs"}]}
REFUSALS = [
    (refusal_status(DEFAULT, param="temperature", code="unsupported_value"), "temperature", {"temperature": None}),
    (refusal_status("Unsupported parameter: 'stop' is not supported.", param="stop"), "stop", {"stop": None}),
    (refusal_status("property 'seed' is unsupported"), "seed", {"seed": None}),
    (Status(422, PYDANTIC), "stream_options", {"stream_options": None}),
    (refusal_status(NEW_LIMIT, param="max_tokens"), "max_tokens", {"max_tokens": None, "max_completion_tokens": 2048}),
    (refusal_status(TOO_LARGE), "max_tokens", {"max_tokens": 1024}),
    (
        refusal_status(UNVERIFIED, param="stream", code="unsupported"),
        "stream",
        {"stream": False, "stream_options": None},
    ),
    (refusal_status("registry.ollama.ai/library/m does not support tools"), "tools", {"tools": None}),
    (refusal_status("No endpoints found that support tool use.", 404), "tools", {"tools": None}),
]


def without_messages(request: JsonMap) -> JsonMap:
    """A request without the parts that differ in the text protocol."""
    return {name: value for name, value in request.items() if name != "messages"}


@pytest.mark.parametrize(("refusal", "name", "differs"), REFUSALS, ids=[name for _, name, _ in REFUSALS])
def test_refused_parameter_is_omitted_in_the_retry_and_in_later_requests(
    refusal: Status, name: str, differs: JsonMap
) -> None:
    def answer(_: JsonMap) -> Reply:
        return refusal if len(server.requests) == 1 else Say("Hello")

    with ScriptedServer(then=answer) as server:
        model = model_at(server.base_url)
        first, second, other = reply_of(model, FULL), reply_of(model, FULL), reply_of(model_at(server.base_url), FULL)
    assert [result.text for result in (first, second, other)] == ["Hello"] * 3
    assert [result.adapted for result in (first, second, other)] == [(name,), (), ()]
    assert [result.without_tools for result in (first, second, other)] == [name == "tools"] * 3
    complete, *adapted = server.requests
    expected = {key: value for key, value in {**without_messages(complete), **differs}.items() if value is not None}
    assert [without_messages(request) for request in adapted] == [expected] * 3
    expected_messages = in_text().messages if name == "tools" else MESSAGES
    assert adapted[0]["messages"] == list(expected_messages)


ABOUT_SOMETHING_ELSE: list[tuple[Status, str]] = [
    (refusal_status("too long", code="context_length_exceeded"), "context_overflow"),
    (refusal_status(DEFAULT, 401, param="temperature"), "authentication"),
    (refusal_status(DEFAULT, 429, param="temperature"), "rate_limited"),
    (refusal_status(DEFAULT, 500, param="temperature"), "server_error"),
    (refusal_status("The conversation has to begin with a person."), "bad_request"),
]


@rows(*ABOUT_SOMETHING_ELSE)
def test_other_refusals_do_not_change_later_requests(status: Status, kind: str) -> None:
    with ScriptedServer([status]) as server:
        result, _ = ask(model_at(server.base_url), FULL)
        assert isinstance(result, ProviderFailure)
        assert (result.kind.value, len(server.requests)) == (kind, 1)


def test_endpoint_that_refuses_again_and_again_is_given_up() -> None:
    names = ModelOptions(model_kwargs={f"own_{number}": number for number in range(11)})

    def answer(_: JsonMap) -> Reply:
        return refusal_status(
            f"Unknown parameter: 'own_{len(server.requests) - 1}'.", param=f"own_{len(server.requests) - 1}"
        )

    with LenientServer(then=answer) as server:
        result, _ = ask(model_at(server.base_url, names), FULL)
    assert isinstance(result, ProviderFailure)
    assert (result.kind, len(server.requests)) == (ProviderErrorKind.BAD_REQUEST, 9)


# --- What one refusal teaches


SENT = frozenset({"temperature", "stop", "seed", "stream_options", "response_format", TOOLS, STREAM, LIMIT})
WANTED = 2_048


def refusal(message: str, parameter: str = "", status: int | None = 400) -> Refusal:
    return Refusal(status, message, frozenset(), parameter, None)


WORDS = [
    ("stop: Extra inputs are not permitted", "stop", "stop"),
    ("Invalid schema", "response_format.json_schema", "response_format"),
    ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "", TOOLS),
    ("The conversation must begin with a user's message", "", ""),
    ("The stopwatch has stopped", "", ""),
    ("top_k is not supported", "top_k", ""),
]


@rows(*WORDS)
def test_parameter_named_by_a_refusal_is_omitted(message: Any, parameter: Any, name: Any) -> None:
    learned = Learned()
    assert learned.learn(refusal(message, parameter), SENT, WANTED) == name
    assert learned.dropped == ({name} - {"", TOOLS, STREAM})
    assert (learned.tools, learned.streams) == (name != TOOLS, name != STREAM)


OLD, NEW = "max_tokens", "max_completion_tokens"
OTHER_NAME = [
    (OLD, NEW, "Unsupported parameter: 'max_tokens' is not supported here. Use 'max_completion_tokens' instead."),
    (NEW, OLD, "max_completion_tokens: Extra inputs are not permitted"),
    (NEW, OLD, "Unrecognized request argument supplied: max_completion_tokens"),
]


def test_both_names_of_the_output_limit_are_tried_once() -> None:
    for first, other, message in OTHER_NAME:
        for parameter in (first, ""):
            learned, failure = Learned(first), refusal(message, parameter)
            assert (learned.learn(failure, SENT, WANTED), learned.limit_name) == (LIMIT, other)
            assert (learned.learn(failure, SENT, WANTED), learned.limit_name) == ("", other)
            assert learned.dropped == frozenset()


LOWER: list[tuple[str, int | None]] = [
    ("max_tokens is too large: 2048. This model supports at most 1024 completion tokens.", 1024),
    ("max_tokens: 2048 > 1024, which is the maximum allowed number of output tokens for m", 1024),
    ("Range of max_tokens should be [1, 1,024]", 1024),
    ("max_completion_tokens must be below 999_999 for 3 of 4", None),
    ("max_tokens is odd", None),
]


def test_output_limit_is_lowered_to_the_value_in_the_refusal() -> None:
    for message, most in LOWER:
        learned = Learned()
        assert learned.learn(refusal(message), SENT, WANTED) == ("" if most is None else "max_tokens")
        assert (learned.limited(WANTED), learned.limited(100)) == (most or WANTED, 100)
        assert learned.learn(refusal(message), SENT, WANTED) == ""  # a repeated refusal changes nothing
