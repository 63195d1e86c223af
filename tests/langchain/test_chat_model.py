import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr, SecretStr

from mendgraph.graph.langchain import reply_reader
from mendgraph.graph.langchain.chat_model import ChatModel, less_thought
from mendgraph.graph.langchain.chat_models import user_model
from mendgraph.graph.langchain.failures import Provider
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.estimates import MOST_BYTES_PER_TOKEN
from mendgraph.nodes.call_model.services import ignore
from mendgraph.nodes.records import FinishReason, ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import Chunked, Say, ScriptedServer
from tests.extent import slow
from tests.langchain.model_calls import CALL, ask, model_at, model_of

FOR_EVER_S = 30.0
ENDS_S = 15.0
"""A call of a fraction of a second has ended by then, on any machine."""


def failure_of(model: ChatModel, call: Call) -> tuple[ProviderFailure, list[str]]:
    """The failure that ends the call, within a short time."""
    began = time.monotonic()
    result, texts = ask(model, call)
    assert isinstance(result, ProviderFailure)
    assert time.monotonic() - began < ENDS_S
    return result, texts


def call_within(seconds: float, idle_s: float | None = None) -> Call:
    return CALL.model_copy(update={"timeout_s": seconds, "idle_timeout_s": idle_s})


# --- Chat models of users' own


class FakeChatModel(BaseChatModel):
    """The common part of these chat models."""

    @property
    def _llm_type(self) -> str:
        return "own"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError


def piece(text: str) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=text))


class UncancellableModel(FakeChatModel):
    """Continues when it is cancelled, as long as its event loop runs."""

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        yield piece("Hel")
        for _again in range(50):
            try:
                await asyncio.sleep(FOR_EVER_S)
            except asyncio.CancelledError:
                await asyncio.sleep(0.02)
        yield piece("never")


def test_chat_model_that_ignores_its_cancellation_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_reader, "CANCEL_GRACE_S", 0.01)
    model, texts = user_model(UncancellableModel()), list[str]()

    async def once() -> Any:
        result = await model.acomplete(call_within(0.2), texts.append)
        for other in asyncio.all_tasks() - {asyncio.current_task()}:  # which would keep the loop running
            for _ in range(100):
                other.cancel()
                await asyncio.sleep(0)
        return result

    began = time.monotonic()
    result = asyncio.run(once())
    assert time.monotonic() - began < ENDS_S
    assert (result.kind, texts) == (ProviderErrorKind.TIMEOUT, ["Hel"])


class SyncOnly(FakeChatModel):
    """Has only sync methods, so it runs in a thread."""

    _goes_on: threading.Event = PrivateAttr(default_factory=threading.Event)
    _threads: list[threading.Thread] = PrivateAttr(default_factory=list)

    def _wait(self) -> None:
        self._threads.append(threading.current_thread())
        self._goes_on.wait(FOR_EVER_S)


class Blocking(SyncOnly):
    """Does not stream, and takes long."""

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        self._wait()
        return ChatResult(generations=[ChatGeneration(message=AIMessage("late"))])


class Streaming(SyncOnly):
    """Streams, and waits between two parts."""

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        yield piece("Hel")
        self._wait()
        yield piece("lo")


@slow
@pytest.mark.parametrize(("kind", "expected_texts"), [(Blocking, []), (Streaming, ["Hel"])])
def test_sync_chat_model_times_out_and_its_thread_does_not_block_exit(
    kind: type[SyncOnly], expected_texts: list[str]
) -> None:
    chat_model = kind()
    failure, texts = failure_of(user_model(chat_model), call_within(0.3))
    assert (failure.kind, texts) == (ProviderErrorKind.TIMEOUT, expected_texts)
    texts.clear()
    result = user_model(chat_model).complete(call_within(0.3), texts.append)
    chat_model._goes_on.set()
    assert isinstance(result, ProviderFailure)
    assert (result.kind, texts) == (ProviderErrorKind.TIMEOUT, expected_texts)
    assert [thread.daemon for thread in chat_model._threads] == [True, True]  # so that they keep no process from ending


class Raising(SyncOnly):
    """Raises its own error."""

    _error: BaseException = PrivateAttr()

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        yield piece("Hel")
        raise self._error


