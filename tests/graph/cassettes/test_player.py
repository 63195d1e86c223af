import json
import sys
from typing import Any, ClassVar

import httpx
import httpx2
import pytest
from vcr.request import Request as VcrRequest

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange
from mendgraph.graph.cassettes.player import (
    REPLAY_URL,
    CassetteMissError,
    Player,
    Tape,
    _can_play,
    exchange_of,
    recorded,
    recorded_path,
    replayed,
)
from tests.doubles.scripted_server import Chunked, LenientServer, Say

PATH = "/v1/chat/completions"
CAUSE = "\nWhat usually causes this: "
AGAIN = " If it is meant, record again with `pytest --mendgraph-record`."
SAME_VERSION = f"{CAUSE}a changed prompt, tool, setting, file or version of the agent asks for something else.{AGAIN}"


def body(*texts: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts], **more}).encode()


def player(*bodies: bytes, version: str = "1", recorded: str = "1") -> Player:
    exchanges = tuple(
        Exchange(method="POST", path=PATH, request=each, status=200, headers={}, response=str(index).encode())
        for index, each in enumerate(bodies)
    )
    settings = {"mendgraph": recorded}
    return Player(CassetteFile(recorded_from="x", settings=settings, exchanges=exchanges), "c.yaml", version=version)


def answers(played: Player, *bodies: bytes, path: str = PATH) -> list[str]:
    found = [played.take("POST", path, each) for each in bodies]
    return [each if isinstance(each, str) else each.response.decode() for each in found]


def test_each_exchange_answers_once_whatever_the_order_of_requests() -> None:
    played = player(body("a"), body("b"), body("a"))
    assert answers(played, body("b"), body("a"), body("a")) == ["1", "0", "2"]
    assert (played.misses, played.unplayed, played.played) == ([], [], 3)


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions"])
def test_root_that_a_client_puts_before_a_path_makes_no_difference(path: str) -> None:
    assert answers(player(body("a")), body("a"), path=path) == ["0"]


def test_secrets_are_compared_as_they_were_recorded() -> None:
    assert answers(player(body("SCRUBBED")), body("sk-" + "a1B2" * 5)) == ["0"]


@pytest.mark.parametrize(("value", "other"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0)])
def test_values_that_only_python_takes_for_equal_are_not(value: Any, other: Any) -> None:
    (miss,) = answers(player(body("a", n=value)), body("a", n=other))
    assert f"\n  n: recorded {json.dumps(value)}, sent {json.dumps(other)}" in miss
    assert answers(player(body("a", n=value, m=1)), body("a", m=1, n=value)) == ["0"]


def test_miss_shows_the_nearest_exchange_that_is_left() -> None:
    played = player(body("a"), body("d", temperature=0, seed=1), body("c", temperature=0))
    miss = (
        f"POST {PATH} was not recorded in c.yaml. The nearest exchange that is left is number 3 of 3:\n"
        f"  messages[0] (user).content: recorded 'c', sent 'b'{SAME_VERSION}"
    )
    assert answers(played, body("a"), body("b", temperature=0), body("b", temperature=0)) == ["0", miss, miss]
    assert played.misses == [miss]


def test_request_too_many_is_told_by_how_it_ends() -> None:
    ends = f"all of its 1 exchanges have been played, 2 messages, the last by user: 'b c'.{SAME_VERSION}"
    assert (
        answers(player(body("a")), body("a"), body("a", "b\n c"))[1]
        == f"POST {PATH} was not recorded in c.yaml: {ends}"
    )


@pytest.mark.parametrize(("recorded", "version"), [("1", "2"), ("1", "1"), ("", "2"), ("1", "")])
def test_another_version_of_mendgraph_is_the_first_suspect(recorded: str, version: str) -> None:
    miss = answers(player(body("a"), version=version, recorded=recorded), body("b"))[0]
    suspect = f"{CAUSE}it was recorded with mendgraph 1, and this is 2, whose prompts may differ.{AGAIN}"
    assert miss.endswith(suspect if (recorded, version) == ("1", "2") else SAME_VERSION)


BODY: Any = {"messages": [{"role": "user", "content": "a"}], "stream": True}


def taped(*replies: Any) -> tuple[str, CassetteFile]:
    """What a recording heard, and as a cassette."""
    with LenientServer(replies) as server, recorded(server.base_url) as tape:
        said = [httpx2.post(f"{tape.base_url}/chat/completions", json=BODY).text for _ in replies]
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


@pytest.mark.parametrize("client", [by_httpx2, by_httpx, by_stream])
def test_clients_of_all_kinds_hear_what_was_recorded(client: Any, conversation: tuple[str, CassetteFile]) -> None:
    said, cassette = conversation
    player = Player(cassette, "c.yaml")
    with replayed(player) as tape:
        assert client(tape) == said
        assert (tape.base_url, len(tape.exchanges)) == (REPLAY_URL, 1)
    assert (player.misses, player.unplayed) == ([], [])


def test_request_that_was_not_recorded_raises_with_the_difference(conversation: tuple[str, CassetteFile]) -> None:
    player = Player(conversation[1], "c.yaml")
    with replayed(player) as tape, pytest.raises(CassetteMissError) as caught:
        httpx2.post(f"{tape.base_url}/chat/completions", json={**BODY, "seed": 1})
    assert "\n  seed: not recorded, sent 1\n" in str(caught.value)
    assert player.misses == [str(caught.value)]


def test_without_vcrpy_it_says_what_is_to_be_installed(
    conversation: tuple[str, CassetteFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vcr", None)
    with (
        pytest.raises(ImportError, match=r"needs the extra `cassettes`: .*vcr"),
        replayed(Player(conversation[1], "c.yaml")),
    ):
        pass


def test_client_that_asks_twice_of_one_request_takes_one_exchange(conversation: tuple[str, CassetteFile]) -> None:
    player, tape = Player(conversation[1], "c.yaml"), Tape(REPLAY_URL)
    request: Any = VcrRequest("POST", f"{REPLAY_URL}/chat/completions", json.dumps(BODY).encode(), {})
    assert [_can_play(player, tape, request), _can_play(player, tape, request)] == [True, True]
    assert (player.played, player.misses) == (1, [])


def test_model_is_heard_wherever_it_is(conversation: tuple[str, CassetteFile]) -> None:
    said, cassette = conversation
    with replayed(Player(cassette, "c")):
        assert httpx2.post("https://api.gone.test/chat/completions", json=BODY).text == said
    with LenientServer([Say("a")]) as other, recorded() as tape:
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
    assert (Tape("").heard(request) is request) is heard
    assert Tape("https://h:443/other").heard(request) is request
    assert (Tape("http://h/v1").heard(request) is request) is heard


def test_body_that_aiohttp_is_still_to_encode_plays(conversation: tuple[str, CassetteFile]) -> None:
    player, tape = Player(conversation[1], "c.yaml"), Tape(REPLAY_URL)
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


def test_keys_that_a_request_carries_are_in_neither_body() -> None:
    said = b"Incorrect key canary-7fK2mQ9x-1, canary-7fK2mQ9x-2, canary-7fK2mQ9x-3 for some-model-of-2026 of ollama"
    response: Any = {"status": {"code": 401}, "headers": {}, "body": {"string": said}}
    request: Any = Heard()
    request.body = said
    found = exchange_of(request, response, "", lambda body: body)
    kept = b"Incorrect key SCRUBBED, SCRUBBED, SCRUBBED for some-model-of-2026 of ollama"
    assert (found.request, found.response, found.path) == (kept, kept, "/api/v1/chat")


def test_exchange_holds_no_host_and_no_foreign_header() -> None:
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
