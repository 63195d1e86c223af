import asyncio
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import RunnableLambda

from mendgraph.graph.langchain.chat_models import user_model
from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.nodes.records import FinishReason, ModelReply, RawCall
from tests.langchain.model_calls import CALL, Result, complete_and_close


def call(call_id: str, tool: str, arguments: str) -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)


def chunk(text: str = "", **fields: Any) -> AIMessageChunk:
    return AIMessageChunk(content=text, **fields)


def replied(*messages: AIMessage) -> ModelReply | None:
    assembly = ReplyAssembly()
    for message in messages:
        assembly.take(message)
    return assembly.reply(0.0)


PLACES: list[tuple[dict[str, Any], FinishReason | None]] = [
    ({"finish_reason": "tool_calls", "model_name": "m"}, FinishReason.TOOL_CALLS),
    ({"stop_reason": "max_tokens", "model": "m"}, FinishReason.LENGTH),
    ({"stopReason": "guardrail_intervened", "model_name": "m"}, FinishReason.CONTENT_FILTER),
    ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, FinishReason.CONTENT_FILTER),
    ({"model_provider": "openai", "model_name": "m"}, None),
]


def test_finish_reason_is_read_from_each_providers_field() -> None:
    """A reply without one is incomplete."""
    for metadata, finish in PLACES:
        reply = replied(chunk("half a rep"), chunk(response_metadata=metadata))
        assert (reply.finish_reason if reply else None) == finish
        assert reply is None or reply.model == (metadata.get("model_name") or metadata.get("model") or "")


FINISHES: dict[FinishReason | None, tuple[str, ...]] = {
    FinishReason.STOP: (
        *("stop", "STOP", "end_turn", "eos", "eos_token", "stop_sequence", "stop-sequence", "complete", "completed"),
        *("FINISH_REASON_STOP", "MALFORMED_FUNCTION_CALL", "end", "OTHER", "unknown"),
    ),
    FinishReason.TOOL_CALLS: ("tool_calls", "function_call", "tool_use", "tool_call", "function_calls"),
    FinishReason.LENGTH: (
        *("length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens", "incomplete"),
        "model_context_window_exceeded",
    ),
    FinishReason.CONTENT_FILTER: (
        *("content_filter", "content-filter", "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
        *("content_filtered", "sensitive"),
    ),
    FinishReason.REFUSAL: ("refusal",),
    None: ("error", "aborted"),
}


def test_each_finish_reason_word_has_one_meaning() -> None:
    wrong = []
    for name in ("finish_reason", "stop_reason", "done_reason", "stopReason", "status"):
        for finish, words in FINISHES.items():
            for word in words:
                reply = replied(chunk("Hi", response_metadata={name: word, "model_provider": "p"}))
                if (None if reply is None else reply.finish_reason) != finish:
                    wrong.append((name, word))
    assert wrong == []


def test_reply_with_an_unknown_finish_reason_is_complete_if_its_calls_are() -> None:
    metadata = {"finish_reason": "wat", "model_provider": "p"}
    for arguments, finish in (('{"path": "a"}', FinishReason.TOOL_CALLS), ("", None), ('{"path": "a', None)):
        part = tool_call_chunk(name="read", args=arguments, id="c", index=0)
        reply = replied(chunk(tool_call_chunks=[part], response_metadata=metadata))
        assert (reply.finish_reason if reply else None) == finish


def test_reply_with_a_refusal_is_refused_whatever_its_finish_reason() -> None:
    for word in ("stop", "tool_calls", "length"):
        reply = replied(chunk(additional_kwargs={"refusal": "No."}, response_metadata={"finish_reason": word}))
        assert reply is not None
        assert (reply.finish_reason, reply.refusal) == (FinishReason.REFUSAL, "No.")


CACHED, EACH_NEGATIVE = {"cache_read": 20, "cache_creation": 5}, {"cache_read": -1, "cache_creation": -1}
USAGES: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({}, (70, 3, 0, 0, 0)),
    ({"input_token_details": CACHED}, (70, 3, 20, 5, 0)),
    ({"input_token_details": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 6}}, (70, 3, 0, 11, 0)),
    ({"input_token_details": {"audio": 9}, "output_token_details": {"reasoning": 2}}, (70, 3, 0, 0, 2)),
    ({"output_token_details": {"reasoning": 9}}, (70, 3, 0, 0, 3)),
    ({"input_tokens": -70, "output_tokens": -3}, (0, 0, 0, 0, 0)),
    ({"input_token_details": EACH_NEGATIVE, "output_token_details": {"reasoning": -1}}, (70, 3, 0, 0, 0)),
]


