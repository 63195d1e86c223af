"""What LangChain's callbacks hear of a reply: its words, freed of secrets, and nothing that is only the provider's.

Callbacks (LangGraph's `stream_mode="messages"`, LangSmith, OpenTelemetry) hang on a chat model. Where there are any, a
reply is read through this one, which says it once more as LangChain knows it; the user's own is called without them.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Self

from langchain_core.callbacks import CallbackManager, Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from pydantic import PrivateAttr

from graph.langchain.assembly import ReplyAssembly
from nodes.call_model.model import Stream

UNSTREAMED: Final = "nostream"
"""The tag of calls that LangGraph's mode "messages" leaves out. Source: langgraph.constants.TAG_NOSTREAM."""


def is_listened_to(callbacks: Callbacks) -> bool:
    """Is there any callback of LangChain's: these of the chat model, in this context, or in the environment?"""
    return bool(CallbackManager.configure(ensure_config().get("callbacks"), callbacks).handlers)


class HeardReply(BaseChatModel):
    """A chat model that says what another one says, as its texts come."""

    _chat: BaseChatModel = PrivateAttr()
    _said: AsyncIterator[str] = PrivateAttr()
    _assembly: ReplyAssembly = PrivateAttr()
    _scrub: Callable[[], Stream] = PrivateAttr()

    @classmethod
    def of(
        cls,
        chat: BaseChatModel,
        callbacks: Callbacks,
        said: AsyncIterator[str],
        assembly: ReplyAssembly,
        scrub: Callable[[], Stream] | None,
    ) -> Self:
        """The reply of `chat`, whose texts are `said` while `assembly` puts it together, for its `callbacks`."""
        heard = cls(tags=chat.tags, metadata=chat.metadata, callbacks=callbacks)
        heard._chat, heard._said, heard._assembly = chat, said, assembly
        heard._scrub = scrub or _Plain
        return heard

    def config(self, *, quiet: bool) -> RunnableConfig:
        """How the call is told: under its chat model's name; LangGraph leaves the `quiet` ones out of its stream."""
        named = RunnableConfig(run_name=type(self._chat).__name__)
        return {**named, "tags": [UNSTREAMED]} if quiet else named

    @property
    def _llm_type(self) -> str:
        return self._chat._llm_type  # noqa: SLF001 - it stands for it

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self._chat._get_ls_params(stop, **kwargs)  # noqa: SLF001 - the same

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self,
        messages: list[BaseMessage],  # noqa: ARG002 - they were said to the other one
        *_: Any,
        **__: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        stream = self._scrub()
        try:
            async for text in self._said:
                if piece := stream.feed(text):
                    yield _chunk(piece)
        finally:
            rest = stream.close()
        if rest:
            yield _chunk(rest)
        yield ChatGenerationChunk(message=self._last())

    def _last(self) -> AIMessageChunk:
        """The calls of the reply, what it has used, and how it ended."""
        reply = self._assembly.reply(0.0)
        if reply is None:
            return AIMessageChunk(content="")
        calls = [
            tool_call_chunk(
                name=self._whole(call.tool), args=self._whole(call.arguments), id=self._whole(call.call_id), index=index
            )
            for index, call in enumerate(reply.calls)
        ]
        return AIMessageChunk(
            content="",
            tool_call_chunks=calls,
            usage_metadata=UsageMetadata(
                input_tokens=reply.input_tokens,
                output_tokens=reply.output_tokens,
                total_tokens=reply.input_tokens + reply.output_tokens,
                input_token_details={"cache_read": reply.cached_tokens, "cache_creation": reply.cache_write_tokens},
                output_token_details={"reasoning": reply.reasoning_tokens},
            ),
            additional_kwargs={"refusal": self._whole(reply.refusal)} if reply.refusal else {},
            response_metadata={
                "finish_reason": reply.finish_reason.value,
                "model_name": self._whole(reply.model),
            },
        )

    def _whole(self, text: str) -> str:
        """A text that comes in one piece."""
        stream = self._scrub()
        return stream.feed(text) + stream.close()


class _Plain:
    """The stream of a text that nothing is taken from."""

    def feed(self, piece: str) -> str:
        return piece

    def close(self) -> str:
        return ""


def _chunk(text: str) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=text))
