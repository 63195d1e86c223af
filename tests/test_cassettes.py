from pathlib import Path
from typing import Any

import httpx2
import pytest

from mendgraph.graph.cassettes.player import REPLAY_URL, CassetteMissError
from tests.cassettes import Live, Origin, Tape, cassette, cassette_path, scripted
from tests.doubles.scripted_server import Say, ScriptedServer, Status

NAME = "scenario/case"


def ask(tape: Tape, word: str, **more: Any) -> httpx2.Response:
    """One request as the client of a run would send it, with a secret in each place where one may hide."""
    key = "sk-" + "a1B2" * 8
    body = {"model": "m", "messages": [{"role": "user", "content": f"{word} {key}"}], **more}
    headers = {"Authorization": f"Bearer {key}", "X-Key": key}
    return httpx2.post(f"{tape.base_url}/chat/completions", json=body, headers=headers)


def play(
    library: Path, *words: str, live: Live | None = None, swallow: bool = False, **more: Any
) -> list[httpx2.Response]:
    """Ask one question after another of the cassette, as a run would; one that swallows turns failures into values."""
    answers = []
    with cassette(NAME, live, library=library) as tape:
        for word in words:
            try:
                answers.append(ask(tape, word, **more))
            except CassetteMissError:
                if not swallow:
                    raise
    return answers


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with one cassette: two exchanges, the first of them refused."""
    refusal = Status(429, {"error": 1}, {"Retry-After": "3", "Set-Cookie": "a"})
    with monkeypatch.context() as patch:
        patch.setenv("MENDGRAPH_RECORD", "1")
        play(tmp_path, "one", "two", live=scripted(refusal, Say("sk-" + "a1B2" * 5)))
    return tmp_path


def test_recording_holds_no_secret_and_says_where_it_comes_from(recorded: Path) -> None:
    text = cassette_path(NAME, recorded).read_text(encoding="utf-8")
    assert text.startswith("recorded_from: scripted server\n")
    assert not any(secret in text for secret in ("sk-", "Bearer", "Set-Cookie", "x-key", "127.0.0.1", "Date"))
    assert text.count("uri: http://llm.test/v1/chat/completions") == 2
    assert [path.name for path in (recorded / "scenario").iterdir()] == ["case.yaml"]


def test_replay_answers_from_the_file_alone(recorded: Path) -> None:
    with cassette(NAME, scripted(), library=recorded) as tape:
        refused, answered = ask(tape, "one"), ask(tape, "two")
    assert (tape.base_url, len(tape.exchanges)) == (REPLAY_URL, 2)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert answered.json()["choices"][0]["message"]["content"] == "SCRUBBED"


def test_recording_replaces_the_old_one_only_if_it_ends_well(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cassette_path(NAME, recorded)
    before = path.read_bytes()
    monkeypatch.setenv("MENDGRAPH_RECORD", "1")
    with pytest.raises(TypeError):
        play(recorded, "three", live=scripted(Say("new")), not_json=object())
    assert path.read_bytes() == before
    play(recorded, "three", live=scripted(Say("new")))
    assert [word in path.read_text(encoding="utf-8") for word in ("one", "two", "three")] == [False, False, True]


def test_exchange_that_nobody_asks_for_fails(recorded: Path) -> None:
    with pytest.raises(AssertionError, match="cassette scenario/case: 1 of 2 exchanges were asked for"):
        play(recorded, "one")


def test_exchange_plays_once(recorded: Path) -> None:
    with pytest.raises(
        CassetteMissError, match="was asked for again, and cassette scenario/case holds its answer as often"
    ):
        play(recorded, "one", "one")


def test_request_that_was_not_recorded_fails_even_where_it_is_swallowed(recorded: Path) -> None:
    with pytest.raises(AssertionError, match="was not recorded in cassette scenario/case: all of its 2 exchanges"):
        play(recorded, "one", "two", "three", swallow=True)


@pytest.mark.parametrize(
    ("recording", "live", "message"),
    [
        ("0", None, "there is no cassette a/b: run this test with MENDGRAPH_RECORD=1 to record it"),
        ("1", None, "cassette a/b names no endpoint to record from: pass `live`"),
        ("1", scripted(), "cassette a/b: nothing was said to the endpoint"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: str, live: Live | None, message: str
) -> None:
    monkeypatch.setenv("MENDGRAPH_RECORD", recording)
    with pytest.raises(AssertionError) as caught, cassette("a/b", live, library=tmp_path):
        pass
    assert str(caught.value) == message


def test_origin_is_checked(recorded: Path) -> None:
    model = Live(Origin.LOCAL_MODEL, ScriptedServer)
    message = "cassette scenario/case was recorded from the scripted server, the test says local model"
    with pytest.raises(AssertionError, match=message):
        play(recorded, live=model)


@pytest.mark.parametrize("name", ["case", "a/b/c", "../b", "A/b", "a/b.yaml", ""])
def test_cassette_is_named_scenario_and_case(name: str) -> None:
    with pytest.raises(ValueError, match="a cassette is named scenario/case"):
        cassette_path(name)
