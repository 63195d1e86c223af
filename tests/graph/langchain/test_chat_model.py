import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr, SecretStr

from mendgraph.graph.langchain import chat_model
from mendgraph.graph.langchain.chat_model import ChatModel, less_thought, limit_of
from mendgraph.graph.langchain.chat_models import given_model
from mendgraph.graph.langchain.failures import Provider
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.estimates import MOST_BYTES_PER_TOKEN
from mendgraph.nodes.call_model.services import unnoticed
from mendgraph.nodes.records import FinishReason, ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import Chunked, Say, ScriptedServer
from tests.graph.langchain.asked_models import CALL, Result, ask, at, event, of, streamed, through

FOR_EVER_S = 30.0
ENDS_S = 15.0
"""A call of a fraction of a second has ended by then, on any machine."""


def failed(model: ChatModel, call: Call) -> tuple[ProviderFailure, list[str]]:
    """The failure that the call ends with, which has to be soon."""
    began = time.monotonic()
    result, said = ask(model, call)
    assert isinstance(result, ProviderFailure)
    assert time.monotonic() - began < ENDS_S
    return result, said


def within(seconds: float, idle_s: float | None = None) -> Call:
    return CALL.model_copy(update={"timeout_s": seconds, "idle_timeout_s": idle_s})


# --- Chat models of users' own


class Spoken(BaseChatModel):
    """What each of them has."""

    @property
    def _llm_type(self) -> str:
        return "own"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError


def piece(text: str) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=text))


class Stubborn(Spoken):
    """Goes on when it is cancelled, for as long as its event loop does."""

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        yield piece("Hel")
        for _again in range(50):
            try:
                await asyncio.sleep(FOR_EVER_S)
            except asyncio.CancelledError:
                await asyncio.sleep(0.02)
        yield piece("never")


def test_chat_model_that_swallows_its_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_model, "LAST_WORDS_S", 0.01)
    model, said = given_model(Stubborn()), list[str]()

    async def once() -> Any:
        result = await model.acomplete(within(0.2), said.append)
        for other in asyncio.all_tasks() - {asyncio.current_task()}:  # which would keep the loop
            for _ in range(100):
                other.cancel()
                await asyncio.sleep(0)
        return result

    began = time.monotonic()
    result = asyncio.run(once())
    assert time.monotonic() - began < ENDS_S
    assert (result.kind, said) == (ProviderErrorKind.TIMEOUT, ["Hel"])


class SyncOnly(Spoken):
    """Has only sync methods: it is read in a thread."""

    _goes_on: threading.Event = PrivateAttr(default_factory=threading.Event)
    _threads: list[threading.Thread] = PrivateAttr(default_factory=list)

    def _wait(self) -> None:
        self._threads.append(threading.current_thread())
        self._goes_on.wait(FOR_EVER_S)


class Blocking(SyncOnly):
    """Does not stream, and is long in coming."""

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        self._wait()
        return ChatResult(generations=[ChatGeneration(message=AIMessage("late"))])


class Streaming(SyncOnly):
    """Streams, and waits between two parts."""

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        yield piece("Hel")
        self._wait()
        yield piece("lo")


@pytest.mark.parametrize(("kind", "said"), [(Blocking, []), (Streaming, ["Hel"])])
def test_sync_chat_model_ends_in_time_and_its_thread_keeps_no_process(kind: type[SyncOnly], said: list[str]) -> None:
    own = kind()
    failure, came = failed(given_model(own), within(0.3))
    assert (failure.kind, came) == (ProviderErrorKind.TIMEOUT, said)
    came.clear()
    result = given_model(own).complete(within(0.3), came.append)
    own._goes_on.set()
    assert isinstance(result, ProviderFailure)
    assert (result.kind, came) == (ProviderErrorKind.TIMEOUT, said)
    assert [thread.daemon for thread in own._threads] == [True, True]  # so that they keep no process from ending


class Raising(SyncOnly):
    """Fails in its own way."""

    _error: BaseException = PrivateAttr()

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        yield piece("Hel")
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ZeroDivisionError("by zero"), ProviderErrorKind.BAD_REQUEST),
        (ConnectionResetError("gone"), ProviderErrorKind.INCOMPLETE_STREAM),
    ],
)
def test_what_a_sync_chat_model_raises_is_its_failure(error: Exception, kind: ProviderErrorKind) -> None:
    own = Raising()
    own._error = error
    result, _ = ask(given_model(own))
    assert isinstance(result, ProviderFailure)
    assert (result.kind, result.received_characters) == (kind, 3)


class Cancelled(Spoken):
    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        yield piece("Hel")
        raise asyncio.CancelledError


def test_chat_model_that_cancels_itself_has_failed() -> None:
    result, _ = ask(given_model(Cancelled()))
    assert isinstance(result, ProviderFailure)
    assert "it cancelled itself" in result.message


def test_call_that_is_cancelled_takes_its_chat_model_along() -> None:
    ended: list[str] = []

    class Waiting(Spoken):
        async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
            yield piece("Hel")
            try:
                await asyncio.sleep(FOR_EVER_S)
            finally:
                ended.append("closed")

    async def cancelled() -> None:
        came = asyncio.Event()
        call = asyncio.ensure_future(given_model(Waiting()).acomplete(CALL, lambda _: came.set()))
        await came.wait()
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert ended == ["closed"]


# --- What is known of a chat model


