"""Faults of real providers, over real connections: sync and async calls have the same result."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from pydantic import SecretStr

from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.endpoint_models import endpoint_model
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import FinishReason, ModelReply, ProviderErrorKind as Kind, ProviderFailure, RawCall
from tests.doubles.replies import Message, event_bytes
from tests.doubles.scripted_server import (
    Chunked,
    CutAt,
    Disconnect,
    Drip,
    Reply,
    Say,
    ScriptedServer,
    Slow,
    Stall,
    Status,
    refusing_endpoint,
)
from tests.extent import slow

Result = ModelReply | ProviderFailure
CALL = Call(prompt=Prompt(messages=({"role": "user", "content": "hi"},)), max_output_tokens=50, timeout_s=20.0)
BRIEF = CALL.model_copy(update={"timeout_s": 0.15})
IMPATIENT = CALL.model_copy(update={"idle_timeout_s": 0.1})
LONG_ENOUGH = CALL.model_copy(update={"idle_timeout_s": 10.0})


class Provider:
    """One endpoint for all tests of this file."""

    def __init__(self, server: ScriptedServer) -> None:
        self.base_url = server.base_url

    def answers(self, replies: Sequence[Reply], call: Call = CALL) -> list[Result]:
        """The result of each reply, which must be the same for sync and async calls."""
        model = connect(self.base_url)
        synchronous = self._answers_here(model, replies, call)
        asynchronous = asyncio.run(self._answers(model, replies, call))
        assert synchronous == asynchronous
        return synchronous

    def answer(self, reply: Reply, call: Call = CALL) -> Result:
        [result] = self.answers([reply], call)
        return result

    def _answers_here(self, model: ChatModel, replies: Sequence[Reply], call: Call) -> list[Result]:
        results = []
        for reply in replies:
            self.reply = reply
            results.append(self._plain(model.complete(call, lambda _: None)))
        model.connections.close()
        return results

    async def _answers(self, model: ChatModel, replies: Sequence[Reply], call: Call) -> list[Result]:
        results = []
        for reply in replies:
            self.reply = reply
            results.append(self._plain(await model.acomplete(call, lambda _: None)))
        await model.connections.aclose()
        return results

    def _plain(self, result: Result) -> Result:
        """The result without values that differ from run to run: port, time and received characters."""
        if isinstance(result, ModelReply):
            return result.model_copy(update={"seconds": 0.0})
        received = 0 if result.kind is Kind.TIMEOUT else result.received_characters
        message = result.message.replace(self.base_url, "URL")
        return result.model_copy(update={"message": message, "received_characters": received})


def connect(base_url: str) -> ChatModel:
    model = endpoint_model(Endpoint(model="m", base_url=base_url, api_key=SecretStr("hunter2-hunter2")), PLAIN)
    assert isinstance(model, ChatModel)
    return model


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with ScriptedServer(then=lambda _: one.reply) as server:
        one = Provider(server)
        yield one


def failure(result: Result) -> tuple[Kind, float | None]:
    assert isinstance(result, ProviderFailure)
    return result.kind, result.retry_after_s


# --- A reply that is cut, at every byte

TWO_CALLS = ModelReply(
    calls=(
        RawCall(call_id="call_1_1", tool="list_files", arguments='{"path":"a"}'),
        RawCall(call_id="call_1_2", tool="list_files", arguments='{"path":"b"}'),
    ),
    finish_reason=FinishReason.TOOL_CALLS,
    model="scripted",
)
TEXT = ModelReply(text="one.txt and two.txt.", model="scripted")


def streamed_body(reply: ModelReply) -> str:
    """A reply as the scripted endpoint streams it, with what it cost."""
    calls = tuple((call.tool, call.arguments, call.call_id) for call in reply.calls)
    message = Message(text=reply.text, calls=calls, finish_reason=reply.finish_reason.value, usage=(2_000, 20))
    request = {"model": "scripted", "stream_options": {"include_usage": True}}
    return b"".join(event_bytes(message, request, 1, 0)).decode()


def end_of_event(body: str, word: str) -> int:
    """How many bytes of the body have come with the event that holds this word and the line end after it."""
    return len(body[: body.index("\n\n", body.index(word)) + 2].encode())


@slow
@pytest.mark.parametrize("clean", [False, True], ids=["broken", "clean"])
@pytest.mark.parametrize("expected", [TWO_CALLS, TEXT], ids=["two calls", "text"])
def test_reply_cut_at_any_byte_is_complete_or_a_failure(provider: Provider, expected: ModelReply, clean: bool) -> None:
    """With its finish event a reply is complete, however the body ends; its usage may be missing."""
    body = streamed_body(expected)
    first, finished, counted = (end_of_event(body, word) for word in ("data:", '"finish_reason": "', '"usage"'))
    sent = Status(200, body, {"Content-Type": "text/event-stream"})
    length = len(body.encode())
    turns = (first, finished, counted, length + 1)
    places = sorted({*range(0, length, 16), *turns[:-1], *(turn - 1 for turn in turns)})
    results = provider.answers([CutAt(at, sent, clean) for at in places])
    begins = Kind.SERVER_ERROR if clean else Kind.CONNECTION
    written = len(expected.text) + sum(len(call.arguments) for call in expected.calls)
    for at, result in zip(places, results, strict=True):
        if isinstance(result, ModelReply):
            assert at >= finished
            tokens = {"input_tokens": 0, "output_tokens": 0}
            assert result.model_copy(update=tokens) == expected
            assert (result.input_tokens > 0) is (at >= counted)
        else:
            assert at < finished
            assert failure(result) == (begins if at < first else Kind.INCOMPLETE_STREAM, None)
            assert result.received_characters <= written
    assert isinstance(results[-1], ModelReply)


# --- Failures


BREAKING = [Disconnect(0), Disconnect(0, reset=True), Disconnect(2), Disconnect(2, reset=True)]


def test_broken_connection_is_a_failure(provider: Provider) -> None:
    for reply in BREAKING:
        kind = Kind.INCOMPLETE_STREAM if reply.after_events else Kind.CONNECTION
        results = provider.answers([reply] * 3)
        assert [failure(result) for result in results] == [(kind, None)] * 3, reply


def test_refused_connection_is_a_failure() -> None:
    with refusing_endpoint() as url:
        model = connect(url)
        results = [model.complete(CALL, lambda _: None), asyncio.run(complete_in_a_loop(model))]
    assert [failure(result) for result in results] == [(Kind.CONNECTION, None)] * 2
    assert results[0] == results[1]


async def complete_in_a_loop(model: ChatModel) -> Result:
    try:
        return await model.acomplete(CALL, lambda _: None)
    finally:
        await model.connections.aclose()


SPOKEN = Chunked(Say("It adds two numbers."), 4)


NEVER: tuple[tuple[Reply, Call], ...] = (
    (Slow(600, SPOKEN), BRIEF),
    (Stall(0, SPOKEN), BRIEF),
    (Stall(3, SPOKEN), BRIEF),
    (Drip(0, SPOKEN), BRIEF),
    (Drip(3, SPOKEN), BRIEF),
    (Stall(3, SPOKEN), IMPATIENT),
    (Drip(3, SPOKEN), IMPATIENT),
)


@slow
def test_reply_past_its_timeout_is_a_failure_and_a_late_one_is_accepted(provider: Provider) -> None:
    for reply, call in NEVER:
        assert failure(provider.answer(reply, call)) == (Kind.TIMEOUT, None), reply
    late = provider.answers([Slow(0.2, SPOKEN), Stall(0, SPOKEN, 0.2), Stall(3, SPOKEN, 0.2)], LONG_ENOUGH)
    assert [getattr(result, "text", result) for result in late] == ["It adds two numbers."] * 3


@slow
def test_reply_may_be_silent_before_its_first_token(provider: Provider) -> None:
    """A small model on a small machine sends nothing while it reads its prompt."""
    at_once = CutAt(1_000_000, SPOKEN, clean=True)
    results = provider.answers([Slow(0.3, at_once), Stall(0, at_once, 0.3)], IMPATIENT)
    assert [isinstance(result, ModelReply) for result in results] == [True, True]


def test_usage_too_large_to_store_is_capped(provider: Provider) -> None:
    for huge in (2**63, 10**30, 1e300):
        result = provider.answer(Say("It adds.", {"prompt_tokens": huge, "completion_tokens": huge}))
        assert isinstance(result, ModelReply)
        assert 10**9 < result.input_tokens == result.output_tokens < 2**53
