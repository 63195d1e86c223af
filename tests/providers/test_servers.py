"""Each server before the real LangChain class of its provider: whoever keeps the rules gets through, others do not."""

import asyncio
from typing import Any

import httpx2
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from tests.providers import raw
from tests.providers.anthropic_messages import Anthropic
from tests.providers.clients import client
from tests.providers.gemini import Gemini
from tests.providers.openrouter import PROCESSING
from tests.providers.servers import FAMILIES, ProviderServer, say, use

CALLS = (("read_file", '{"path": "a.py"}'), ("read_file", '{"path": "b/ü.py"}'))
WITH_STATE = {"openai_responses", "anthropic", "gemini", "ollama", "openrouter"}
BREAK_THEIR_OWN_RULE = {
    ("deepseek", False): "must be passed back",
    ("deepseek", True): "must be passed back",
    ("openrouter", True): "Provider returned error",
}
"""langchain-deepseek 1.1.1 drops `reasoning_content`; langchain-openrouter 0.2.9 sends a `format` that langchain-core
concatenated from the pieces of a stream."""
BOTH_WAYS = [False, True]


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return path


def script() -> list[Any]:
    return [use(*CALLS, text="I look. "), say("Dône.", thinks=True)]


async def ask(model: Any, messages: list[BaseMessage], *, streamed: bool) -> AIMessage:
    if not streamed:
        reply: AIMessage = await model.ainvoke(messages)
        return reply
    whole = None
    async for chunk in model.astream(messages):
        whole = chunk if whole is None else whole + chunk
    assert isinstance(whole, AIMessage)
    return whole


def converse(server: ProviderServer, *, streamed: bool, tools: bool = True, **options: Any) -> list[AIMessage]:
    """Two steps: calls of a tool, and what the model makes of their results."""

    async def both() -> list[AIMessage]:
        model: Any = client(server, **options)
        model = model.bind_tools([read_file]) if tools else model
        messages: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("Read a.py")]
        calls = await ask(model, messages, streamed=streamed)
        results = [ToolMessage("x = 1", tool_call_id=str(call["id"])) for call in calls.tool_calls]
        return [calls, await ask(model, [*messages, calls, *results], streamed=streamed)]

    return asyncio.run(both())


@pytest.mark.parametrize("streamed", BOTH_WAYS)
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"no_tools", "no_streaming"}))
def test_a_conversation_with_tools(family: str, *, streamed: bool) -> None:
    with FAMILIES[family](script()) as server:
        if (family, streamed) in BREAK_THEIR_OWN_RULE:
            with pytest.raises(Exception, match=BREAK_THEIR_OWN_RULE[family, streamed]):
                converse(server, streamed=streamed)
            assert [refusal.status for refusal in server.refusals] == [400]
            return
        calls, end = converse(server, streamed=streamed)
        assert [(call["name"], call["args"]["path"]) for call in calls.tool_calls] == [
            ("read_file", "a.py"),
            ("read_file", "b/ü.py"),
        ]
        assert (calls.text, end.text) == ("I look. ", "Dône.")
        assert server.refusals == []
        assert bool(server.returned(server.requests[1])) == (family in WITH_STATE)
        if isinstance(server, Gemini):
            assert server.skipped == 0


@pytest.mark.parametrize("streamed", BOTH_WAYS)
def test_responses_that_openai_stores_come_back_by_their_ids(*, streamed: bool) -> None:
    with FAMILIES["openai_responses"](script()) as server:
        converse(server, streamed=streamed, store=None, include=None)
        assert [item["type"] for item in server.requests[1].body["input"] if "id" in item][:1] == ["reasoning"]


@pytest.mark.parametrize("streamed", BOTH_WAYS)
def test_thoughts_that_are_summed_up_change_nothing(*, streamed: bool) -> None:
    with FAMILIES["openai_responses"](script()) as server:
        calls, _ = converse(server, streamed=streamed, reasoning={"effort": "low", "summary": "auto"})
        assert "推理" in str(calls.content)


@pytest.mark.parametrize("streamed", BOTH_WAYS)
def test_mistral_thinks_aloud_where_its_model_reasons(*, streamed: bool) -> None:
    with FAMILIES["mistral"](script()) as server:
        calls, _ = converse(server, streamed=streamed, model="magistral-medium-latest")
        assert "推理" in str(calls.content)


def test_usage_of_a_stream_is_told_to_whom_asks_for_it() -> None:
    with FAMILIES["openai_gpt5"](script()) as server:
        silent, _ = converse(server, streamed=True)
        told, _ = converse(server, streamed=True, stream_usage=True)
        assert silent.usage_metadata is None
        assert told.usage_metadata is not None
        assert told.usage_metadata["output_token_details"]["reasoning"] > 0


