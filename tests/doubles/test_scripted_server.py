import json
import urllib.error
import urllib.request
from typing import Any, cast

import httpx2
import pytest

from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import event_bytes
from tests.doubles.scripted_server import (
    Calls,
    Chunked,
    CutAt,
    Disconnect,
    Drip,
    NoFinish,
    Reply,
    Say,
    ScriptedServer,
    Slow,
    Stall,
    Status,
    nobody_listening,
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


@pytest.mark.parametrize("body", [ASK, STREAM])
@pytest.mark.parametrize("after_events", [0, 1])
def test_a_reset_tears_the_connection_down(body: JsonMap, after_events: int) -> None:
    reply = Disconnect(after_events, reset=True)
    with ScriptedServer([reply]) as server, pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)) as raised:
        post(server, body)
    assert isinstance(raised.value, httpx2.ReadError) or after_events  # what was sent before may come first


def test_nobody_listens_where_every_connection_is_refused() -> None:
    with nobody_listening() as url, pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/models")


BODY = b"".join(event_bytes(Say("ä"), STREAM, 1, 0))


def read_until_it_breaks(server: ScriptedServer) -> tuple[bytes, bool]:
    """What came of a streamed body, and whether it ended as a whole one does."""
    came = b""
    with httpx2.stream("POST", f"{server.base_url}/chat/completions", json=STREAM) as response:
        try:
            for part in response.iter_bytes():
                came += part
        except httpx2.RemoteProtocolError:
            return came, False
    return came, True


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("at_byte", [0, 1, 100, len(BODY) - 1, len(BODY), len(BODY) + 9])
def test_a_body_is_cut_at_a_byte(at_byte: int, clean: bool) -> None:
    sent_as_text = Status(200, BODY.decode(), {"Content-Type": "text/event-stream"})
    with ScriptedServer([CutAt(at_byte, Say("ä"), clean), CutAt(at_byte, sent_as_text, clean)]) as server:
        results = [read_until_it_breaks(server) for _ in range(2)]
    whole = at_byte >= len(BODY)  # a body of a known length needs no other end
    assert results == [(BODY[:at_byte], clean), (BODY[:at_byte], clean or whole)]


def test_a_stalled_stream_goes_on_or_ends_with_the_server() -> None:
    with ScriptedServer([Stall(1, Say("so"), 0.01), Stall(2, Say("so"))]) as server:
        assert read_until_it_breaks(server) == (b"".join(event_bytes(Say("so"), STREAM, 1, 0)), True)
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{server.base_url}/chat/completions", json=STREAM, timeout=0.05)


def test_comments_drip_until_the_client_has_enough() -> None:
    url, lines = "/chat/completions", []
    with (
        ScriptedServer([Drip(1, Say("so"), 0.001)]) as server,
        httpx2.stream("POST", f"{server.base_url}{url}", json=STREAM) as response,
    ):
        for line in response.iter_lines():
            lines.append(line)
            if len(lines) > 6:
                break
    assert [line for line in lines if line][1:] == [": still here"] * 3


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


def test_a_connection_is_kept_only_where_that_is_asked_for() -> None:
    for keep_alive in (False, True):
        script: list[Reply] = [Say("one"), Status(429), CutAt(9, Say("three"), clean=True), Disconnect(1)]
        with ScriptedServer(script, keep_alive=keep_alive) as server, httpx2.Client() as client:
            url = f"{server.base_url}/chat/completions"
            closing = [client.post(url, json=STREAM).headers.get("connection") for _ in range(3)]
            with pytest.raises(httpx2.RemoteProtocolError):
                client.post(url, json=STREAM)
        assert closing == [None if keep_alive else "close"] * 3


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
