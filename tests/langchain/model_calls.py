"""Chat models that are called once, and endpoints with replies that our servers do not give."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
from langchain_core.language_models import BaseChatModel

from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.connections import ChatConnections
from mendgraph.graph.langchain.endpoint_models import endpoint_chat, endpoint_model
from mendgraph.graph.langchain.failures import Learned, Provider
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint, ModelOptions
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderFailure, RawCall

USER: JsonMap = {"role": "user", "content": "Fix 😀.py"}
MESSAGES: tuple[JsonMap, ...] = ({"role": "system", "content": "Be brief."}, USER)
TOOL: JsonMap = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read.", "parameters": {"type": "object", "properties": {}}},
}
CALL = Call(prompt=Prompt(messages=MESSAGES), max_output_tokens=50, timeout_s=20.0)

Result = ModelReply | ProviderFailure
Handler = Callable[[httpx2.Request], httpx2.Response]


def model_at(base_url: str, options: ModelOptions = PLAIN, **endpoint: Any) -> ChatModel:
    """The model `m` at an endpoint."""
    model = endpoint_model(Endpoint(**{"model": "m", "base_url": base_url, **endpoint}), options)
    assert isinstance(model, ChatModel)
    return model


def model_through(handler: Handler, base_url: str = "http://llm.test/v1", learned: Learned | None = None) -> ChatModel:
    """The model `m` at an endpoint that `handler` simulates."""
    endpoint = Endpoint(model="m", base_url=base_url)

    chat = endpoint_chat(endpoint, PLAIN, verify=False, transport=httpx2.MockTransport(handler), in_loop=True)
    return model_of(chat, Provider(base_url, "OPENAI_API_KEY", endpoint=True), learned or Learned("max_tokens"), "m")


def model_of(
    chat: BaseChatModel, provider: Provider, learned: Learned | None = None, name: str = "", **more: Any
) -> ChatModel:
    """A model that calls this chat model."""

    connections = ChatConnections(lambda _: (chat, lambda: None))
    return ChatModel(connections, provider, learned or Learned(), name, **more)


async def complete_and_close(
    model: ChatModel, call: Call = CALL, on_text: Callable[[str], None] = lambda _: None
) -> Result:
    """The result of the call; connections to an endpoint are closed afterwards."""
    try:
        return await model.acomplete(call, on_text)
    finally:
        await model.connections.aclose()


def ask(model: ChatModel, call: Call = CALL) -> tuple[Result, list[str]]:
    """The same in its own event loop, with the streamed texts; the duration is left out."""
    texts: list[str] = []
    result = asyncio.run(complete_and_close(model, call, texts.append))
    return result.model_copy(update={"seconds": 0.0} if isinstance(result, ModelReply) else {}), texts


def reply_of(model: ChatModel, call: Call = CALL) -> ModelReply:
    result, _ = ask(model, call)
    assert isinstance(result, ModelReply), result
    return result


def event(delta: Any = None, finish: str | None = None, **more: Any) -> bytes:
    """One event of a stream; without a delta and an end it has no choice."""
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return f"data: {json.dumps({'model': 'm', 'choices': choices, **more}, ensure_ascii=True)}\n\n".encode()


def stream_events(*events: bytes) -> Handler:
    """Answers each request with these events."""
    return lambda _: httpx2.Response(200, content=b"".join(events), headers={"content-type": "text/event-stream"})


def raw_call(call_id: str, tool: str, arguments: str) -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)
