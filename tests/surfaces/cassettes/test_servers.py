"""The servers of cassettes: one replays, one forwards requests that are recorded."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.recorder import recorded
from mendgraph.graph.cassettes.servers import MISSED, UPSTREAM_FAILED, ForwardingServer, ReplayServer
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run import run_task
from tests.doubles.scripted_server import Chunked, Disconnect, LenientServer, Say, Status, refusing_endpoint
from tests.extent import slow

BODY: Any = {"messages": [{"role": "user", "content": "a"}]}


def replay_of(*answers: bytes) -> ReplayServer:
    fields: Any = {"method": "POST", "path": "/v1/chat/completions", "request": json.dumps(BODY).encode()}
    headers = {"content-type": "text/plain", "retry-after": "3"}
    exchanges = tuple(Exchange(status=429, headers=headers, response=answer, **fields) for answer in answers)
    return server_of(exchanges)


def server_of(exchanges: tuple[Exchange, ...]) -> ReplayServer:
    return ReplayServer(Player(CassetteFile(recorded_from="x", exchanges=exchanges), "the cassette"))


def ask(server: ReplayServer, **more: Any) -> httpx2.Response:
    return httpx2.post(f"{server.base_url}/chat/completions", json={**BODY, **more})


def test_server_replays_recorded_requests_and_refuses_others() -> None:
    with replay_of(b"a", b"b") as server:
        heard, missed = ask(server), ask(server, seed=1)
        listed = httpx2.get(f"{server.base_url}/models")
    assert (heard.status_code, heard.content, heard.headers["retry-after"]) == (429, b"a", "3")
    error = {"message": server.player.misses[0], "type": "cassette", "code": "not_recorded", "param": None}
    assert (missed.status_code, missed.json()) == (MISSED, {"error": error})
    assert missed.headers["x-should-retry"] == "false"
    assert "seed: not recorded, sent 1" in server.player.misses[0]
    assert (listed.status_code, len(server.player.misses), len(server.player.unplayed)) == (MISSED, 2, 1)


def test_agent_does_not_retry_a_request_that_was_not_recorded(tmp_path: Path) -> None:
    with replay_of() as server:
        context = AgentContext(workspace=str(tmp_path), model="m", base_url=server.base_url, evidence=False)
        result = run_task("Say hello.", context)
    assert (result.outcome.kind, len(server.player.misses)) == ("SYSTEM_ERROR", 1)
    assert result.outcome.usage["total_calls"] <= 1
    assert "was not recorded in the cassette" in result.outcome.message


SENT: Any = {**BODY, "stream": True}


def post_to(server: Any) -> httpx2.Response:
    return httpx2.post(f"{server.base_url}/chat/completions", json=SENT, headers={"Authorization": "Bearer mine"})


@slow
def test_conversation_through_the_forwarding_server_is_recorded_and_replays() -> None:
    busy = Status(429, {"error": 1}, {"Retry-After": "3", "Set-Cookie": "a"})
    with LenientServer([Chunked(Say("key-of-mine"), 3), busy]) as upstream:
        with (
            recorded(upstream.base_url, scrub=lambda body: body.replace(b"key-of-mine", b"x")) as tape,
            ForwardingServer(f"{upstream.base_url}/", "theirs") as server,
        ):
            tape.forwarded_url = server.base_url
            live = [post_to(server), post_to(server)]
        keys = [headers["authorization"] for headers in upstream.headers]
    answered, refused = tape.exchanges
    assert keys == ["Bearer theirs"] * 2
    assert [response.status_code for response in live] == [answered.status, refused.status] == [200, 429]
    assert (refused.headers["retry-after"], "set-cookie" in refused.headers) == ("3", False)
    assert (answered.path, answered.headers["content-type"]) == ("/v1/chat/completions", "text/event-stream")
    with server_of(tape.exchanges) as replay:
        assert [post_to(replay).content for _ in live] == [answered.response, refused.response]
        assert (replay.player.misses, replay.player.unplayed) == ([], [])


@pytest.mark.parametrize("name", ["x-api-key", "api-key"])
def test_key_replaces_the_clients_key_and_other_headers_are_forwarded(name: str) -> None:
    with LenientServer([Say("a")]) as upstream, ForwardingServer(upstream.base_url, "theirs") as server:
        sent = {name: "mine", "Anthropic-Version": "2026", "Cookie": "a=b"}
        httpx2.post(f"{server.base_url}/chat/completions", json=SENT, headers=sent)
    (heard,) = upstream.headers
    assert (heard[name], heard["anthropic-version"]) == ("theirs", "2026")
    assert not heard.keys() & {"authorization", "cookie"}


def test_failing_endpoint_is_reported_and_not_recorded() -> None:
    with refusing_endpoint() as url, ForwardingServer(url, "k") as server:
        failed = post_to(server)
        astray = httpx2.get(server.base_url.removesuffix("/v1") + "/elsewhere")
    assert (failed.status_code, astray.status_code) == (UPSTREAM_FAILED, 404)
    assert failed.json()["error"]["message"].startswith(f"{url} cannot be asked: ")
    with (
        LenientServer([Disconnect(2, Say("Hello"))]) as upstream,
        recorded(upstream.base_url) as tape,
        ForwardingServer(upstream.base_url, "k") as server,
    ):
        tape.forwarded_url = server.base_url
        assert post_to(server).status_code == UPSTREAM_FAILED
    assert tape.exchanges == ()


OF_PAGES = (
    {"origin": "http://evil.test", "content-type": "text/plain"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:8080"},
    {"sec-fetch-site": "cross-site"},
    {"host": "evil.test"},
    {"host": "127.0.0.1"},
)


def test_web_page_can_neither_use_the_key_nor_replay_the_cassette() -> None:
    with LenientServer([Say("a")]) as upstream, ForwardingServer(upstream.base_url, "theirs") as server:
        for headers in OF_PAGES:
            for method in ("POST", "GET"):
                answer = httpx2.request(method, f"{server.base_url}/chat/completions", json=SENT, headers=headers)
                assert (answer.status_code, "web pages may not use" in answer.text) == (403, True), headers
        assert upstream.requests == []
    with replay_of(b"a") as replay:
        for headers in OF_PAGES:
            refused = httpx2.post(f"{replay.base_url}/chat/completions", json=BODY, headers=headers)
            assert (refused.status_code, len(replay.player.unplayed), replay.player.misses) == (403, 1, []), headers
        assert ask(replay).content == b"a"
