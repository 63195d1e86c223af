"""The replies of all recorded runs, and what is made of them, however the wire brings them.

A reply goes the whole way from its bytes: through the SDK's reader, LangChain's chat model
and ours, as in a run, but without a socket and without a request.
"""

import asyncio
import atexit
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import httpx2
from openai import AsyncOpenAI, AsyncStream

from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.endpoint_models import endpoint_model
from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.graph.langchain.reply_reader import CallClock, ReplyReader
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.parse.reading import Reader
from mendgraph.nodes.records import ModelReply, ProviderFailure
from tests.recorded.cassette import read
from tests.recorded.table import RUNS
from tests.rules.parse.readings import BLOCKS, NATIVE, NATIVE_BLOCKS, TEXT

READERS: Final[dict[str, Reader]] = {"text": TEXT, "native": NATIVE, "blocks": BLOCKS, "both": NATIVE_BLOCKS}
CALL: Final = Call(prompt=Prompt(messages=({"role": "user", "content": "Hi"},)), max_output_tokens=9, timeout_s=60.0)
_REQUEST: Final = httpx2.Request("POST", "http://llm.test/v1/chat/completions")


@cache
def recorded_replies() -> tuple[bytes, ...]:
    """Every different streamed reply of the recorded runs, as the endpoint sent it."""
    bodies = [exchange.response for run in RUNS for exchange in read(run.name).exchanges]
    return tuple(dict.fromkeys(body for body in bodies if body.startswith(b"data: ")))


# --- From the bytes to a reply


class _Body(httpx2.AsyncByteStream):
    """A body that comes in these parts."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


@dataclass
class _Completions:
    """What stands in for the SDK's side of a request: its answer is this body."""

    client: AsyncOpenAI
    body: _Body

    async def create(self, **_: object) -> AsyncStream[object]:
        response = httpx2.Response(200, stream=self.body, request=_REQUEST)
        return AsyncStream[object](cast_to=object, response=response, client=self.client)


@cache
def _loop() -> asyncio.Runner:
    """One event loop for all calls, as a chat model belongs to one."""
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


@cache
def _model() -> ChatModel:
    model = endpoint_model(Endpoint(model="m", base_url="http://llm.test/v1"), PLAIN)
    assert isinstance(model, ChatModel)
    return model


async def _hear(parts: Iterable[bytes]) -> None:
    """Let the next request of the model in this event loop get this body."""
    chat: Any = await _model().connections.aget()
    chat.async_client = _Completions(chat.root_async_client, _Body(parts))


async def _reading() -> ReplyReader:
    request = _model()._request(await _model().connections.aget(), CALL)
    return ReplyReader(request, CALL, CallClock(CALL), lambda _: None)


def reader_of(parts: Sequence[bytes]) -> tuple[ReplyAssembly, Exception | None]:
    """The reply assembled from these parts, and why reading ended early, if it did."""

    async def read() -> tuple[ReplyAssembly, Exception | None]:
        await _hear(parts)
        reading = await _reading()
        error = await reading.aread()
        return reading.assembly, error

    return _loop().run(read())


def reply_of(body: bytes) -> ModelReply | ProviderFailure:
    """The result of a call with this response body."""

    async def ask() -> ModelReply | ProviderFailure:
        await _hear([body])
        return await _model().acomplete(CALL, lambda _: None)

    return _loop().run(ask())
