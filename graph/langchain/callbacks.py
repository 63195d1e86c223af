"""Reports a run to LangChain's callbacks: each model call and each tool call once, without secrets.

LangChain would report texts with their secrets. So its reports are disabled, and replaced by these.
"""

from collections.abc import AsyncIterator, Callable, Iterator
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
from mendgraph.nodes.call_model.model import Call, Stream
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
from mendgraph.nodes.language.text_protocol import render_native_result
from mendgraph.nodes.records import JsonMap, ModelReply, ToolCall

if TYPE_CHECKING:
    from mendgraph.graph.langchain.replies import ReplyAssembly


class _NoHandlers(list[BaseCallbackHandler]):
    """A list of handlers to which none can be added: `add_handler` adds only what a list does not contain."""

    def __contains__(self, _: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def copy(self) -> "_NoHandlers":
        return self


UNHEARD: Final = CallbackManager(handlers=_NoHandlers(), inheritable_handlers=_NoHandlers())
"""The callbacks of a call that is not reported.

An empty list is not enough: `CallbackManager.configure` adds the handlers of `register_configure_hook` to it, such as
that of `get_usage_metadata_callback`.
"""


def traced(chat: BaseChatModel, arguments: JsonMap | None = None) -> JsonMap:
    """Return LangChain's trace of a call, with `ls_provider`, `ls_model_name` and `ls_max_tokens`."""
    return {**chat._get_ls_params(**(arguments or {}))}  # noqa: SLF001 - as LangChain does


@contextmanager
def reported_tool_call(call: ToolCall) -> Iterator[Callable[[ToolOutcome], None]]:
    """Report a tool call to the callbacks of this context and the run's span; call the yielded function at its end."""
    manager = CallbackManager.configure(ensure_config().get("callbacks"))
    arguments = orjson.dumps(call.arguments).decode()
    run = manager.on_tool_start(
        {"name": call.tool}, arguments, name=call.tool, inputs=call.arguments, tool_call_id=call.call_id
    )

    with observed_call(call) as observe:

        def end(tool_run: ToolOutcome) -> None:
            observe(tool_run)
            if not run.handlers:
                return

            status: Any = "error"
            if tool_run.result.ok:
                status = "success"

            text = render_native_result(tool_run.as_record())
            run.on_tool_end(ToolMessage(text, tool_call_id=call.call_id, name=call.tool, status=status))

        try:
            yield end
        except BaseException as error:
            run.on_tool_error(error)
            raise


UNSTREAMED: Final = "nostream"
"""The tag of calls that LangGraph's mode "messages" leaves out. Source: langgraph.constants.TAG_NOSTREAM."""


def is_listened_to(callbacks: Callbacks) -> bool:
    """Return whether LangChain has any callback: one of these, of this context, or of the environment."""
    return bool(CallbackManager.configure(ensure_config().get("callbacks"), callbacks).handlers)


class Report:
    """The report of one reply of `chat` to LangChain's callbacks: to `callbacks`, and those of this context.

    `assembly` assembles the reply; each text is scrubbed. LangGraph does not stream a quiet call.
    """

    def __init__(self, chat: BaseChatModel, callbacks: Callbacks, call: Call, assembly: "ReplyAssembly") -> None:
        begin_text = call.scrub or PlainText
        config = ensure_config()
        name = type(chat).__name__
        tags = list(chat.tags or ())
        if call.quiet:
            tags.append(UNSTREAMED)

        self.managers: JsonMap = {
            "inheritable_callbacks": config.get("callbacks"),
            "local_callbacks": callbacks,
            "inheritable_tags": config.get("tags"),
            "local_tags": tags,
            "inheritable_metadata": {**config.get("metadata", {}), **traced(chat)},
            "local_metadata": chat.metadata,
        }
        self.start: JsonMap = {
            "serialized": {"name": name},
            "messages": [[_without_secrets(message, begin_text) for message in call.prompt.chat_messages]],
            "invocation_params": {},
            "name": name,
        }
        self._assembly = assembly
        self._begin_text = begin_text
        self._stream = begin_text()
        self._complete = AIMessageChunk(content="")

    def begin(self, run_id: object) -> None:
        """Set the reply's id to that of its run."""
        self._complete = AIMessageChunk(content="", id=f"lc_run--{run_id}")
        self._assembly.message_id = self._complete.id

    def tokens(self, text: str) -> list[JsonMap]:
        """Return the arguments of `on_llm_new_token` for a text."""
        piece = self._stream.feed(text)
        if piece:
            return [self._token(AIMessageChunk(content=piece))]

        return []

    def last_tokens(self) -> list[JsonMap]:
        """Return the arguments of `on_llm_new_token` at the end of the reply."""
        tokens = []
        text = self._stream.close()
        if text:
            tokens.append(self._token(AIMessageChunk(content=text)))

        tokens.append(self._token(_last(self._assembly.reply(0.0), self._begin_text)))
        return tokens

    def _token(self, chunk: AIMessageChunk) -> JsonMap:
        chunk.id = self._complete.id
        self._complete += chunk
        return {"token": chunk.text, "chunk": ChatGenerationChunk(message=chunk)}

    def result(self) -> LLMResult:
        """Return the argument of `on_llm_end`."""
        return LLMResult(generations=[[ChatGeneration(message=message_chunk_to_message(self._complete))]])

    def without_secrets(self, error: BaseException) -> BaseException:
        """Return the argument of `on_llm_error`: the error itself, or one without its secrets."""
        text = str(error)
        clean = _cleaned(text, self._begin_text)
        if clean == text:
            return error

        return RuntimeError(f"{type(error).__name__}: {clean}")


def tell_callbacks(report: Report, texts: Iterator[str]) -> None:
    """Read a reply to its end, and report it to LangChain's callbacks."""
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
    """Read a reply to its end, and report it, in an event loop."""
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
    """Return a system prompt without secrets, and other messages unchanged, as a history holds none."""
    if message.type == "system":
        return SystemMessage(_cleaned(message.text, begin_text))
    return message


def _cleaned(text: str, begin_text: Callable[[], Stream]) -> str:
    stream = begin_text()
    return stream.feed(text) + stream.close()


def _last(reply: ModelReply | None, begin_text: Callable[[], Stream]) -> AIMessageChunk:
    if reply is None:
        return AIMessageChunk(content="")

    clean = partial(_cleaned, begin_text=begin_text)
    kwargs = {}
    if reply.refusal:
        kwargs["refusal"] = clean(reply.refusal)

    calls = []
    for index, call in enumerate(reply.calls):
        call_id = clean(call.call_id)
        calls.append(tool_call_chunk(name=clean(call.tool), args=clean(call.arguments), id=call_id, index=index))

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
        additional_kwargs=kwargs,
        response_metadata={"finish_reason": reply.finish_reason.value, "model_name": clean(reply.model)},
    )


class PlainText:
    """A stream that returns each text unchanged."""

    def feed(self, piece: str) -> str:
        """Return the piece."""
        return piece

    def close(self) -> str:
        """Return the end of the text, which is empty."""
        return ""
