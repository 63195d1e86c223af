"""A chat model in this process whose replies are functions of a `Call`, which is what the machine decides.

It fails as the chat models of LangChain fail: with an exception of an SDK. It checks the history of each call, as
hosted endpoints do. The machine works on copies of a chat model: all copies answer from the one that the test holds.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, AnyMessage, SystemMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.summary import SUMMARY_SYSTEM
from mendgraph.nodes.language.chat_messages import as_map
from mendgraph.nodes.language.history import is_typed
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.history import history_problems
from tests.doubles.sdk_errors import sdk_error, status_error
from tests.providers.openai_rules import openai_error
from tests.vocabulary import Protocol

UNLIMITED = 1_000_000


class _ScriptedChatModel(BaseChatModel):
    """The settings that a run sets, and the methods that LangChain requires."""

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.bind(tools=tools)

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError


class _SyncCopy(_ScriptedChatModel):
    """The copy that a run calls, with sync methods only."""

    _owner: "CallModel" = PrivateAttr()

    def _stream(
        self, messages: list[Any], stop: list[str] | None = None, *_: Any, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        tools = tuple(options.get("tools") or ())
        check_history(messages, Protocol.NATIVE if tools else Protocol.TEXT)

        call = self._call(messages, tuple(stop or ()), tools)
        if not _in_event_loop():
            asyncio.run(self._owner.wait_for_reply())
        for chunk in self._owner.chunks(call):
            yield ChatGenerationChunk(message=chunk)

    def _call(self, messages: list[AnyMessage], stop: tuple[str, ...], tools: tuple[Any, ...]) -> Call:
        maps = tuple(as_map(message, native=True) for message in messages)
        system = maps[0].get("content") if maps else ""
        return Call(
            prompt=Prompt(messages=maps, tools=tools, stop=stop, temperature=self.temperature),
            max_output_tokens=self.max_tokens or UNLIMITED,
            timeout_s=300.0,
            seed=self.seed,
            quiet=system == SUMMARY_SYSTEM,
        )


class _AsyncCopy(_SyncCopy):
    """The copy that a run calls in its event loop."""

    async def _astream(self, *arguments: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        chunks: list[ChatGenerationChunk] = []
        error: BaseException | None = None
        try:
            chunks.extend(self._stream(*arguments, **options))
        except BaseException as failure:  # noqa: BLE001 - it is raised behind the chunks before it
            error = failure

        await self._owner.wait_for_reply()
        for chunk in chunks:
            yield chunk
        if error is not None:
            raise error


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class CallModel(_ScriptedChatModel):
    """What `build_graph(model=...)` takes. A subclass says what a call's reply is, and keeps what it likes.

    One that waits says that it `blocks`: it has sync methods only.
    """

    blocks: ClassVar[bool] = False

    def __new__(cls, *_: Any, **__: Any) -> Self:
        instance = super().__new__(cls)
        BaseChatModel.__init__(instance)
        return instance

    def __init__(self) -> None:
        """Pydantic's part is done in `__new__`, so that subclasses need not call it."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @abstractmethod
    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """The reply to this call, or the failure that the client of an SDK has to see."""

    def chunks(self, call: Call) -> Iterator[AIMessageChunk]:
        """The reply as a stream.

        Raises:
            Exception: what an SDK raises for the failure, behind the text that was received before it.
        """
        texts: list[str] = []
        reply = self.complete(call, texts.append)

        if isinstance(reply, ProviderFailure):
            if reply.received_characters or reply.kind is ProviderErrorKind.INCOMPLETE_STREAM:
                yield AIMessageChunk(content="x" * reply.received_characters)
            raise sdk_error(reply)

        for text in texts:
            yield AIMessageChunk(content=text)
        yield last_chunk(reply, "".join(texts))

    async def wait_for_reply(self) -> None:
        """Wait before the reply begins, where a double needs that."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Any:  # noqa: ARG002 - pydantic's
        kind = _SyncCopy if self.blocks else _AsyncCopy
        settings = {name: value for name, value in (update or {}).items() if name in kind.model_fields}
        copy = kind(**settings)
        copy._owner = self
        return copy


def check_history(messages: Sequence[AnyMessage], protocol: Protocol) -> None:
    """Refuse a history in which a call has no result, or a result has no call.

    A reply in the text protocol that a correction follows has no results: its calls could not be read.

    Raises:
        openai.BadRequestError: with the problems as its message.
    """
    history: list[Any] = [message for message in messages if not isinstance(message, SystemMessage)]
    if protocol is Protocol.TEXT:
        history = [message for place, message in enumerate(history) if not _is_corrected(history, place)]

    problems = history_problems(history, protocol)
    if problems:
        raise status_error(400, openai_error("Invalid messages: " + "; ".join(problems), "messages"))


def _is_corrected(history: Sequence[AnyMessage], place: int) -> bool:
    """Whether the message is a reply that a request or a correction follows."""
    following = history[place + 1 : place + 2]
    return history[place].type == "ai" and bool(following) and is_typed(following[0])


def last_chunk(reply: ModelReply, streamed_text: str) -> AIMessageChunk:
    """The part of a stream that completes the reply, behind the text that was streamed before."""
    calls = [
        tool_call_chunk(name=call.tool, args=call.arguments, id=call.call_id or None, index=index)
        for index, call in enumerate(reply.calls)
    ]
    extras = {"refusal": reply.refusal, "reasoning_content": reply.reasoning}
    state = reply.provider
    usage: Any = {
        "input_tokens": reply.input_tokens,
        "output_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "input_token_details": {"cache_read": reply.cached_tokens, "cache_creation": reply.cache_write_tokens},
        "output_token_details": {"reasoning": reply.reasoning_tokens},
    }
    return AIMessageChunk(
        content=state.get("content") or reply.text.removeprefix(streamed_text),
        tool_call_chunks=calls,
        additional_kwargs={
            **state.get("additional_kwargs", {}),
            **{name: value for name, value in extras.items() if value},
        },
        response_metadata={"finish_reason": reply.finish_reason.value, "model_name": reply.model},
        usage_metadata=usage,
    )
