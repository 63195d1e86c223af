"""Replies and failures on the wire: what the chat model of an endpoint reads of them is what was said."""

import asyncio
import json

import pytest
from httpx2 import MockTransport, Response
from hypothesis import given, strategies as st

from graph.cassettes.reply_wire import NEVER_S, Failed, failed, failure_said, reply_said
from graph.langchain.chat_models import endpoint_chat, given_model
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.endpoint import PLAIN
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.records import FinishReason, ModelReply, ProviderErrorKind, RawCall, StopCause, StopReason

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.text("abc_", min_size=1, max_size=8)
CALLS = st.lists(st.builds(RawCall, call_id=NAMES, tool=NAMES, arguments=TEXTS), max_size=3).map(tuple)
COUNTS = st.integers(1, 10_000)
REPLIES = st.builds(
    ModelReply,
    text=TEXTS,
    calls=CALLS,
    reasoning=TEXTS,
    model=NAMES,
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    finish_reason=st.sampled_from([each for each in FinishReason if each is not FinishReason.REFUSAL]),
)


def read(body: bytes) -> ModelReply | None:
    answer = MockTransport(lambda _: Response(200, headers={"content-type": "text/event-stream"}, content=body))
    endpoint = Endpoint(model="m", base_url="http://llm.test/v1")
    model = given_model(endpoint_chat(endpoint, PLAIN, verify=False, transport=answer))
    call = Call(prompt=Prompt(messages=({"role": "user", "content": "a"},)), max_output_tokens=9, timeout_s=60.0)
    reply = asyncio.run(model.acomplete(call, lambda _: None))
    return (
        reply.model_copy(update={"seconds": 0.0, "allowed_tokens": 0, "provider": {}})
        if isinstance(reply, ModelReply)
        else None
    )


@given(REPLIES)
def test_a_reply_is_read_as_it_was(reply: ModelReply) -> None:
    said = reply_said(reply, "m", 1)
    assert (said.status, said.headers) == (200, {"content-type": "text/event-stream"})
    assert read(said.body) == reply
    assert said == reply_said(reply, "m", 1)


def test_a_refusal_is_read_as_one() -> None:
    reply = ModelReply(refusal="I may not.", finish_reason=FinishReason.REFUSAL, model="m")
    assert read(reply_said(reply, "m", 1).body) == reply


def test_cached_tokens_are_told_and_no_tokens_are_not() -> None:
    cached = ModelReply(text="a", model="m", input_tokens=9, output_tokens=1, cached_tokens=5)
    assert read(reply_said(cached, "m", 1).body) == cached
    assert b"usage" not in reply_said(ModelReply(text="a"), "m", 1).body


def test_reasoning_and_cache_writes_are_told_where_there_are_any() -> None:
    counts = {"input_tokens": 9, "output_tokens": 4, "cached_tokens": 5, "reasoning_tokens": 3, "cache_write_tokens": 2}
    body = reply_said(ModelReply(text="a", model="m", **counts), "m", 1).body.decode()
    assert '"prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2}' in body
    assert '"completion_tokens_details": {"reasoning_tokens": 3}' in body
    assert "details" not in reply_said(ModelReply(text="a", input_tokens=9), "m", 1).body.decode()


def test_a_reply_without_a_model_has_the_name_that_was_asked_for() -> None:
    assert read(reply_said(ModelReply(text="a"), "asked", 1).body) == ModelReply(text="a", model="asked")


@pytest.mark.parametrize(
    ("diagnostic", "message", "expected"),
    [
        (
            "provider error: server_error (3 tries)",
            "x failed (busy).",
            Failed(ProviderErrorKind.SERVER_ERROR, 3, "busy"),
        ),
        ("provider error: authentication", "No key.", Failed(ProviderErrorKind.AUTHENTICATION, 1, "No key.")),
        ("a: rate limited (3 tries); b: timeout", "Late.", Failed(ProviderErrorKind.TIMEOUT, 1, "Late.")),
        ("something else", "Why (so (it) is).", Failed(ProviderErrorKind.BAD_REQUEST, 1, "so (it) is")),
    ],
)
def test_a_failure_is_found_in_the_evidence(diagnostic: str, message: str, expected: Failed) -> None:
    cause = StopCause(reason=StopReason.PROVIDER_FAILED, message=message, diagnostics=(diagnostic,))
    assert failed(cause) == expected


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (ProviderErrorKind.RATE_LIMITED, 429),
        (ProviderErrorKind.TIMEOUT, 503),
        (ProviderErrorKind.CONNECTION, 503),
        (ProviderErrorKind.AUTHENTICATION, 401),
        (ProviderErrorKind.MODEL_UNAVAILABLE, 404),
    ],
)
def test_a_failure_is_a_status(kind: ProviderErrorKind, status: int) -> None:
    said = failure_said(Failed(kind, 2, "Why."), "m", 1, last=False)
    assert (said.status, said.headers["retry-after"]) == (status, "0")
    assert json.loads(said.body) == {"error": {"message": "Why.", "type": kind.value, "code": None}}
    assert failure_said(Failed(kind, 2, "Why."), "m", 2, last=True).headers["retry-after"] == str(NEVER_S)


def test_an_overflow_has_the_code_of_one() -> None:
    said = failure_said(Failed(ProviderErrorKind.CONTEXT_OVERFLOW, 1, "Long."), "m", 1, last=True)
    assert (said.status, json.loads(said.body)["error"]["code"]) == (400, "context_length_exceeded")


def test_a_reply_that_broke_off_has_no_end() -> None:
    said = failure_said(Failed(ProviderErrorKind.INCOMPLETE_STREAM, 1, ""), "m", 1, last=True)
    assert (said.status, read(said.body)) == (200, None)
