"""The pytest fixture when a test is recorded and when it is replayed."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from mendgraph.graph.cassettes import fixture
from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange, read, version
from mendgraph.graph.cassettes.fixture import MarkerArguments, RecordedCassette, ReplayedCassette, Source, find_source
from mendgraph.graph.cassettes.offline import OfflineError
from mendgraph.nodes.call_model.endpoint import EMBEDDED_WINDOW, NO_KEY
from tests.doubles.scripted_server import LenientServer, Say, refusing_endpoint
from tests.extent import slow

BODY = {"model": "old", "messages": []}


def conversation(**settings: str) -> CassetteFile:
    fields: Any = {"method": "POST", "path": "/v1/chat/completions", "status": 200, "headers": {}, "response": b"a"}
    exchanges = tuple(Exchange(request=body, **fields) for body in (b"x", b'{"model": "old", "messages": []}'))
    return CassetteFile(recorded_from="x", settings=settings, exchanges=exchanges)


@contextmanager
def recording(path: Path, key: str = "a-key-of-ours") -> Iterator[RecordedCassette]:
    with LenientServer(then=lambda _: Say(f"Hello {key}")) as server:
        source = Source(base_url=server.base_url, api_key=SecretStr(key), origin="x", settings={"model": "m"})
        with closing(RecordedCassette(str(path), "c.yaml", lambda: source)) as cassette:
            yield cassette


def post(url: str) -> str:
    return httpx2.post(f"{url}/chat/completions", json=BODY).text


def test_recording_is_written_without_its_key_and_replays(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with recording(path) as live:
        assert (live.recording, live.model, live.api_key) == (True, "m", "a-key-of-ours")
        answer = post(live.base_url)
    assert (live.problem(), "a-key-of-ours" in answer) == ("", True)
    assert "a-key-of-ours" not in path.read_text(encoding="utf-8")
    cassette = read(str(path), "c.yaml")
    assert isinstance(cassette, CassetteFile)
    with closing(ReplayedCassette(str(path), "c.yaml", cassette)) as replay:
        assert (replay.recording, replay.model, replay.api_key) == (False, "m", "not-needed")
        assert post(replay.base_url) == answer.replace("a-key-of-ours", "SCRUBBED")
    assert (replay.problem(), replay.notes()) == ("", [])


def test_recording_with_a_secret_of_the_environment_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.yaml"
    with recording(path) as live:
        post(live.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-ours")
        assert live.problem() == ""
        path.unlink()
        httpx2.post(f"{live.base_url}/chat/completions", json={"messages": ["plum-42-orchard-7"]})
    monkeypatch.setenv("SOME_API_KEY", "plum-42-orchard-7")
    assert live.problem() == (
        "the request of exchange 2 holds the value of SOME_API_KEY, so c.yaml was not written: keep it out of the "
        "prompt and of what the agent reads, or unset the variable where it is no secret, and record again"
    )
    assert not path.exists()


def test_recording_that_is_empty_or_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with recording(tmp_path / "file" / "c.yaml") as live:
        silent = live.problem()
        post(live.base_url)
    assert silent.startswith("nothing was said to a model, so c.yaml was not written: pass the agent ")
    assert live.problem() == f"{tmp_path}/file/c.yaml cannot be written: File exists"


def test_recording_names_the_host_that_answered_if_it_is_not_the_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with recording(path) as live, LenientServer([Say("Hello")]) as other:
        assert live.base_url
        post(other.base_url.replace("127.0.0.1", "localhost"))
    assert live.problem() == ""
    cassette = read(str(path))
    assert isinstance(cassette, CassetteFile)
    assert (cassette.recorded_from, cassette.settings) == ("model at localhost", {"mendgraph": version()})
    with closing(ReplayedCassette(str(path), "c.yaml", cassette)) as replay:
        assert "Hello" in post("https://api.gone.test/v1")
    assert (replay.problem(), replay.model) == ("", None)


def test_provider_model_is_refused_at_the_endpoint_of_the_cassette() -> None:
    """Its key would go to the wrong host."""
    with closing(ReplayedCassette("c", "c.yaml", conversation())) as replay:
        with pytest.raises(ValueError, match=r"'anthropic:m' names a provider, .*: give the chat model itself"):
            replay.context(model="anthropic:m")
        assert replay.context(model="anthropic:m", base_url=None).base_url is None
        assert replay.context(model="openai:m").base_url == replay.base_url


PLACEHOLDERS = ("none", "EMPTY", "ollama", "test", "lm-studio", "not-needed")


@slow
def test_placeholder_key_is_not_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in PLACEHOLDERS:
        monkeypatch.setenv("OPENAI_API_KEY", key)
        path = tmp_path / f"{key}.yaml"
        with recording(path, key) as live:
            answer = post(live.base_url)
        assert (live.problem(), key in answer, key in path.read_text(encoding="utf-8")) == ("", True, True)


def test_file_that_cannot_be_replayed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("[", encoding="utf-8")
    (tmp_path / "key.yaml").write_text("a\nsk-" + "a1B2" * 5, encoding="utf-8")
    messages = [
        getattr(read(str(tmp_path / name), name), "message", "") for name in ("none.yaml", "bad.yaml", "key.yaml")
    ]
    assert messages[0] == "there is no cassette none.yaml"
    assert messages[1].startswith("bad.yaml is not YAML (line ")
    assert messages[2] == (
        "key.yaml is not played: line 2 holds a secret. "
        "Revoke it, remove it from the file and its history, and record again"
    )


def test_no_host_can_be_reached_during_a_replay() -> None:
    note = (
        "the test tried to reach '127.0.0.1' while c.yaml is replayed: give the client "
        "`mendgraph_cassette.base_url`, or name the host in the marker's `allow_hosts`"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with closing(ReplayedCassette("c", "c.yaml", conversation(), ["localhost"])) as replay:
            with socket.socket() as client:
                for connect in (client.connect, client.connect_ex):
                    with pytest.raises(OfflineError, match=r"the test tried to reach '127\.0\.0\.1'"):
                        connect(address)
            with pytest.raises(OfflineError, match=r"example\.org"):
                socket.getaddrinfo(b"example.org", 80)
            assert socket.getaddrinfo("localhost", 80)
            assert socket.getaddrinfo(None, 80)
        assert replay.notes()[0] == note
        with closing(ReplayedCassette("c", "c.yaml", conversation(), ["127.0.0.1"])):
            socket.create_connection(address).close()
        socket.create_connection(address).close()


# --- The source of a recording

NATIVE = {"protocol": "native", "edit_form": "replace", "mendgraph": version()}


class Served:
    base_url, model = "http://127.0.0.1:5/v1", "qwen2.5-coder-1.5b"


def source(url: str, key: str, origin: str, settings: dict[str, str]) -> Source:
    return Source(base_url=url, api_key=SecretStr(key), origin=origin, settings=settings)


def test_source_of_a_recording_comes_from_the_marker_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with LenientServer() as server:  # which serves one model, whose name is requested
        one = {"model": "scripted", **NATIVE}
        url = server.base_url
        assert find_source(MarkerArguments(base_url=url)) == source(url, NO_KEY, "model at 127.0.0.1", one)
    monkeypatch.setattr(fixture, "shared_local_server", Served)
    pinned = {"protocol": "text", "edit_form": "blocks", "window_tokens": str(EMBEDDED_WINDOW)}
    local = {"model": Served.model, **pinned, "mendgraph": version()}
    for arguments in ({}, {"model": "local"}):
        assert find_source(MarkerArguments.model_validate(arguments)) == source(
            Served.base_url, NO_KEY, "local model", local
        )
    monkeypatch.setenv("OPENAI_BASE_URL", "http://b/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    marker = {"base_url": "https://user.example:8/api/v1/", "model": "m", "edit_form": "patch"}
    settings = {"model": "m", **NATIVE, "edit_form": "patch"}
    named = source("https://user.example:8/api/v1", "a-key", "model at user.example", settings)
    assert find_source(MarkerArguments.model_validate(marker)) == named


PROBLEMS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "the embedded model"),
    ({"model": "m"}, "Model 'm' needs an endpoint: set OPENAI_API_KEY, or OPENAI_BASE_URL for your own server"),
    ({"protocol": "morse"}, "protocol: must be 'text', 'native' or 'auto'"),
    (
        {"base_url": "http://u:p@h/v1"},
        "base_url: base_url must not contain a user name or password: put the key",
    ),
    ({"model": "deepseek:deepseek-chat"}, "'deepseek:deepseek-chat' names a provider, whose package knows its host"),
)


def test_recording_without_a_source_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, problem in PROBLEMS:
        assert str(find_source(MarkerArguments.model_validate(arguments))).startswith(problem), arguments
    with refusing_endpoint() as url:
        assert str(find_source(MarkerArguments(base_url=url))).startswith(f"{url} cannot be reached")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert "names a provider" in str(find_source(MarkerArguments()))
