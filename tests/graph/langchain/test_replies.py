import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langsmith import Client, tracing_context

from mendgraph.graph.langchain.chat_models import given_model
from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import FinishReason, ModelReply, RawCall
from tests.doubles.scripted_server import Calls, Chunked, Disconnect, Refuse, Reply, Say, ScriptedServer, Status
from tests.graph.langchain.asked_models import CALL, Result, asked, at

Part = tuple[int | None, str | None, str | None, str | None]


def assembled(parts: list[Part], text: str = "", finish_reason: str = "tool_calls") -> ModelReply:
    assembly = ReplyAssembly(finish_reason=finish_reason)
    assembly.take(AIMessageChunk(content=text))
    for index, call_id, tool, arguments in parts:
        part = tool_call_chunk(index=index, id=call_id, name=tool, args=arguments)
        assembly.take(AIMessageChunk(content="", tool_call_chunks=[part]))
    reply = assembly.reply(0.0)
    assert reply is not None
    return reply


def call(call_id: str, tool: str, arguments: str) -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)


A, B = call("a", "read_file", '{"path": "a"}'), call("b", "read_file", '{"path": "b"}')


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ([], ()),
        ([(0, "a", "read_file", ""), (0, None, None, '{"path"'), (0, None, None, ': "a"}')], (A,)),
        ([(0, "a", "read_file", '{"path": "a"}'), (0, "b", "read_file", '{"path": "b"}')], (A, B)),
        ([(None, "a", "read_file", '{"path": "a"}'), (None, "b", "read_file", '{"path": "b"}')], (A, B)),
        (
            [
                (0, "a", "read_file", '{"path"'),
                (1, "b", "read_file", '{"path"'),
                (0, None, None, ': "a"}'),
                (1, None, None, ': "b"}'),
            ],
            (A, B),
        ),
        (
            [(0, "a", "read_file", ""), (None, None, None, '{"path": "a"}'), (None, "b", "read_file", '{"path": "b"}')],
            (A, B),
        ),
        ([(0, "a", "read_file", '{"path"'), (0, "a", "read_file", ': "a"}')], (A,)),
        ([(None, None, None, "{}")], (call("", "", "{}"),)),
    ],
    ids=["none", "pieces", "one index", "no index", "interleaved", "index lost", "told again", "nameless"],
)
def test_calls_are_told_apart(parts: list[Part], calls: tuple[RawCall, ...]) -> None:
    assert assembled(parts).calls == calls


def chunk(text: str = "", **fields: Any) -> AIMessageChunk:
    return AIMessageChunk(content=text, **fields)


def replied(*messages: AIMessage) -> ModelReply | None:
    assembly = ReplyAssembly()
    for message in messages:
        assembly.take(message)
    return assembly.reply(0.0)


@pytest.mark.parametrize(
    ("metadata", "finish"),
    [
        ({"finish_reason": "tool_calls", "model_name": "m"}, FinishReason.TOOL_CALLS),
        ({"stop_reason": "max_tokens", "model": "m"}, FinishReason.LENGTH),
        ({"stopReason": "guardrail_intervened", "model_name": "m"}, FinishReason.CONTENT_FILTER),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, FinishReason.CONTENT_FILTER),
        ({"model_provider": "openai", "model_name": "m"}, None),
    ],
)
def test_each_provider_says_in_its_own_place_why_a_reply_ended(
    metadata: dict[str, Any], finish: FinishReason | None
) -> None:
    """And one that has not said so has broken off."""
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


@pytest.mark.parametrize(("word", "finish"), [(word, finish) for finish, words in FINISHES.items() for word in words])
@pytest.mark.parametrize("name", ["finish_reason", "stop_reason", "done_reason", "stopReason", "status"])
def test_word_for_the_end_of_a_reply_has_one_meaning(word: str, finish: FinishReason | None, name: str) -> None:
    reply = replied(chunk("Hi", response_metadata={name: word, "model_provider": "p"}))
    assert (None if reply is None else reply.finish_reason) == finish


@pytest.mark.parametrize(("arguments", "whole"), [('{"path": "a"}', True), ("", False), ('{"path": "a', False)])
def test_with_an_unknown_word_a_reply_is_complete_if_its_calls_are(arguments: str, whole: bool) -> None:
    call = tool_call_chunk(name="read", args=arguments, id="c", index=0)
    reply = replied(chunk(tool_call_chunks=[call], response_metadata={"finish_reason": "wat", "model_provider": "p"}))
    assert (reply is not None) is whole
    assert reply is None or reply.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("word", ["stop", "tool_calls", "length"])
