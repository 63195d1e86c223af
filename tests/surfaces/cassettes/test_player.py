"""What a replay answers, what it refuses, and what a recording stores of an exchange."""

import json
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import pytest
from vcr.request import Request as VcrRequest

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.recorder import REPLAY_URL, CassetteMissError, Tape, recorded, recorded_path, replayed
from tests.doubles.scripted_server import Chunked, LenientServer, Say
from tests.extent import slow

PATH = "/v1/chat/completions"
CAUSE = "\nWhat usually causes this: "
AGAIN = " If it is meant, record again with `pytest --mendgraph-record`."
SAME_VERSION = f"{CAUSE}a changed prompt, tool, setting, file or version of the agent asks for something else.{AGAIN}"


def body(*texts: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts], **more}).encode()


def player(*bodies: bytes, version: str = "1", recorded: str = "1") -> Player:
    exchanges = tuple(
        Exchange(method="POST", path=PATH, request=body, status=200, headers={}, response=str(index).encode())
        for index, body in enumerate(bodies)
    )
    settings = {"mendgraph": recorded}
    return Player(CassetteFile(recorded_from="x", settings=settings, exchanges=exchanges), "c.yaml", version=version)


def answers(played: Player, *bodies: bytes, path: str = PATH) -> list[str]:
    exchanges = [played.take("POST", path, body) for body in bodies]
    return [exchange if isinstance(exchange, str) else exchange.response.decode() for exchange in exchanges]


def test_each_exchange_answers_once_in_any_order_of_requests() -> None:
    played = player(body("a"), body("b"), body("a"))
    assert answers(played, body("b"), body("a"), body("a")) == ["1", "0", "2"]
    assert (played.misses, played.unplayed, played.played) == ([], [], 3)


def test_miss_shows_the_nearest_unplayed_exchange() -> None:
    played = player(body("a"), body("d", temperature=0, seed=1), body("c", temperature=0))
    miss = (
        f"POST {PATH} was not recorded in c.yaml. The nearest exchange that is left is number 3 of 3:\n"
        f"  messages[0] (user).content: recorded 'c', sent 'b'{SAME_VERSION}"
    )
    assert answers(played, body("a"), body("b", temperature=0), body("b", temperature=0)) == ["0", miss, miss]
    assert played.misses == [miss]


def test_requests_match_below_any_base_path_and_if_their_json_is_equal() -> None:
    for path in ("/chat/completions", "/v1/v1/chat/completions"):
        assert answers(player(body("a")), body("a"), path=path) == ["0"]
    assert answers(player(body("SCRUBBED")), body("sk-" + "a1B2" * 5)) == ["0"]
    assert answers(player(body("a", n=1, m=1)), body("a", m=1, n=1)) == ["0"]
    for value, other in ((1, True), (1, 1.0), (0, False), (0.0, -0.0)):
        (miss,) = answers(player(body("a", n=value)), body("a", n=other))
        assert f"\n  n: recorded {json.dumps(value)}, sent {json.dumps(other)}" in miss


def test_miss_names_another_version_of_mendgraph_as_the_likely_cause() -> None:
    suspect = f"{CAUSE}it was recorded with mendgraph 1, and this is 2, whose prompts may differ.{AGAIN}"
    for versions in (("1", "2"), ("1", "1"), ("", "2"), ("1", "")):
        (miss,) = answers(player(body("a"), recorded=versions[0], version=versions[1]), body("b"))
        assert miss.endswith(suspect if versions == ("1", "2") else SAME_VERSION), versions
    _, too_many = answers(player(body("a")), body("a"), body("a", "b\n c"))
    ends = f"all of its 1 exchanges have been played, 2 messages, the last by user: 'b c'.{SAME_VERSION}"
    assert too_many == f"POST {PATH} was not recorded in c.yaml: {ends}"


# --- Clients

BODY: Any = {"messages": [{"role": "user", "content": "a"}], "stream": True}


@pytest.fixture(scope="module")
def conversation() -> tuple[str, CassetteFile]:
    """What a recording received, and the cassette of it."""
    with LenientServer([Chunked(Say("Hello"), 2)]) as server, recorded(server.base_url) as tape:
        reply = httpx2.post(f"{tape.base_url}/chat/completions", json=BODY).text
    return reply, CassetteFile(recorded_from="x", exchanges=tape.exchanges)


