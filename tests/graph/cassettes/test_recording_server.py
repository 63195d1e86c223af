from contextlib import suppress
from typing import Any

import httpx2
import pytest

from graph.cassettes.cassette_file import CassetteFile
from graph.cassettes.recording_server import UPSTREAM_FAILED, RecordingServer
from graph.cassettes.replay_server import ReplayServer
from tests.doubles.scripted_server import Chunked, Disconnect, Say, ScriptedServer, Status, nobody_listening

BODY: Any = {"messages": [{"role": "user", "content": "a"}], "stream": True}


def without_key(body: bytes) -> bytes:
    return body.replace(b"key-of-mine", b"x")


def ask(server: Any) -> httpx2.Response:
    return httpx2.post(f"{server.base_url}/chat/completions", json=BODY, headers={"Authorization": "Bearer mine"})


def test_what_was_said_through_the_server_is_recorded_and_plays() -> None:
    busy = Status(429, {"error": 1}, {"Retry-After": "3", "Set-Cookie": "a"})
    with ScriptedServer([Chunked(Say("key-of-mine"), 3), busy]) as upstream:
        with RecordingServer(f"{upstream.base_url}/", "theirs", without_key) as server:
            live = [ask(server), ask(server)]
        keys = [headers["authorization"] for headers in upstream.headers]
    said, refused = server.exchanges
    assert keys == ["Bearer theirs"] * 2
    assert [each.status_code for each in live] == [said.status, refused.status] == [200, 429]
    assert (refused.headers["retry-after"], "set-cookie" in refused.headers) == ("3", False)
    assert (said.path, said.headers["content-type"]) == ("/v1/chat/completions", "text/event-stream")
    with ReplayServer(CassetteFile(recorded_from="x", exchanges=tuple(server.exchanges))) as replay:
        assert [ask(replay).content for _ in live] == [said.response, refused.response]
        assert (replay.misses, replay.unplayed) == ([], 0)


@pytest.mark.parametrize(("name", "value"), [("x-api-key", "theirs"), ("api-key", "theirs")])
def test_a_key_goes_where_the_client_puts_it_and_other_headers_are_handed_on(name: str, value: str) -> None:
    with ScriptedServer([Say("a")]) as upstream, RecordingServer(upstream.base_url, "theirs") as server:
        sent = {name: "mine", "Anthropic-Version": "2026", "Cookie": "a=b"}
        httpx2.post(f"{server.base_url}/chat/completions", json=BODY, headers=sent)
    (heard,) = upstream.headers
    assert (heard[name], heard["anthropic-version"]) == (value, "2026")
    assert not heard.keys() & {"authorization", "cookie"}
    assert set(server.exchanges[0].request_headers) == {"accept", "content-type"}


def test_an_endpoint_that_cannot_be_asked_is_told_and_not_recorded() -> None:
    with nobody_listening() as url, RecordingServer(url, "k") as server:
        failed = ask(server)
        astray = httpx2.get(server.base_url.removesuffix("/v1") + "/elsewhere")
    assert (failed.status_code, astray.status_code, server.exchanges) == (UPSTREAM_FAILED, 404, [])
    assert failed.json()["error"]["message"].startswith(f"{url} cannot be asked: ")


def test_a_reply_that_breaks_off_is_not_recorded() -> None:
    script = [Disconnect(2, Say("Hello"))]
    with ScriptedServer(script) as upstream, RecordingServer(upstream.base_url, "k") as server:  # noqa: SIM117 - it ends late
        with suppress(httpx2.HTTPError):
            ask(server)
    assert server.exchanges == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.test", "content-type": "text/plain"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8080"},
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.test"},
        {"host": "127.0.0.1"},
    ],
    ids=str,
)
def test_a_web_page_neither_spends_the_key_nor_plays_the_cassette(headers: dict[str, str]) -> None:
    with ScriptedServer([Say("a")]) as upstream, RecordingServer(upstream.base_url, "theirs") as server:
        for method in ("POST", "GET"):
            answer = httpx2.request(method, f"{server.base_url}/chat/completions", json=BODY, headers=headers)
            assert (answer.status_code, "web pages may not use this server" in answer.text) == (403, True)
        assert (upstream.requests, server.exchanges) == ([], [])
        live = ask(server)
    with ReplayServer(CassetteFile(recorded_from="x", exchanges=tuple(server.exchanges))) as replay:
        refused = httpx2.post(f"{replay.base_url}/chat/completions", json=BODY, headers=headers)
        assert (refused.status_code, replay.unplayed, replay.misses) == (403, 1, [])
        assert ask(replay).content == live.content