@pytest.mark.parametrize(
    ("kind", "taken"), [("image", True), ("file", False), ("audio", True), ("video", None), ("text", None)]
)
def test_content_is_taken_as_the_profile_says(kind: str, taken: bool | None) -> None:
    profile = {"image_inputs": True, "pdf_inputs": False, "audio_inputs": True, "file_inputs": True, "text_inputs": 1}
    model = of(Spoken(), Provider("it"), profile=profile)
    assert model.takes(kind) is taken


@pytest.mark.parametrize(("said", "tokens"), [(9, 9), (0, None), (-1, None), ("many", None), (None, None)])
def test_window_is_a_positive_number_of_the_profile(said: Any, tokens: int | None) -> None:
    assert of(Spoken(), Provider("it"), profile={"max_input_tokens": said}).window_tokens == tokens


@pytest.mark.parametrize(
    ("budget", "limit", "sent"),
    [
        (2_000, 2_256, 2_000),
        (2_000, 2_255, 1_999),
        (50_000, 8_192, 7_936),
        (2_000, 1_280, 1_024),
        (2_000, 1_279, None),
        (2_000, 16, None),
    ],
)
def test_budget_of_thoughts_leaves_room_for_an_answer(budget: int, limit: int, sent: int | None) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    own = ChatAnthropic(model_name="m", thinking=thinking, max_tokens_to_sample=99_999)  # type: ignore[call-arg]
    changed = less_thought(own, limit)
    assert changed.get("thinking", thinking) == (None if sent is None else {**thinking, "budget_tokens": sent})


@pytest.mark.parametrize(
    ("own", "profile", "limit"),
    [
        (None, {}, None),
        (100, {}, 100),
        (None, {"max_output_tokens": 50}, 50),
        (100, {"max_output_tokens": 50}, 50),
        (40, {"max_output_tokens": 50}, 40),
        (None, {"max_output_tokens": "many"}, None),
    ],
)
def test_longest_reply_is_the_smaller_one_of_its_settings_and_its_profile(
    own: int | None, profile: dict[str, Any], limit: int | None
) -> None:
    chat = ChatOpenAI(model="m", api_key=SecretStr("k"), max_completion_tokens=own)
    assert limit_of(chat, profile) == ("max_tokens", limit)
    assert limit_of(Blocking(), profile) == ("", profile.get("max_output_tokens") if limit else None)


@pytest.mark.parametrize(("profile", "sent"), [({}, 0.5), ({"temperature": True}, 0.5), ({"temperature": False}, None)])
def test_temperature_that_the_profile_excludes_is_not_sent(profile: Any, sent: float | None) -> None:
    call = CALL.model_copy(update={"prompt": replace(CALL.prompt, temperature=0.5)})
    with ScriptedServer([Say("Hello")]) as server:
        own = ChatOpenAI(model="m", base_url=server.base_url, api_key=SecretStr("k"), profile=profile)
        assert isinstance(ask(given_model(own), call)[0], ModelReply)
    assert server.requests[0].get("temperature") == sent


# --- Connections


def test_kept_connection_serves_one_event_loop_after_the_other_and_each_request_is_sent_once() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        model = given_model(ChatOpenAI(model="m", base_url=server.base_url, api_key=SecretStr("k")))

        async def several() -> list[Result]:
            return await asyncio.gather(*(model.acomplete(CALL, unnoticed) for _ in range(3)))

        told = [each for _ in range(3) for each in asyncio.run(several())]
        told.append(model.complete(CALL, unnoticed))
        with ThreadPoolExecutor(4) as pool:
            told += [each for found in pool.map(lambda _: asyncio.run(several()), range(4)) for each in found]
    assert [each.text if isinstance(each, ModelReply) else each.message for each in told] == ["Hello"] * len(told)
    assert len(server.requests) == len(told)


class Exiting(Spoken):
    """Wants the whole program to end."""

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        sys.exit("set MY_KEY first")
        yield piece("Hello")


def test_chat_model_that_wants_to_end_the_program_ends_its_call() -> None:
    model = given_model(Exiting())
    for result in (model.complete(CALL, unnoticed), ask(model)[0]):
        assert isinstance(result, ProviderFailure)
        assert "SystemExit: set MY_KEY first" in result.message


class OfAnotherLoop(Spoken):
    """Has a kept connection of an event loop that has ended: LangChain shares a client among all loops."""

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        raise ConnectionError("broken") from RuntimeError("Event loop is closed")
        yield piece("Hello")


def test_kept_connection_of_an_event_loop_that_has_ended_is_a_broken_one() -> None:
    result, _ = ask(given_model(OfAnotherLoop()))
    assert isinstance(result, ProviderFailure)
    assert result.kind is ProviderErrorKind.CONNECTION


def test_text_is_told_as_it_comes_and_half_characters_are_replaced() -> None:
    reply, said = ask(through(streamed(event({"content": "a\ud800"}), event({"content": "b"}, "stop"))))
    assert isinstance(reply, ModelReply)
    assert (reply.text, said) == ("a\ufffdb", ["a\ufffd", "b"])


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "sync"])
def test_reply_of_endpoint_that_ignores_its_limit_is_cut_at_twice_the_limit(stream: bool) -> None:
    limit, piece_size = CALL.max_output_tokens, 100
    bound = 2 * limit * MOST_BYTES_PER_TOKEN

    class Endless(SyncOnly):
        def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
            while True:
                yield piece("x" * piece_size)

    if stream:
        with ScriptedServer([Chunked(Say("x" * 10 * bound), size=piece_size)]) as server:
            result, _ = ask(at(server.base_url), CALL)
    else:
        result, _ = ask(given_model(Endless()), CALL)

    assert isinstance(result, ModelReply)
    assert result.finish_reason is FinishReason.LENGTH
    assert bound < len(result.text) <= bound + piece_size
