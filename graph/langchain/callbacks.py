"""What LangChain's callbacks hear of a run: each model call and each tool call once, and no secret.

LangChain would tell them of the words as they come. So its own reports are silenced, and these take their place.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager, Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, SystemMessage, ToolMessage, message_chunk_to_message
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.runnables.config import ensure_config

from mendgraph.graph.telemetry.spans import observed_call
from mendgraph.nodes.call_model.model import Stream
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.language.text_protocol import render_native_result
from mendgraph.nodes.records import JsonMap, ModelReply, ToolCall

if TYPE_CHECKING:
    from mendgraph.graph.langchain.replies import ReplyAssembly


class _NoHandlers(list[BaseCallbackHandler]):
    """A list of handlers that takes none: `add_handler` adds only what a list does not contain."""

    def __contains__(self, _: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def copy(self) -> "_NoHandlers":
        return self


UNHEARD: Final = CallbackManager(handlers=_NoHandlers(), inheritable_handlers=_NoHandlers())
"""The callbacks of a call that nobody is to hear.

An empty list is not enough: `CallbackManager.configure` adds the handlers of `register_configure_hook` to it, such as
that of `get_usage_metadata_callback`.
"""


def traced(chat: BaseChatModel, arguments: JsonMap | None = None) -> JsonMap:
    """What LangChain traces of a call: among it `ls_provider`, `ls_model_name` and `ls_max_tokens`."""
    return {**chat._get_ls_params(**(arguments or {}))}  # noqa: SLF001 - as LangChain does


@contextmanager
def heard_tool_call(call: ToolCall) -> Iterator[Callable[[ToolRun], None]]:
    """Tell the callbacks of this context, and the run's span, of a tool call; what is yielded takes its end."""
    manager = CallbackManager.configure(ensure_config().get("callbacks"))
    arguments = orjson.dumps(call.arguments).decode()
    run = manager.on_tool_start(
        {"name": call.tool}, arguments, name=call.tool, inputs=call.arguments, tool_call_id=call.call_id
    )

    with observed_call(call) as observe:

        def end(ran: ToolRun) -> None:
            observe(ran)
            status: Any = "success" if ran.result.ok else "error"
            text = render_native_result(ran.as_record())
            run.on_tool_end(ToolMessage(text, tool_call_id=call.call_id, name=call.tool, status=status))

        try:
            yield end
        except BaseException as error:
            run.on_tool_error(error)
            raise


UNSTREAMED: Final = "nostream"
"""The tag of calls that LangGraph's mode "messages" leaves out. Source: langgraph.constants.TAG_NOSTREAM."""


def is_listened_to(callbacks: Callbacks) -> bool:
    """Is there any callback of LangChain's: these of the chat model, in this context, or in the environment?"""
    return bool(CallbackManager.configure(ensure_config().get("callbacks"), callbacks).handlers)