def test_exception_of_a_sync_chat_model_is_a_provider_failure() -> None:
    for error, kind in (
        (ZeroDivisionError("by zero"), ProviderErrorKind.BAD_REQUEST),
        (ConnectionResetError("gone"), ProviderErrorKind.INCOMPLETE_STREAM),
    ):
        chat_model = Raising()
        chat_model._error = error
        result, _ = ask(user_model(chat_model))
        assert isinstance(result, ProviderFailure)
        assert (result.kind, result.received_characters) == (kind, 3)


class Cancelled(FakeChatModel):
    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        yield piece("Hel")
        raise asyncio.CancelledError


def test_chat_model_that_cancels_itself_is_a_provider_failure() -> None:
    result, _ = ask(user_model(Cancelled()))
    assert isinstance(result, ProviderFailure)
    assert "it cancelled itself" in result.message


def test_cancelled_call_also_cancels_its_chat_model() -> None:
    ended: list[str] = []

    class Waiting(FakeChatModel):
        async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
            yield piece("Hel")
            try:
                await asyncio.sleep(FOR_EVER_S)
            finally:
                ended.append("closed")

    async def cancelled() -> None:
        first_text = asyncio.Event()
        call = asyncio.ensure_future(user_model(Waiting()).acomplete(CALL, lambda _: first_text.set()))
        await first_text.wait()
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert ended == ["closed"]


# --- What is known of a chat model


def test_accepted_content_and_window_come_from_the_model_profile() -> None:
    profile = {"image_inputs": True, "pdf_inputs": False, "audio_inputs": True, "file_inputs": True, "text_inputs": 1}
    model = model_of(FakeChatModel(), Provider("it"), profile=profile)
    accepted = {"image": True, "file": False, "audio": True, "video": None, "text": None}
    assert {kind: model.takes(kind) for kind in accepted} == accepted
    windows: list[Any] = [9, 0, -1, "many", None]
    models = [model_of(FakeChatModel(), Provider("it"), profile={"max_input_tokens": tokens}) for tokens in windows]
    assert [model.window_tokens for model in models] == [9, None, None, None, None]


def test_thinking_budget_leaves_room_for_an_answer() -> None:
    from langchain_anthropic import ChatAnthropic

    for budget, limit, sent in (
        (2_000, 2_256, 2_000),
        (2_000, 2_255, 1_999),
        (50_000, 8_192, 7_936),
        (2_000, 1_280, 1_024),
        (2_000, 1_279, None),
        (2_000, 16, None),
    ):
        thinking: Any = {"type": "enabled", "budget_tokens": budget}
        chat_model = ChatAnthropic(model_name="m", thinking=thinking, max_tokens_to_sample=99_999)  # type: ignore[call-arg]
        changed = less_thought(chat_model, limit)
        assert changed.get("thinking", thinking) == (None if sent is None else {**thinking, "budget_tokens": sent})


def test_temperature_excluded_by_the_profile_is_not_sent() -> None:
    call = CALL.model_copy(update={"prompt": replace(CALL.prompt, temperature=0.5)})
    profiles: list[Any] = [{}, {"temperature": True}, {"temperature": False}]
    with ScriptedServer(then=lambda _: Say("Hello")) as server:
        for profile in profiles:
            chat_model = ChatOpenAI(model="m", base_url=server.base_url, api_key=SecretStr("k"), profile=profile)
            assert isinstance(ask(user_model(chat_model), call)[0], ModelReply)
    assert [request.get("temperature") for request in server.requests] == [0.5, 0.5, None]


# --- What ends a call


class Exiting(FakeChatModel):
    """Raises SystemExit."""

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        sys.exit("set MY_KEY first")
        yield piece("Hello")


def test_chat_model_that_raises_system_exit_fails_only_its_call() -> None:
    model = user_model(Exiting())
    for result in (model.complete(CALL, ignore), ask(model)[0]):
        assert isinstance(result, ProviderFailure)
        assert "SystemExit: set MY_KEY first" in result.message


def test_reply_of_an_endpoint_that_ignores_the_limit_is_cut_at_twice_the_limit() -> None:
    piece_size = 100
    bound = 2 * CALL.max_output_tokens * MOST_BYTES_PER_TOKEN

    class Endless(SyncOnly):
        def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
            while True:
                yield piece("x" * piece_size)

    with ScriptedServer([Chunked(Say("x" * 10 * bound), size=piece_size)]) as server:
        results = [ask(model_at(server.base_url))[0], ask(user_model(Endless()))[0]]
    for result in results:
        assert isinstance(result, ModelReply)
        assert result.finish_reason is FinishReason.LENGTH
        assert bound < len(result.text) <= bound + piece_size
