import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langsmith import Client, tracing_context

from graph.langchain.chat_models import given_model
from nodes.call_model.model import Call
from nodes.records import ModelReply
from tests.doubles.scripted_server import Calls, Chunked, Disconnect, Refuse, Reply, Say, ScriptedServer, Status
from tests.graph.langchain.asked_models import CALL, Result, asked, at

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
            {"seconds": 0.0}
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
        Say("Hello", usage={"prompt_tokens": 12.5, "completion_tokens": 3.5}),
        Say("Hello", usage={"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": "x"}}),
        Status(429, {"error": {"message": "slow"}}, {"Retry-After": "2"}),
        Status(200, "<html>"),
        Disconnect(2),
    ],
    ids=repr,
)
def test_who_listens_changes_nothing(reply: Reply) -> None:
    assert heard(reply, Listener()) == heard(reply, None)


def test_a_listener_hears_tokens_calls_usage_and_how_it_ended() -> None:
    listener = Listener()
    heard(Chunked(Calls([("f", '{"a": 1}', "x")], "Hello there", (70, 3)), 3), listener)
    assert listener.tokens == ["Hel", "lo ", "the", "re"]
    [end] = listener.ends
    assert (end.usage_metadata["input_tokens"], end.usage_metadata["output_tokens"]) == (70, 3)
    assert [(call["name"], call["args"], call["id"]) for call in end.tool_calls] == [("f", {"a": 1}, "x")]
    assert (end.response_metadata["finish_reason"], end.response_metadata["model_name"]) == ("tool_calls", "m")
    assert "Fix 😀.py" in listener.heard[0]


def test_a_listener_hears_what_of_the_tokens_was_cached_and_thought() -> None:
    counts = {"prompt_tokens_details": {"cached_tokens": 60}, "completion_tokens_details": {"reasoning_tokens": 2}}
    listener = Listener()
    heard(Say("Hello", usage={"prompt_tokens": 70, "completion_tokens": 3, **counts}), listener)
    [end] = listener.ends
    assert end.usage_metadata["input_token_details"]["cache_read"] == 60
    assert end.usage_metadata["output_token_details"]["reasoning"] == 2


def test_a_listener_hears_of_failures() -> None:
    listener = Listener()
    heard(Status(500), listener)
    assert len(listener.errors) == 1


class Sealed(BaseChatModel):
    """Says a secret everywhere, and what only its provider is to see again."""

    @property
    def _llm_type(self) -> str:
        return "sealed"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        thought = {"type": "thinking", "thinking": f"hm, {HIDDEN}", "signature": "c2lnbmF0dXJl", "index": 0}
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


def test_a_chat_models_own_callbacks_hear_the_same() -> None:
    own, other = Listener(), Listener()
    ask_sealed(other, callbacks=[own])
    assert own.tokens == other.tokens == ["It is ***:"]
    assert HIDDEN not in " ".join(own.heard)
    alone = Listener()
    ask_sealed(None, callbacks=[alone])
    assert alone.tokens == ["It is ***:"]


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


def test_langgraph_shows_tokens_as_messages() -> None:
    shown = shown_as_messages(CALL, Chunked(Say("Hello there"), 3))
    assert [message.text for message, _ in shown if message.text] == ["Hel", "lo ", "the", "re"]
    assert {type(message) for message, _ in shown} == {AIMessageChunk}


def test_langgraph_shows_no_tokens_of_a_quiet_call() -> None:
    assert shown_as_messages(CALL.model_copy(update={"quiet": True}), Chunked(Say("A summary"), 3)) == []
