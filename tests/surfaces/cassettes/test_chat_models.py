"""LangChain's own chat models on cassettes: recorded from a server on loopback, and replayed after it is gone."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import AzureChatOpenAI, ChatOpenAI

from mendgraph.graph.cassettes.cassette_file import CassetteFile, parse, render, secrets_in
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.recorder import CassetteMissError, recorded, replayed
from mendgraph.graph.cassettes.servers import ReplayServer
from tests.doubles.lenient_providers import ANSWER, PATH, LenientProvidersServer
from tests.extent import slow

KEY: Any = "canary-7fK2mQ9x-4211"
READ_FILE: dict[str, Any] = {
    "name": "read_file",
    "description": "Read a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
Make = Callable[[str], BaseChatModel]


def anthropic(url: str) -> BaseChatModel:
    from langchain_anthropic import ChatAnthropic

    where: dict[str, Any] = {"base_url": url} if url else {}
    return ChatAnthropic(model_name="m", api_key=KEY, **where)


def ollama(url: str) -> BaseChatModel:
    from langchain_ollama import ChatOllama

    return ChatOllama(model="m", base_url=url or None, client_kwargs={"headers": {"Authorization": f"Bearer {KEY}"}})


def mistral(url: str) -> BaseChatModel:
    from langchain_mistralai import ChatMistralAI

    where: dict[str, Any] = {"base_url": f"{url}/v1"} if url else {}
    return ChatMistralAI(model_name="m", api_key=KEY, **where)


def gemini(url: str) -> BaseChatModel:
    from langchain_google_genai import ChatGoogleGenerativeAI

    return ChatGoogleGenerativeAI(model="m", api_key=KEY, base_url=url or None)


def openai(url: str) -> BaseChatModel:
    where: dict[str, Any] = {"base_url": f"{url}/v1"} if url else {}
    # Whether it asks for its usage is else decided by the address, which is another one in the replay.
    return ChatOpenAI(model="m", api_key=KEY, organization="canary-organization", stream_usage=True, **where)


def azure(url: str) -> BaseChatModel:
    return AzureChatOpenAI(
        model="m",
        api_key=KEY,
        azure_endpoint=url or "https://gone.test",
        azure_deployment="d",
        api_version="2026-01-01",
    )


CALLED = "messages[2] (assistant).tool_calls[0].function.arguments"
ALL: dict[Make, tuple[str, str]] = {
    anthropic: ("/v1/messages", "messages[1] (assistant).content[0].input.path"),
    ollama: ("/api/chat", f"{CALLED}.path"),
    mistral: ("/v1/chat/completions", CALLED),
    gemini: ("/v1beta/models/m:streamGenerateContent", "contents[1] (model).parts[0].functionCall.args.path"),
    openai: ("/v1/chat/completions", CALLED),
    azure: ("/openai/deployments/d/chat/completions", CALLED),
}
"""Each with the path that is recorded for it, and where the path of its first call stands in its second request."""


async def stream_message(model: Any, messages: list[Any]) -> AIMessageChunk:
    message = AIMessageChunk(content="")
    async for chunk in model.astream(messages):
        message += chunk
    return message


async def two_turns(model: BaseChatModel, path: str) -> list[AIMessageChunk]:
    """A tool call and, after its result, an answer; `path` is its argument in the history."""
    bound = model.bind_tools([READ_FILE])
    history: list[Any] = [SystemMessage("You read files."), HumanMessage("How many lines has a.py?")]
    called = await stream_message(bound, history)
    (call,) = called.tool_calls
    message = AIMessage(content="", tool_calls=[{**call, "args": {"path": path}}])
    history += [message, ToolMessage("one\ntwo\nthree", tool_call_id=call["id"] or "", name="read_file")]
    return [called, await stream_message(bound, history)]


def talk(make: Make, url: str = "", path: str = PATH) -> list[tuple[str, Any, Any]]:
    """The two messages, but for the ids that LangChain makes up: from an event loop in a thread of its own."""
    heard: list[Any] = []

    def work() -> None:
        try:
            replies = asyncio.run(two_turns(make(url), path))
            heard.extend(
                (reply.text, [call["args"] for call in reply.tool_calls], reply.usage_metadata) for reply in replies
            )
        except BaseException as error:  # noqa: BLE001 - a miss is no Exception
            heard.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if heard and isinstance(heard[-1], BaseException):
        raise heard[-1]
    return heard


def conversation(make: Make) -> tuple[list[tuple[str, Any, Any]], str]:
    """The messages of the live conversation, and the cassette's text."""
    with LenientProvidersServer() as server, recorded() as tape:
        live = talk(make, server.url)
        exchanges, host = tape.exchanges, tape.host
    assert (host, len(server.asked)) == ("127.0.0.1", 2)
    assert any(KEY in value for value in server.headers[0].values())
    return live, render(CassetteFile(recorded_from="x", exchanges=exchanges))


def player_of(text: str) -> Player:
    cassette = parse(text)
    assert isinstance(cassette, CassetteFile)
    return Player(cassette, "c.yaml")


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_recording_replays_without_the_server_and_holds_no_key(make: Make) -> None:
    live, text = conversation(make)
    assert not any(word in text for word in (KEY, "canary", "127.0.0.1", "alt=sse", "set-cookie", "stainless"))
    assert text.count(f"uri: http://llm.test{ALL[make][0]}\n") == 2
    assert secrets_in(text) == []
    player = player_of(text)
    with replayed(player):
        assert talk(make) == live
    assert (live[0][1], live[1][0]) == ([{"path": PATH}], ANSWER)
    assert (player.misses, player.unplayed) == ([], [])


@slow
@pytest.mark.parametrize("make", [anthropic, openai], ids=lambda make: make.__name__)
def test_miss_is_a_cassette_error_at_once_in_replay_and_from_a_server(make: Make) -> None:
    live, text = conversation(make)
    player = player_of(text)
    with replayed(player), pytest.raises(CassetteMissError) as caught:
        talk(make, path="b.py")
    assert (player.played, len(player.misses)) == (1, 1)
    assert f"\n  {ALL[make][1]}: recorded " in str(caught.value)
    assert (PATH in str(caught.value), "b.py" in str(caught.value)) == (True, True)

    with ReplayServer(player_of(text)) as server:
        assert talk(make, server.base_url.removesuffix("/v1")) == live
        assert (server.player.misses, server.player.unplayed) == ([], [])
    with ReplayServer(player_of(text)) as server:
        with pytest.raises(Exception, match=r"was not recorded in c\.yaml") as refused:
            talk(make, server.base_url.removesuffix("/v1"), "b.py")
        assert (ALL[make][1] in str(refused.value), len(server.player.misses)) == (True, 1)
