"""A chat model in this process that answers calls as the machine's decisions make them.

Who writes one says what a `Call` comes to; LangChain's side of it is here. The machine works on copies of a chat model:
they all speak for the one that the test holds.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from mendgraph.graph.langchain.failures import CallFailedError
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt, as_map
from mendgraph.nodes.call_model.window import SUMMARY_SYSTEM
from mendgraph.nodes.records import ModelReply, ProviderFailure

UNLIMITED = 1_000_000


class _Spoken(BaseChatModel):
    """What any of them needs to be one of LangChain's."""

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


class _Asked(_Spoken):
    """The copy that is asked once, in a thread: it has no more than sync methods."""

    _owner: "CallModel" = PrivateAttr()

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        call = self._call(messages, tuple(stop or ()), tuple(options.get("tools") or ()))
        for chunk in self._owner.spoken(call):
            yield ChatGenerationChunk(message=chunk)

    def _call(self, messages: list[BaseMessage], stop: tuple[str, ...], tools: tuple[Any, ...]) -> Call:
        maps = tuple(as_map(message, native=True) for message in messages)  # type: ignore[arg-type]
        system = maps[0].get("content") if maps else ""
        return Call(
            prompt=Prompt(messages=maps, tools=tools, stop=stop, temperature=self.temperature),
            max_output_tokens=self.max_tokens or UNLIMITED,
            timeout_s=300.0,
            seed=self.seed,
            quiet=system == SUMMARY_SYSTEM,
        )


class _AskedHere(_Asked):
    """The one that is asked in the event loop."""

    async def _astream(self, *arguments: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        chunks: list[ChatGenerationChunk] = []
        error: BaseException | None = None
        try:
            chunks.extend(self._stream(*arguments, **options))
        except BaseException as failed:  # noqa: BLE001 - it is raised where it would have been
            error = failed
        await self._owner.linger()
        for chunk in chunks:
            yield chunk
        if error is not None:
            raise error


class CallModel(_Spoken):
    """What `build_graph(model=...)` takes. A subclass says what a call comes to, and keeps what it likes.

    One that waits says that it `blocks`: it is then asked in a thread of its own.
    """

    blocks: ClassVar[bool] = False

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = super().__new__(cls)
        BaseChatModel.__init__(made)
        return made

    def __init__(self) -> None:
        """It is made already."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @abstractmethod
    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """What this call comes to."""

    def spoken(self, call: Call) -> Iterator[AIMessageChunk]:
        """The parts in which that is said."""
        texts: list[str] = []
        said = self.complete(call, texts.append)
        if isinstance(said, ProviderFailure):
            if said.received_characters:  # as they have come, the run counts them
                yield AIMessageChunk(content="x" * said.received_characters)
            raise CallFailedError(said)
        yield from (AIMessageChunk(content=text) for text in texts)
        yield from chunks_of(said, "".join(texts))

    async def linger(self) -> None:
        """Wait before the reply is told, where that is what the double is for."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Any:  # noqa: ARG002 - pydantic's
        kind = _Asked if self.blocks else _AskedHere
        copied = kind(**{name: value for name, value in (update or {}).items() if name in kind.model_fields})
        copied._owner = self
        return copied


def chunks_of(reply: ModelReply, told: str) -> list[AIMessageChunk]:
    """The parts of a stream that come to this reply, of which a text was told before."""
    calls = [
        tool_call_chunk(name=call.tool, args=call.arguments, id=call.call_id or None, index=index)
        for index, call in enumerate(reply.calls)
    ]
    kept = {"refusal": reply.refusal, "reasoning_content": reply.reasoning}
    state = reply.provider
    said = reply.text.removeprefix(told) if told else reply.text
    usage: Any = {
        "input_tokens": reply.input_tokens,
        "output_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "input_token_details": {"cache_read": reply.cached_tokens, "cache_creation": reply.cache_write_tokens},
        "output_token_details": {"reasoning": reply.reasoning_tokens},
    }
    return [
        AIMessageChunk(
            content=state.get("content") or said,
            tool_call_chunks=calls,
            additional_kwargs={**state.get("additional_kwargs", {}), **{k: v for k, v in kept.items() if v}},
            response_metadata={"finish_reason": reply.finish_reason.value, "model_name": reply.model},
            usage_metadata=usage,
        )
    ]