def test_reply_with_a_refusal_is_refused_however_it_ends(word: str) -> None:
    refused = chunk(additional_kwargs={"refusal": "No."}, response_metadata={"finish_reason": word})
    reply = replied(refused)
    assert reply is not None
    assert (reply.finish_reason, reply.refusal) == (FinishReason.REFUSAL, "No.")


@pytest.mark.parametrize(
    ("details", "counts"),
    [
        ({}, (70, 3, 0, 0, 0)),
        ({"input_token_details": {"cache_read": 20, "cache_creation": 5}}, (70, 3, 20, 5, 0)),
        (
            {"input_token_details": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 6}},
            (70, 3, 0, 11, 0),
        ),
        ({"input_token_details": {"audio": 9}, "output_token_details": {"reasoning": 2}}, (70, 3, 0, 0, 2)),
        ({"output_token_details": {"reasoning": 9}}, (70, 3, 0, 0, 3)),
        ({"input_tokens": -70, "output_tokens": -3}, (0, 0, 0, 0, 0)),
        (
            {
                "input_token_details": {"cache_read": -1, "cache_creation": -1},
                "output_token_details": {"reasoning": -1},
            },
            (70, 3, 0, 0, 0),
        ),
    ],
)
def test_counts_are_read_from_the_usage_of_a_package(details: dict[str, Any], counts: tuple[int, ...]) -> None:
    usage: Any = {"input_tokens": 70, "output_tokens": 3, "total_tokens": 73, **details}
    reply = replied(chunk("Hi", usage_metadata=usage))
    assert reply is not None
    assert counts == (
        *(reply.input_tokens, reply.output_tokens, reply.cached_tokens),
        *(reply.cache_write_tokens, reply.reasoning_tokens),
    )


def test_reply_that_was_not_streamed_keeps_its_calls_and_those_that_are_no_json() -> None:
    whole = AIMessage(
        "Look:",
        tool_calls=[{"name": "f", "args": {"a": "ü"}, "id": "a"}, {"name": "f", "args": {}, "id": None}],
        invalid_tool_calls=[{"name": "g", "args": '{"a": "x', "id": "b", "error": None}],
        response_metadata={"finish_reason": "tool_calls", "model_provider": "openai"},
    )
    reply = replied(whole)
    assert reply is not None
    assert (reply.text, reply.calls) == (
        "Look:",
        (call("a", "f", '{"a": "ü"}'), call("", "f", "{}"), call("b", "g", '{"a": "x')),
    )


@pytest.mark.parametrize(
    "parts",
    [
        [chunk(additional_kwargs={"reasoning_content": each}) for each in ("Let me ", "see.")],
        [AIMessageChunk(content=[{"type": "thinking", "thinking": each, "index": 0}]) for each in ("Let me ", "see.")],
        [AIMessageChunk(content=[{"type": "reasoning", "reasoning": "Let me see."}])],
    ],
)
def test_thoughts_are_no_text_and_are_kept_for_the_provider(parts: list[AIMessageChunk]) -> None:
    assembly = ReplyAssembly()
    assert not assembly.spoken
    assert [assembly.take(part) for part in parts] == [""] * len(parts)
    assert (assembly.spoken, assembly.characters) == (True, 11)
    reply = assembly.reply(0.0)
    assert reply is not None
    assert (reply.text, reply.reasoning) == ("", "Let me see.")
    assert "Let me see." in str(reply.provider)


HIDDEN = "swordfish"


class Stars:
    """Takes the secret out of a text, and holds back all of it to the end."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, piece: str) -> str:
        self.held += piece
        return ""

    def close(self) -> str:
        return self.held.replace(HIDDEN, "***")


SCRUBBED = CALL.model_copy(update={"scrub": Stars})


class Listener(BaseCallbackHandler):
    """Notes what LangChain tells."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.tokens: list[str] = []
        self.ends: list[Any] = []
        self.errors: list[str] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **told: Any) -> None:
        self.heard.append(repr((serialized, messages, told)))

    def on_llm_new_token(self, token: Any, **told: Any) -> None:
        self.heard.append(repr((token, told)))
        if token:
            self.tokens.append(token)

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        self.heard.append(repr(response))
        self.ends.append(response.generations[0][0].message)  # type: ignore[union-attr]

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        self.errors.append(type(error).__name__)


def heard(reply: Reply, listener: Listener | None, call: Call = CALL) -> tuple[Result, list[str], list[Any]]:
    said: list[str] = []

    async def ask(url: str) -> Result:
        return await asked(at(url), call, said.append)

    config: Any = {"callbacks": [listener] if listener else []}
    with ScriptedServer([reply]) as server:
        result: Result = asyncio.run(RunnableLambda(ask).ainvoke(server.base_url, config))
        plain = (
            {"seconds": 0.0, "message_id": None}
            if isinstance(result, ModelReply)
            else {"message": result.message.replace(server.base_url, "")}
        )
    return result.model_copy(update=plain), said, server.requests


