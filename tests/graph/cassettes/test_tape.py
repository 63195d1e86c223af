import asyncio
import gzip
import http.client
import json
import sys
from typing import Any, ClassVar

import httpx
import httpx2
import pytest
from vcr.request import Request as VcrRequest

from graph.cassettes.cassette_file import CassetteFile, Exchange
from graph.cassettes.player import Player
from graph.cassettes.tape import (
    REPLAY_URL,
    CassetteMissError,
    Tape,
    _can_play,
    exchange_of,
    recorded,
    recorded_path,
    replayed,
)
from tests.doubles.scripted_server import Chunked, Say, ScriptedServer, nobody_listening

BODY: Any = {"messages": [{"role": "user", "content": "a"}], "stream": True}


def taped(*replies: Any) -> tuple[str, CassetteFile]:
    """What a recording heard, and as a cassette."""
    with ScriptedServer(replies) as server, recorded(server.base_url) as tape:
        said = [httpx2.post(f"{tape.base_url}/chat/completions", json=BODY).text for _ in replies]
        assert (tape.recording, tape.requests) == (True, [BODY] * len(replies))
    return said[0], CassetteFile(recorded_from="x", exchanges=tape.exchanges)


@pytest.fixture(scope="module")
def conversation() -> tuple[str, CassetteFile]:
    return taped(Chunked(Say("Hello"), 2))


def by_httpx2(tape: Tape) -> str:
    return httpx2.post(f"{tape.base_url}/chat/completions", json=BODY).text


def by_httpx(tape: Tape) -> str:
    return httpx.post(f"{tape.base_url}/chat/completions", json=BODY).text


def by_stream(tape: Tape) -> str:
    with httpx2.stream("POST", f"{tape.base_url}/chat/completions", json=BODY) as reply:
        return "".join(reply.iter_text())


def by_async_client(tape: Tape) -> str:
    async def talk() -> str:
        async with httpx2.AsyncClient() as client:
            return (await client.post(f"{tape.base_url}/chat/completions", json=BODY)).text

    return asyncio.run(talk())


def by_http_client(tape: Tape) -> str:
    connection = http.client.HTTPConnection(tape.base_url.split("/")[2])
    connection.request("POST", "/v1/chat/completions", json.dumps(BODY))
    return connection.getresponse().read().decode()


@pytest.mark.parametrize("client", [by_httpx2, by_httpx, by_stream, by_async_client, by_http_client])
def test_clients_of_all_kinds_hear_what_was_recorded(client: Any, conversation: tuple[str, CassetteFile]) -> None:
    said, cassette = conversation
    player = Player(cassette, "c.yaml")
    with replayed(player) as tape:
        assert client(tape) == said
        assert (tape.base_url, tape.recording, tape.requests) == (REPLAY_URL, False, [BODY])
    assert (player.misses, player.unplayed) == ([], [])


def test_a_request_that_was_not_recorded_raises_with_the_difference(conversation: tuple[str, CassetteFile]) -> None:
    player = Player(conversation[1], "c.yaml")
    with replayed(player) as tape, pytest.raises(CassetteMissError) as caught:
        httpx2.post(f"{tape.base_url}/chat/completions", json={**BODY, "seed": 1})
    assert "\n  seed: not recorded, sent 1\n" in str(caught.value)
    assert player.misses == [str(caught.value)]


@pytest.mark.parametrize(("body", "requests"), [(b"{}", [{}]), (b"[1]", []), (b"no JSON", []), (b"\xff", [])])
def test_only_requests_that_are_maps_are_told(
    conversation: tuple[str, CassetteFile], body: bytes, requests: list[Any]
) -> None:
    exchange = conversation[1].exchanges[0].model_copy(update={"request": body})
    assert Tape("http://h/v1", lambda: [exchange], recording=True).requests == requests