class Report:
    """What LangChain's callbacks hear of one reply of `chat`: these, and those of this context.

    `assembly` puts the reply together; each text goes through a stream of `begin_text`. LangGraph leaves a `quiet` call
    out of what it streams.
    """

    def __init__(
        self,
        chat: BaseChatModel,
        callbacks: Callbacks,
        messages: Sequence[BaseMessage],
        assembly: "ReplyAssembly",
        begin_text: Callable[[], Stream],
        *,
        quiet: bool,
    ) -> None:
        config = ensure_config()
        name = type(chat).__name__
        heard = [_without_secrets(message, begin_text) for message in messages]
        self.managers: JsonMap = {
            "inheritable_callbacks": config.get("callbacks"),
            "local_callbacks": callbacks,
            "inheritable_tags": config.get("tags"),
            "local_tags": [*(chat.tags or ()), *([UNSTREAMED] if quiet else ())],
            "inheritable_metadata": {**config.get("metadata", {}), **traced(chat)},
            "local_metadata": chat.metadata,
        }
        self.start: JsonMap = {
            "serialized": {"name": name},
            "messages": [heard],
            "invocation_params": {},
            "name": name,
        }
        self._assembly = assembly
        self._begin_text = begin_text
        self._stream = begin_text()
        self._whole = AIMessageChunk(content="")

    def begin(self, run_id: object) -> None:
        """Name the reply after its run."""
        self._whole = AIMessageChunk(content="", id=f"lc_run--{run_id}")
        self._assembly.message_id = self._whole.id

    def tokens(self, text: str) -> list[JsonMap]:
        """What `on_llm_new_token` is called with for a text."""
        piece = self._stream.feed(text)
        if piece:
            return [self._token(AIMessageChunk(content=piece))]

        return []

    def last_tokens(self) -> list[JsonMap]:
        """What it is called with at the end."""
        last_chunks = self._stream.close()
        chunks = [AIMessageChunk(content=last_chunks)] if last_chunks else []
        return [self._token(chunk) for chunk in (*chunks, _last(self._assembly.reply(0.0), self._begin_text))]

    def _token(self, chunk: AIMessageChunk) -> JsonMap:
        chunk.id = self._whole.id
        self._whole += chunk
        return {"token": chunk.text, "chunk": ChatGenerationChunk(message=chunk)}

    def result(self) -> LLMResult:
        """What `on_llm_end` is called with."""
        return LLMResult(generations=[[ChatGeneration(message=message_chunk_to_message(self._whole))]])

    def without_secrets(self, error: BaseException) -> BaseException:
        """What `on_llm_error` is called with: the error itself, or where it names a secret one that does not."""
        text = str(error)
        clean = _whole(text, self._begin_text)
        if clean == text:
            return error

        return RuntimeError(f"{type(error).__name__}: {clean}")


def tell_callbacks(report: Report, texts: Iterator[str]) -> None:
    """Read a reply to its end, and tell it to LangChain's callbacks."""
    [run] = CallbackManager.configure(**report.managers).on_chat_model_start(**report.start)
    report.begin(run.run_id)

    try:
        for text in texts:
            for token in report.tokens(text):
                run.on_llm_new_token(**token)

        for token in report.last_tokens():
            run.on_llm_new_token(**token)
    except BaseException as error:
        run.on_llm_error(report.without_secrets(error))
        raise

    run.on_llm_end(report.result())


async def atell_callbacks(report: Report, texts: AsyncIterator[str]) -> None:
    """The same in an event loop."""
    [run] = await AsyncCallbackManager.configure(**report.managers).on_chat_model_start(**report.start)
    report.begin(run.run_id)

    try:
        async for text in texts:
            for token in report.tokens(text):
                await run.on_llm_new_token(**token)

        for token in report.last_tokens():
            await run.on_llm_new_token(**token)
    except BaseException as error:
        await run.on_llm_error(report.without_secrets(error))
        raise

    await run.on_llm_end(report.result())


def _without_secrets(message: BaseMessage, begin_text: Callable[[], Stream]) -> BaseMessage:
    """The message itself, as a history holds no secret; a system prompt is its author's own text."""
    if message.type == "system":
        return SystemMessage(_whole(message.text, begin_text))
    return message


def _whole(text: str, begin_text: Callable[[], Stream]) -> str:
    stream = begin_text()
    return stream.feed(text) + stream.close()


def _last(reply: ModelReply | None, begin_text: Callable[[], Stream]) -> AIMessageChunk:
    if reply is None:
        return AIMessageChunk(content="")

    complete = partial(_whole, begin_text=begin_text)
    return AIMessageChunk(
        content="",
        tool_call_chunks=[
            tool_call_chunk(
                name=complete(call.tool), args=complete(call.arguments), id=complete(call.call_id), index=index
            )
            for index, call in enumerate(reply.calls)
        ],
        usage_metadata=UsageMetadata(
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
            total_tokens=reply.input_tokens + reply.output_tokens,
            input_token_details={"cache_read": reply.cached_tokens, "cache_creation": reply.cache_write_tokens},
            output_token_details={"reasoning": reply.reasoning_tokens},
        ),
        additional_kwargs={"refusal": complete(reply.refusal)} if reply.refusal else {},
        response_metadata={"finish_reason": reply.finish_reason.value, "model_name": complete(reply.model)},
    )


class PlainText:
    """The stream of a text that nothing is taken from."""

    def feed(self, piece: str) -> str:
        """All of it."""
        return piece

    def close(self) -> str:
        """Nothing more."""
        return ""
