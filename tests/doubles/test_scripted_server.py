import json
import urllib.error
import urllib.request
from typing import Any, cast

import httpx2
import pytest

from nodes.records import JsonMap
from tests.doubles.scripted_server import (
    Calls,
    Chunked,
    Disconnect,
    NoFinish,
    Reply,
    Say,
    ScriptedServer,
    Slow,
    Status,
)

ASK: JsonMap = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM: JsonMap = ASK | {"stream": True, "stream_options": {"include_usage": True}}


def post(server: ScriptedServer, body: JsonMap) -> httpx2.Response:
    return httpx2.post(f"{server.base_url}/chat/completions", json=body, headers={"X-Test": "yes"})


def events(response: httpx2.Response) -> list[str]:
    return [block.removeprefix("data: ") for block in response.text.split("\n\n") if block]


def test_replies_come_in_order_and_requests_are_kept() -> None:
    with ScriptedServer([Say("one"), Say("two")]) as server:
        replies = [post(server, ASK).json()["choices"][0]["message"]["content"] for _ in range(2)]
    assert (replies, server.requests, server.remaining) == (["one", "two"], [ASK, ASK], 0)
    assert server.headers[0]["x-test"] == "yes"


def test_a_stream_ends_with_finish_usage_and_done() -> None:
    with ScriptedServer([Chunked(Calls([("read", '{"a": 1}')], text="Look:"), 3)]) as server:
        response = post(server, STREAM)
    assert response.headers["content-type"] == "text/event-stream"
    *documents, done = events(response)
    chunks = [json.loads(each) for each in documents]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-2]]
    assert [delta["content"] for delta in deltas if "content" in delta] == ["", "Loo", "k:"]
    assert [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta] == [
        "",
        '{"a',
        '": ',
        "1}",
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"], done) == ([], 4, "[DONE]")


def test_a_stream_without_a_finish_ends_cleanly() -> None:
    with ScriptedServer([NoFinish("so")]) as server:
        chunks = [json.loads(each) for each in events(post(server, STREAM))]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None]


@pytest.mark.parametrize("body", [ASK, STREAM])
@pytest.mark.parametrize("after_events", [0, 1, 2])
def test_a_disconnect_breaks_the_connection(body: JsonMap, after_events: int) -> None:
    with ScriptedServer([Disconnect(after_events)]) as server, pytest.raises(httpx2.RemoteProtocolError):
        post(server, body)


def test_a_disconnect_lets_the_first_events_through() -> None:
    read: list[str] = []
    with (
        ScriptedServer([Disconnect(2)]) as server,
        pytest.raises(httpx2.RemoteProtocolError),
        httpx2.stream("POST", f"{server.base_url}/chat/completions", json=STREAM) as response,
    ):
        read.extend(line for line in response.iter_lines() if line)
    contents = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["content"] for line in read]
    assert contents == ["", "A reply "]


def test_a_status_brings_its_body_and_headers() -> None:
    with ScriptedServer([Status(429, {"error": {"message": "later"}}, {"Retry-After": "2"})]) as server:
        response = post(server, ASK)
    assert (response.status_code, response.json(), response.headers["retry-after"]) == (
        429,
        {"error": {"message": "later"}},
        "2",
    )


def test_an_exhausted_script_says_so() -> None:
    with ScriptedServer([Say("one")]) as server:
        post(server, ASK)
        response = post(server, ASK)
    message = "the script is exhausted: request 2 came, 1 replies were scripted"
    assert (response.status_code, response.json()["error"]["message"]) == (500, message)


def test_replies_may_be_computed() -> None:
    def echo(request: JsonMap) -> Reply:
        return Say(f"you said {request['messages'][-1]['content']}")

    with ScriptedServer([echo], then=lambda _: Say("enough")) as server:
        contents = [post(server, ASK).json()["choices"][0]["message"]["content"] for _ in range(3)]
    assert contents == ["you said hi", "enough", "enough"]


def test_a_slow_reply_does_not_outlive_the_server() -> None:
    with ScriptedServer([Slow(600, Say("late"))]) as server, pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{server.base_url}/chat/completions", json=ASK, timeout=0.05)
    assert server.requests == [ASK]


def test_the_same_script_gives_the_same_bytes() -> None:
    bodies = []
    for _ in range(2):
        with ScriptedServer([Calls([("read", "{}")])]) as server:
            bodies.append(post(server, STREAM).content)
    assert bodies[0] == bodies[1]


def test_the_endpoint_names_its_model_and_knows_no_other_path() -> None:
    with ScriptedServer() as server:
        with urllib.request.urlopen(f"{server.base_url}/models") as response:  # noqa: S310 - the scheme is ours
            models = cast("dict[str, Any]", json.load(response))
        refused = [httpx2.get(f"{server.base_url}/nothing"), httpx2.post(f"{server.base_url}/nothing")]
        malformed = httpx2.post(f"{server.base_url}/chat/completions", content=b"{")
    assert [model["id"] for model in models["data"]] == ["scripted"]
    assert [each.status_code for each in refused] == [404, 404]
    assert malformed.status_code == 400