def test_without_vcrpy_it_says_what_is_to_be_installed(
    conversation: tuple[str, CassetteFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vcr", None)
    with (
        pytest.raises(ImportError, match=r"needs vcrpy \(.*\): pip install 'mendgraph\[cassettes\]'$"),
        replayed(Player(conversation[1], "c.yaml")),
    ):
        pass


def test_a_client_that_asks_twice_of_one_request_takes_one_exchange(conversation: tuple[str, CassetteFile]) -> None:
    player, tape = Player(conversation[1], "c.yaml"), Tape(REPLAY_URL, recording=False)
    request: Any = VcrRequest("POST", f"{REPLAY_URL}/chat/completions", json.dumps(BODY).encode(), {})
    assert [_can_play(player, tape, request), _can_play(player, tape, request)] == [True, True]
    assert (player.played, player.misses) == (1, [])


def test_a_model_is_heard_wherever_it_is(conversation: tuple[str, CassetteFile]) -> None:
    said, cassette = conversation
    with replayed(Player(cassette, "c")):
        assert httpx2.post("https://api.gone.test/chat/completions", json=BODY).text == said
    with ScriptedServer([Say("a")]) as other, recorded() as tape:
        httpx2.post(f"{other.base_url}/chat/completions", json=BODY)
    assert ([each.path for each in tape.exchanges], tape.host) == (["/v1/chat/completions"], "127.0.0.1")


@pytest.mark.parametrize(
    ("method", "body", "heard"),
    [
        ("POST", b'{"messages": []}', True),
        ("post", b'{"messages": []}', True),
        ("POST", b'{"contents": [{"parts": []}]}', True),
        ("POST", b'{"model": "m", "input": "a"}', True),
        ("POST", {"model": "m", "input": [{"role": "user"}]}, True),
        ("POST", b'{"jsonrpc": "2.0", "method": "tools/list", "params": {}}', False),
        ("POST", b'{"assistant_id": "a", "input": {"messages": []}}', False),
        ("POST", b'[{"messages": []}]', False),
        ("POST", b"messages=1", False),
        ("POST", iter([b'{"messages": []}']), False),
        ("POST", None, False),
        ("GET", b'{"messages": []}', False),
    ],
)
def test_what_asks_no_model_goes_on_to_its_host(method: str, body: Any, heard: bool) -> None:
    request: Any = VcrRequest(method, "https://h/v1/x", body, {})
    assert (Tape("", recording=True).heard(request) is request) is heard
    assert Tape("https://h:443/other", recording=True).heard(request) is request
    assert (Tape("http://h/v1", recording=True).heard(request) is request) is heard


def test_requests_that_ask_no_model_are_not_caught(conversation: tuple[str, CassetteFile]) -> None:
    with nobody_listening() as url, replayed(Player(conversation[1], "c")), pytest.raises(httpx2.ConnectError):
        httpx2.post(f"{url}/chat/completions", json={"a": 1})


def test_a_body_that_aiohttp_is_still_to_encode_plays(conversation: tuple[str, CassetteFile]) -> None:
    player, tape = Player(conversation[1], "c.yaml"), Tape(REPLAY_URL, recording=False)
    request: Any = VcrRequest("post", "https://h/chat/completions", BODY, {})
    assert _can_play(player, tape, request)
    response: Any = {"status": {"code": 200}, "headers": {}, "body": {"string": b"a"}}
    said = exchange_of(request, response, "", lambda body: body)
    assert (said.method, json.loads(said.request)) == ("POST", BODY)


class Heard:
    """A request as vcrpy hands it over."""

    method, uri = "POST", "https://host/api/v1/chat?alt=sse&key=canary-7fK2mQ9x-1&model=some-model-of-2026"
    headers: ClassVar[dict[str, str]] = {
        "Accept": "a",
        "Authorization": "Bearer canary-7fK2mQ9x-2",
        "X-Api-Key": "canary-7fK2mQ9x-3",
        "api-key": "ollama",
    }
    body = b'{"a": "secret"}'


def test_the_keys_that_a_request_carries_are_in_neither_body() -> None:
    said = b"Incorrect key canary-7fK2mQ9x-1, canary-7fK2mQ9x-2, canary-7fK2mQ9x-3 for some-model-of-2026 of ollama"
    response: Any = {"status": {"code": 401}, "headers": {}, "body": {"string": said}}
    request: Any = Heard()
    request.body = said
    found = exchange_of(request, response, "", lambda body: body)
    kept = b"Incorrect key SCRUBBED, SCRUBBED, SCRUBBED for some-model-of-2026 of ollama"
    assert (found.request, found.response, found.path) == (kept, kept, "/api/v1/chat")


def test_an_answer_without_a_body_is_empty() -> None:
    response: Any = {"status": {"code": 204}, "headers": {}, "body": {}}
    assert exchange_of(Heard(), response, "", lambda body: body).response == b""


def test_an_exchange_holds_no_host_and_no_foreign_header() -> None:
    response: Any = {
        "status": {"code": 200},
        "headers": {"Content-Type": ["b"], "Date": ["c"]},
        "body": {"string": b"d"},
    }
    assert exchange_of(
        Heard(), response, "https://host/api/v1", lambda body: body.replace(b"secret", b"x")
    ) == Exchange(
        method="POST",
        path="/v1/chat",
        request=b'{"a": "x"}',
        request_headers={"accept": "a"},
        status=200,
        headers={"content-type": "b"},
        response=b"d",
    )


@pytest.mark.parametrize(
    ("uri", "base_url", "recorded_as"),
    [
        ("http://h/v1/chat?key=a", "http://h/v1", "/v1/chat"),
        ("https://h/api/v1/chat", "https://h/api/v1/", "/v1/chat"),
        ("https://h/api/v1/chat", "https://other/api/v1/", "/api/v1/chat"),
        ("https://h/chat", "https://h", "/chat"),
        ("https://h/v1/messages", "https://h/", "/v1/messages"),
        ("https://h/v10/chat", "https://h/v1", "/v10/chat"),
        ("https://h/api/chat", "", "/api/chat"),
    ],
)
def test_paths_at_the_endpoint_are_recorded_below_one_root(uri: str, base_url: str, recorded_as: str) -> None:
    assert recorded_path(uri, base_url) == recorded_as


def test_what_comes_compressed_is_recorded_as_text() -> None:
    def answer(_: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/plain", "content-encoding": "gzip"}
        return httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(gzip.compress(b"hello")))

    with recorded("http://h/v1") as tape, httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        assert client.get("http://h/v1/a").text == "hello"
    said = tape.exchanges[0]
    assert (said.path, said.response, said.headers) == ("/v1/a", b"hello", {"content-type": "text/plain"})
    assert tape.requests == []