@pytest.mark.parametrize(
    "reply",
    [
        Chunked(Say("Hello there", (70, 3)), 3),
        Chunked(Calls([("f", '{"a": 1}', "x")], "Look:", (70, 3)), 4),
        Chunked(Refuse("I can't."), 3),
        Status(429, {"error": {"message": "slow"}}, {"Retry-After": "2"}),
        Disconnect(2),
    ],
    ids=repr,
)
def test_who_listens_changes_nothing(reply: Reply) -> None:
    """But the id under which the reply was told."""
    assert heard(reply, Listener()) == heard(reply, None)


def test_listener_hears_tokens_calls_usage_and_how_it_ended() -> None:
    listener = Listener()
    heard(Chunked(Calls([("f", '{"a": 1}', "x")], "Hello there", (70, 3)), 3), listener)
    assert listener.tokens == ["Hel", "lo ", "the", "re"]
    [end] = listener.ends
    assert (end.usage_metadata["input_tokens"], end.usage_metadata["output_tokens"]) == (70, 3)
    assert [(call["name"], call["args"], call["id"]) for call in end.tool_calls] == [("f", {"a": 1}, "x")]
    assert (end.response_metadata["finish_reason"], end.response_metadata["model_name"]) == ("tool_calls", "m")
    assert "Fix 😀.py" in listener.heard[0]


class Sealed(BaseChatModel):
    """Says a secret everywhere, and what only its provider is to see again."""

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
        kept = {"refusal": f"no {HIDDEN}", "reasoning_content": f"{HIDDEN}!"}
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                tool_call_chunks=[call],
                additional_kwargs=kept,
                response_metadata={"finish_reason": "stop", "model_name": f"m-{HIDDEN}"},
            )
        )


def ask_sealed(listener: Listener | None, **fields: Any) -> ModelReply:
    model = given_model(Sealed(**fields))
    config: Any = {"callbacks": [listener] if listener else []}

    async def ask(_: str) -> Result:
        return await asked(model, SCRUBBED)

    reply: Any = asyncio.run(RunnableLambda(ask).ainvoke("", config))
    assert isinstance(reply, ModelReply)
    return reply


def test_what_is_heard_is_freed_of_secrets_and_holds_nothing_that_is_the_providers() -> None:
    listener = Listener()
    reply = ask_sealed(listener)
    told = " ".join(listener.heard)
    assert HIDDEN not in told
    assert "c2lnbmF0dXJl" not in told
    assert "".join(listener.tokens) == "It is ***:"
    [end] = listener.ends
    assert [call["args"] for call in end.tool_calls] == [{"a": "***"}]
    assert (end.additional_kwargs, end.response_metadata["model_name"]) == ({"refusal": "no ***"}, "m-***")
    assert HIDDEN in reply.text  # which is scrubbed where it is guarded
    assert "c2lnbmF0dXJl" in str(reply.provider)


def test_tracing_in_the_environment_hears_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """LangSmith hangs on every chat model where LANGSMITH_TRACING is set."""
    told: list[str] = []
    monkeypatch.setattr(Client, "create_run", lambda _, *args, **kwargs: told.append(repr((args, kwargs))))
    monkeypatch.setattr(Client, "update_run", lambda _, *args, **kwargs: told.append(repr((args, kwargs))))
    client = Client(api_url="http://127.0.0.1:9", api_key="k", auto_batch_tracing=False, info={})
    with tracing_context(enabled=True, client=client):
        asyncio.run(asked(given_model(Sealed()), SCRUBBED))
    assert any("It is ***:" in each for each in told)
    assert HIDDEN not in " ".join(told)


# --- LangGraph's stream_mode="messages"


class _State(TypedDict):
    text: str


def shown_as_messages(call: Call, reply: Reply) -> list[Any]:
    """What LangGraph shows of a node that makes this call."""

    async def node(_: _State) -> _State:
        result = await asked(at(server.base_url), call)
        assert isinstance(result, ModelReply)
        return {"text": result.text}

    async def shown() -> list[Any]:
        return [each async for each in graph.compile().astream({"text": ""}, stream_mode="messages")]

    graph: Any = StateGraph(_State)
    graph.add_node("ask", node)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    with ScriptedServer([reply]) as server:
        return asyncio.run(shown())


def test_langgraph_shows_no_tokens_of_a_quiet_call() -> None:
    assert shown_as_messages(CALL.model_copy(update={"quiet": True}), Chunked(Say("A summary"), 3)) == []
