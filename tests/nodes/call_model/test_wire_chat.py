import asyncio
from collections.abc import Generator
from typing import Any, TypedDict

import httpx2
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph

from nodes.call_model.client import OpenAIModel
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.call_model.wire_chat import chat_model
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure
from tests.doubles.scripted_server import Calls, Chunked, Disconnect, Refuse, Reply, Say, ScriptedServer, Status

CALL = Call(prompt=Prompt(messages=({"role": "user", "content": "Hi"},)), max_output_tokens=9, timeout_s=5.0)
Result = ModelReply | ProviderFailure


class Listener(BaseCallbackHandler):
    """Notes what LangChain tells."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.ends: list[Any] = []
        self.errors: list[str] = []
        self.options: list[Any] = []

    def on_chat_model_start(self, *_: Any, **told: Any) -> None:
        self.options.append(told["invocation_params"]["wire"])

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        if token:
            self.tokens.append(token)

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        self.ends.append(response.generations[0][0].message.usage_metadata)  # type: ignore[union-attr]

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        self.errors.append(type(error).__name__)


def heard(reply: Reply, listener: Listener | None, *, asynchronous: bool) -> tuple[Result, list[str], list[Any]]:
    said: list[str] = []

    async def later(model: OpenAIModel) -> Result:
        try:
            result: Result = await RunnableLambda(ask).ainvoke(model, config)
            return result
        finally:
            await model.aclose()

    async def ask(model: OpenAIModel) -> Result:
        return await model.acomplete(CALL, said.append)

    config: Any = {"callbacks": [listener] if listener else []}
    with ScriptedServer([reply]) as server:
        model = OpenAIModel(Endpoint(model="m", base_url=server.base_url))
        if asynchronous:
            result = asyncio.run(later(model))
        else:
            result = RunnableLambda(lambda each: each.complete(CALL, said.append)).invoke(model, config)
            model.close()
        used = model._chat is not None
        plain = (
            {"seconds": 0.0}
            if isinstance(result, ModelReply)
            else {"message": result.message.replace(server.base_url, "")}
        )
    assert used == (listener is not None)
    return result.model_copy(update=plain), said, server.requests


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        Chunked(Say("Hello there", (70, 3)), 3),
        Chunked(Calls([("f", '{"a": 1}', "x")], "Look:", (70, 3)), 4),
        Chunked(Refuse("I can't."), 3),
        Status(429, {"error": {"message": "slow"}}, {"Retry-After": "2"}),
        Status(200, "<html>"),
        Disconnect(2),
    ],
    ids=repr,
)
def test_who_listens_changes_nothing(reply: Reply, asynchronous: bool) -> None:
    listener = Listener()
    assert heard(reply, listener, asynchronous=asynchronous) == heard(reply, None, asynchronous=asynchronous)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_listener_hears_tokens_and_usage(asynchronous: bool) -> None:
    listener = Listener()
    heard(Chunked(Say("Hello there", (70, 3)), 3), listener, asynchronous=asynchronous)
    assert listener.tokens == ["Hel", "lo ", "the", "re"]
    assert [(end["input_tokens"], end["output_tokens"]) for end in listener.ends] == [(70, 3)]
    assert listener.options == [{"messages": [{"role": "user", "content": "Hi"}], "tools": []}]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_listener_hears_of_failures(asynchronous: bool) -> None:
    listener = Listener()
    result, _, _ = heard(Status(500), listener, asynchronous=asynchronous)
    assert isinstance(result, ProviderFailure)
    assert (result.kind, listener.errors) == (ProviderErrorKind.SERVER_ERROR, ["StatusError"])


class _State(TypedDict):
    text: str


def shown_as_messages(call: Call, reply: Reply) -> list[Any]:
    """What LangGraph's `stream_mode="messages"` shows of a node that makes this call, sync and async."""
    both = []
    for asynchronous in (False, True):
        with ScriptedServer([reply]) as server:
            both.append(
                _shown_as_messages(call, OpenAIModel(Endpoint(model="m", base_url=server.base_url)), asynchronous)
            )
    assert [message.text for message, _ in both[0]] == [message.text for message, _ in both[1]]
    return both[0]