def test_who_may_not_stream_is_answered_in_one_piece() -> None:
    with FAMILIES["no_streaming"](script()) as server:
        with pytest.raises(Exception, match="must be verified to stream this model"):
            converse(server, streamed=True)
        assert converse(server, streamed=False)[1].text == "Dône."


def test_a_server_without_a_parser_takes_no_tools() -> None:
    with FAMILIES["no_tools"]([say("Hello."), say("Dône.")]) as server:
        with pytest.raises(Exception, match='"auto" tool choice requires --enable-auto-tool-choice'):
            converse(server, streamed=True)
        assert converse(server, streamed=True, tools=False)[1].text == "Dône."


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_by_history_the_same_request_gets_the_same_reply(family: str) -> None:
    with FAMILIES[family]([say("one", thinks=True), say("two")]) as server:
        body = raw.first(server)
        bodies = [raw.post(server, body).content for _ in range(2)]
        assert bodies[0].partition(b"usage")[0] == bodies[1].partition(b"usage")[0]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_by_position_each_request_gets_the_next_reply_until_none_is_left(family: str) -> None:
    with FAMILIES[family]([say("one"), say("two")], play="position") as server:
        replies = [raw.post(server, raw.first(server)) for _ in range(3)]
        assert ["one" in replies[0].text, "two" in replies[1].text] == [True, True]
        assert (replies[2].status_code, server.refusals[0].why) == (400, "script exhausted")


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"no_streaming"}))
def test_faults(family: str) -> None:
    with FAMILIES[family]([say("A reply of some length, which is told in pieces.")]) as server:
        body = raw.first(server) | {"stream": True}
        path = raw.path_of(server)
        if family == "gemini":
            del body["stream"]
            path = path.replace("generateContent", "streamGenerateContent?alt=sse")
        server.fail_next(503, {"error": "later"}, {"Retry-After": "1"})
        failed = raw.post(server, body, path=path)
        assert (failed.status_code, failed.json(), failed.headers["Retry-After"]) == (503, {"error": "later"}, "1")
        whole = raw.post(server, body, path=path).content
        server.break_next(2)
        with pytest.raises(httpx2.RemoteProtocolError):
            raw.post(server, body, path=path)
        server.slow_next().set()
        assert raw.post(server, body, path=path).content.count(b"\n") == whole.count(b"\n")
        server.drip_next()
        headers = raw.headers_of(server)
        with raw.http().stream("POST", server.url + path, json=body, headers=headers) as dripping:
            assert next(dripping.iter_raw()).endswith(server.keep_alive)
        server.slow_next()
        with pytest.raises(httpx2.ReadTimeout):
            raw.http().post(server.url + path, json=body, headers=headers, timeout=0.05)


def test_anthropic_bills_what_was_marked_and_nothing_else() -> None:
    with Anthropic(script(), minimum_cached=10) as server:
        system = [{"type": "text", "text": "Rules. " * 50, "cache_control": {"type": "ephemeral"}}]
        plain = raw.first(server) | {"thinking": {"type": "disabled"}}
        usages = [
            raw.post(server, plain | extra).json()["usage"]
            for extra in ({}, {}, {"system": system}, {"system": system})
        ]
        written = [usage["cache_creation_input_tokens"] for usage in usages]
        read = [usage["cache_read_input_tokens"] for usage in usages]
        assert (written[:2], read[:3]) == ([0, 0], [0, 0, 0])
        assert written[2] == read[3] > 50
        assert written[3] == 0
        assert usages[2]["input_tokens"] == usages[3]["input_tokens"] < usages[0]["input_tokens"] + 10


def test_a_cached_prefix_is_counted_where_nobody_marks_it() -> None:
    with FAMILIES["deepseek"]([say("one")]) as server:
        body = raw.first(server)
        body["messages"][0]["content"] = "word " * 400
        hits = [raw.post(server, body).json()["usage"]["prompt_cache_hit_tokens"] for _ in range(2)]
        assert hits[0] == 0
        assert hits[1] >= 448


def test_openrouter_comments_between_its_chunks() -> None:
    with FAMILIES["openrouter"]([say("one")]) as server:
        assert raw.post(server, raw.first(server) | {"stream": True}).content.startswith(PROCESSING)


def test_anthropic_overloaded() -> None:
    with Anthropic([say("one")]) as server:
        server.overload_next()
        reply = raw.post(server, raw.first(server))
        assert (reply.status_code, reply.json()["error"]) == (
            529,
            {"type": "overloaded_error", "message": "Overloaded"},
        )