@slow
def test_all_kinds_of_http_clients_get_the_recorded_reply(conversation: tuple[str, CassetteFile]) -> None:
    recorded_reply, cassette = conversation

    def stream(url: str) -> str:
        with httpx2.stream("POST", url, json=BODY) as reply:
            return "".join(reply.iter_text())

    clients: list[Callable[[str], str]] = [
        lambda url: httpx2.post(url, json=BODY).text,
        lambda url: httpx.post(url, json=BODY).text,
        stream,
    ]
    for ask in clients:
        for base_url in (REPLAY_URL, "https://api.gone.test"):
            player = Player(cassette, "c.yaml")
            with replayed(player) as tape:
                assert ask(f"{base_url}/chat/completions") == recorded_reply
                assert tape.base_url == REPLAY_URL
            assert (player.misses, player.unplayed) == ([], [])
    player = Player(cassette, "c.yaml")
    with replayed(player) as tape, pytest.raises(CassetteMissError) as caught:
        httpx2.post(f"{tape.base_url}/chat/completions", json={**BODY, "seed": 1})
    assert "\n  seed: not recorded, sent 1\n" in str(caught.value)
    assert player.misses == [str(caught.value)]


def test_without_vcrpy_the_error_names_the_extra_to_install(
    conversation: tuple[str, CassetteFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vcr", None)
    import_error = pytest.raises(ImportError, match=r"needs the extra `cassettes`: .*vcr")
    with import_error, replayed(Player(conversation[1], "c.yaml")):
        pass


# --- What is recorded

ASKS_A_MODEL: tuple[tuple[str, Any, bool], ...] = (
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
)
PATHS = {
    ("http://h/v1/chat?key=a", "http://h/v1"): "/v1/chat",
    ("https://h/api/v1/chat", "https://h/api/v1/"): "/v1/chat",
    ("https://h/api/v1/chat", "https://other/api/v1/"): "/api/v1/chat",
    ("https://h/chat", "https://h"): "/chat",
    ("https://h/v1/messages", "https://h/"): "/v1/messages",
    ("https://h/v10/chat", "https://h/v1"): "/v10/chat",
    ("https://h/api/chat", ""): "/api/chat",
}


def test_request_that_is_not_for_a_model_is_not_intercepted() -> None:
    for method, body, heard in ASKS_A_MODEL:
        request: Any = VcrRequest(method, "https://h/v1/x", body, {})
        assert (Tape("").intercept(request) is request) is heard, (method, body)
        assert Tape("https://h:443/other").intercept(request) is request
        assert (Tape("http://h/v1").intercept(request) is request) is heard, (method, body)
    assert {place: recorded_path(*place) for place in PATHS} == PATHS


def exchange(reply: bytes, body: Any, headers: Mapping[str, Any] | None = None, base_url: str = "") -> Exchange:
    """What is kept of a request that carries keys in its address and its headers."""
    uri = "https://host/api/v1/chat?alt=sse&key=canary-7fK2mQ9x-1&model=some-model-of-2026"
    keys = {"Accept": "a", "Authorization": "Bearer canary-7fK2mQ9x-2", "X-Api-Key": "canary-7fK2mQ9x-3"}
    request: Any = SimpleNamespace(method="post", uri=uri, body=body, headers={**keys, "api-key": "ollama"})
    response: Any = {"status": {"code": 200}, "headers": headers or {}, "body": {"string": reply}}
    return Tape(base_url, lambda body: body.replace(b"private", b"x"))._exchange(request, response)


def test_recorded_exchange_holds_no_key_no_host_and_no_other_headers() -> None:
    reply = b"Incorrect key canary-7fK2mQ9x-1, canary-7fK2mQ9x-2, canary-7fK2mQ9x-3 for some-model-of-2026 of ollama"
    scrubbed = b"Incorrect key SCRUBBED, SCRUBBED, SCRUBBED for some-model-of-2026 of ollama"
    recorded = exchange(reply, reply)
    assert (recorded.request, recorded.response, recorded.path) == (scrubbed, scrubbed, "/api/v1/chat")
    heads = {"Content-Type": ["b"], "Date": ["c"]}
    assert exchange(b"d", b'{"a": "private"}', heads, "https://host/api/v1") == Exchange(
        method="POST",
        path="/v1/chat",
        request=b'{"a": "x"}',
        request_headers={"accept": "a"},
        status=200,
        headers={"content-type": "b"},
        response=b"d",
    )
    assert json.loads(exchange(b"a", BODY).request) == BODY  # aiohttp is still to encode it