def _shown_as_messages(call: Call, model: OpenAIModel, asynchronous: bool) -> list[Any]:
    def node(_: _State) -> _State:
        return _said(model.complete(call, lambda _: None))

    async def anode(_: _State) -> _State:
        try:
            return _said(await model.acomplete(call, lambda _: None))
        finally:
            await model.aclose()

    async def ashown() -> list[Any]:
        return [each async for each in graph.compile().astream({"text": ""}, stream_mode="messages")]

    graph: Any = StateGraph(_State)
    graph.add_node("ask", anode if asynchronous else node)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    if asynchronous:
        return asyncio.run(ashown())
    shown = list(graph.compile().stream({"text": ""}, stream_mode="messages"))
    model.close()
    return shown


def _said(reply: Result) -> _State:
    assert isinstance(reply, ModelReply)
    return {"text": reply.text}


def test_langgraph_shows_tokens_as_messages() -> None:
    shown = shown_as_messages(CALL, Chunked(Say("Hello there"), 3))
    assert [message.text for message, _ in shown if message.text] == ["Hel", "lo ", "the", "re"]
    assert {type(message) for message, _ in shown} == {AIMessageChunk}


def test_langgraph_shows_no_tokens_of_a_quiet_call() -> None:
    assert shown_as_messages(CALL.model_copy(update={"quiet": True}), Chunked(Say("A summary"), 3)) == []


class Upper:
    """Takes something out of a text, and holds back all of it to the end."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, piece: str) -> str:
        self.held += piece
        return ""

    def close(self) -> str:
        return self.held.replace("swordfish", "***")


def test_what_langgraph_shows_is_freed_of_secrets() -> None:
    call = CALL.model_copy(update={"scrub": Upper})
    reply = Chunked(Calls([("f", '{"a": "swordfish"}', "x")], "It is swordfish:"), 4)
    shown = [message for message, _ in shown_as_messages(call, reply)]
    whole = shown[0]
    for each in shown[1:]:
        whole += each
    assert whole.text == "It is ***:"
    assert [(each["name"], each["args"]) for each in whole.tool_call_chunks] == [("f", '{"a": "***"}')]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 12.5, "completion_tokens": 3.5},
        {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": "x"}},
    ],
)
def test_a_count_that_langchain_does_not_take_ends_no_run(usage: Any, asynchronous: bool) -> None:
    listener = Listener()
    reply = Say("Hello", usage=usage)
    assert heard(reply, listener, asynchronous=asynchronous) == heard(reply, None, asynchronous=asynchronous)
    assert listener.ends == [None]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("HTTPS_PROXY", "foo:bar"),
        ("OPENAI_PROXY", "http://u:hunter2@127.0.0.1:9"),
    ],
)
def test_a_proxy_of_the_environment_does_not_disturb_who_listens(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    result, _, _ = heard(Say("Hello"), Listener(), asynchronous=False)
    assert isinstance(result, ModelReply)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_events_of_ours_it_is_an_ordinary_chat_model(asynchronous: bool) -> None:
    async def later(chat: Any) -> str:
        return "".join([chunk.text async for chunk in chat.astream([HumanMessage("Hi")])])

    with ScriptedServer([Say("Hello")]) as server, httpx2.Client(verify=False) as client:
        endpoint = Endpoint(model="m", base_url=server.base_url)
        chat = chat_model(endpoint, client)
        if asynchronous:
            said = asyncio.run(later(chat))
        else:
            said = "".join(chunk.text for chunk in chat.stream([HumanMessage("Hi")]))
    assert said == "Hello"


def test_an_event_that_langchain_passes_over_ends_no_reply() -> None:
    def events() -> Generator[list[Any]]:
        yield [{"type": "content.delta"}, {"choices": [{"index": 0, "delta": {"content": "Hello"}}]}]

    with httpx2.Client(verify=False) as client:
        chat: Any = chat_model(Endpoint(model="m", base_url="http://llm.test/v1"), client)
        said = [chunk.text for chunk in chat.stream([HumanMessage("Hi")], events=events)]
    assert "".join(said) == "Hello"