def test_token_counts_are_read_from_usage_metadata() -> None:
    for details, counts in USAGES:
        usage: Any = {"input_tokens": 70, "output_tokens": 3, "total_tokens": 73, **details}
        reply = replied(chunk("Hi", usage_metadata=usage))
        assert reply is not None
        cache = (reply.cached_tokens, reply.cache_write_tokens)
        assert (reply.input_tokens, reply.output_tokens, *cache, reply.reasoning_tokens) == counts


def test_reply_without_streaming_keeps_valid_and_invalid_calls() -> None:
    message = AIMessage(
        "Look:",
        tool_calls=[{"name": "f", "args": {"a": "ü"}, "id": "a"}, {"name": "f", "args": {}, "id": None}],
        invalid_tool_calls=[{"name": "g", "args": '{"a": "x', "id": "b", "error": None}],
        response_metadata={"finish_reason": "tool_calls", "model_provider": "openai"},
    )
    reply = replied(message)
    assert reply is not None
    assert (reply.text, reply.calls) == (
        "Look:",
        (call("a", "f", '{"a": "ü"}'), call("", "f", "{}"), call("b", "g", '{"a": "x')),
    )


THOUGHTS: list[list[AIMessageChunk]] = [
    [chunk(additional_kwargs={"reasoning_content": thought}) for thought in ("Let me ", "see.")],
    [
        AIMessageChunk(content=[{"type": "thinking", "thinking": thought, "index": 0}])
        for thought in ("Let me ", "see.")
    ],
    [AIMessageChunk(content=[{"type": "reasoning", "reasoning": "Let me see."}])],
]


def test_reasoning_is_not_text_and_is_kept_for_the_provider() -> None:
    for parts in THOUGHTS:
        assembly = ReplyAssembly()
        assert not assembly.spoken
        assert [assembly.take(part) for part in parts] == [""] * len(parts)
        assert (assembly.spoken, assembly.characters) == (True, 11)
        reply = assembly.reply(0.0)
        assert reply is not None
        assert (reply.text, reply.reasoning) == ("", "Let me see.")
        assert "Let me see." in str(reply.provider)


HIDDEN = "swordfish"


class BufferedRedactor:
    """Redacts the secret, and holds back all text to the end."""

    def __init__(self) -> None:
        self.text = ""

    def feed(self, piece: str) -> str:
        self.text += piece
        return ""

    def close(self) -> str:
        return self.text.replace(HIDDEN, "***")


SCRUBBED = CALL.model_copy(update={"scrub": BufferedRedactor})


class Listener(BaseCallbackHandler):
    """Records what LangChain reports."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.tokens: list[str] = []
        self.ends: list[Any] = []
        self.errors: list[str] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **fields: Any) -> None:
        self.heard.append(repr((serialized, messages, fields)))

    def on_llm_new_token(self, token: Any, **fields: Any) -> None:
        self.heard.append(repr((token, fields)))
        if token:
            self.tokens.append(token)

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        self.heard.append(repr(response))
        self.ends.append(response.generations[0][0].message)  # type: ignore[union-attr]

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        self.errors.append(type(error).__name__)


class ModelWithSecrets(BaseChatModel):
    """Has a secret everywhere, and state that only its provider may see again."""

    @property
    def _llm_type(self) -> str:
        return "sealed"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        thought: Any = {"type": "thinking", "thinking": f"hm, {HIDDEN}", "signature": "c2lnbmF0dXJl", "index": 0}
        call = tool_call_chunk(name="f", args='{"a": "swordfish"}', id=f"x {HIDDEN}", index=1)
        for content in ([thought], "It is sword", "fish:"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=content))
        extras = {"refusal": f"no {HIDDEN}", "reasoning_content": f"{HIDDEN}!"}
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                tool_call_chunks=[call],
                additional_kwargs=extras,
                response_metadata={"finish_reason": "stop", "model_name": f"m-{HIDDEN}"},
            )
        )


def ask_sealed(listener: Listener | None, **fields: Any) -> ModelReply:
    model = user_model(ModelWithSecrets(**fields))
    config: Any = {"callbacks": [listener] if listener else []}

    async def ask(_: str) -> Result:
        return await complete_and_close(model, SCRUBBED)

    reply: Any = asyncio.run(RunnableLambda(ask).ainvoke("", config))
    assert isinstance(reply, ModelReply)
    return reply


def test_callbacks_receive_no_secret_and_no_provider_state() -> None:
    listener = Listener()
    reply = ask_sealed(listener)
    heard_text = " ".join(listener.heard)
    assert HIDDEN not in heard_text
    assert "c2lnbmF0dXJl" not in heard_text
    assert "".join(listener.tokens) == "It is ***:"
    [end] = listener.ends
    assert [call["args"] for call in end.tool_calls] == [{"a": "***"}]
    assert (end.additional_kwargs, end.response_metadata["model_name"]) == ({"refusal": "no ***"}, "m-***")
    assert HIDDEN in reply.text  # it is redacted later
    assert "c2lnbmF0dXJl" in str(reply.provider)
