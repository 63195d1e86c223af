"""The same calls through langchain-openai's chat model, for whoever listens to it.

LangChain's callbacks (LangGraph's `stream_mode="messages"`, LangSmith, OpenTelemetry) hang on a chat model. Where there
is any, a reply is read through `WireChatOpenAI`, which hands each event on as LangChain knows it; where there is none,
LangChain is left out: it would cost more than the rest of the call.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing, closing
from typing import Any

import httpx2
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI

from nodes.call_model.endpoint import Endpoint
from nodes.records import JsonMap

Events = Callable[[], Generator[list[JsonMap]]]
AsyncEvents = Callable[[], AsyncGenerator[list[JsonMap]]]


class WireChatOpenAI(ChatOpenAI):
    """`ChatOpenAI` whose stream is read by us where `events` says how, and keeps a refusal that it would drop."""

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        read: Events | None = kwargs.pop("events", None)
        if read is None:
            yield from super()._stream(messages, *args, **kwargs)
            return
        with closing(read()) as together:
            for events in together:
                yield from self._chunks(events)

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        read: AsyncEvents | None = kwargs.pop("events", None)
        if read is None:
            async for chunk in super()._astream(messages, *args, **kwargs):
                yield chunk
            return
        async with aclosing(read()) as together:
            async for events in together:
                for chunk in self._chunks(events):
                    yield chunk

    def _chunks(self, events: list[JsonMap]) -> Iterator[ChatGenerationChunk]:
        for event in events:
            try:
                chunk = self._convert_chunk_to_generation_chunk(event, AIMessageChunk, {})
            except (
                ValueError,
                TypeError,
                AttributeError,
                LookupError,
            ):  # a count of tokens that LangChain does not take
                chunk = self._convert_chunk_to_generation_chunk({**event, "usage": None}, AIMessageChunk, {})
            if chunk is None:
                continue
            delta = (event.get("choices") or [{}])[0].get("delta") or {}
            for name in ("refusal", "reasoning_content"):
                if delta.get(name):
                    chunk.message.additional_kwargs[name] = delta[name]
            yield chunk


def chat_model(endpoint: Endpoint, client: httpx2.Client) -> WireChatOpenAI:
    """The chat model of an endpoint, as LangChain shows it to its callbacks.

    OPENAI_PROXY, a variable of LangChain's own, is set aside: beside a client it would raise, and quote its value.
    """
    return WireChatOpenAI(
        model=endpoint.model or "unnamed",
        base_url=endpoint.base_url or None,
        api_key=endpoint.api_key,
        max_retries=0,
        stream_usage=True,
        stream_chunk_timeout=None,
        use_responses_api=False,
        http_client=client,
        openai_proxy="",
    )
