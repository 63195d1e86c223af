"""What a run makes of an endpoint that fails in ways that no cassette can hold: each is typed, bounded, explained."""

import json
import socket
from pathlib import Path

import pytest

from mendgraph import AgentContext, RunResult, run_task
from mendgraph.nodes.records import JsonMap, OutcomeKind, StopReason
from tests.doubles.model_clock import set_clock
from tests.doubles.scripted_server import Calls, Disconnect, NoFinish, Reply, Say, ScriptedServer, Slow, Status

FINE = Say("All is well.")
FAILED = (OutcomeKind.SYSTEM_ERROR, StopReason.PROVIDER_FAILED)
UNPAID: JsonMap = {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}


def asked(folder: Path, base_url: str, **more: object) -> RunResult:
    """One question to this endpoint."""
    settings: JsonMap = {"model": "scripted", **more}
    return run_task("Is all well?", AgentContext(workspace=str(folder), base_url=base_url, **settings))


@pytest.mark.parametrize(
    ("bad", "words", "diagnostics"),
    [
        (Disconnect(0), "cannot be reached", "provider error: connection (3 tries)"),
        (Disconnect(2), "broke off", "provider error: incomplete_stream (3 tries)"),
        (NoFinish("All is"), "broke off", "provider error: incomplete_stream (3 tries)"),
        (Status(503), "scripted status 503", "provider error: server_error (3 tries)"),
        (Status(429), "too many requests", "provider error: rate_limited (3 tries)"),
        (Status(429, UNPAID), "has no credit left", "provider error: authentication"),
        (Status(429, json.dumps([UNPAID])), "has no credit left", "provider error: authentication"),
        (Status(401), "OPENAI_API_KEY", "provider error: authentication"),
        (Status(404), "--model", "provider error: model_unavailable"),
        (Status(400), "refuses the request", "provider error: bad_request"),
    ],
    ids=repr,
)
def test_what_does_not_pass_ends_the_run(
    bad: Reply, words: str, diagnostics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    with ScriptedServer([bad] * 3) as server:
        outcome = asked(tmp_path, server.base_url).outcome
    assert (outcome.kind, outcome.reason, outcome.diagnostics) == (*FAILED, (diagnostics,))
    assert len(server.requests) == (3 if "3 tries" in diagnostics else 1)
    assert words in outcome.message
    assert "\n" not in outcome.message


def test_endpoint_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        outcome = asked(tmp_path, base_url).outcome
    assert (outcome.kind, outcome.reason) == FAILED
    assert f"{base_url} cannot be reached" in outcome.message
    assert outcome.diagnostics == ("provider error: connection (3 tries)",)


def test_slow_reply_does_not_outlive_the_turn(tmp_path: Path) -> None:
    """The time of the turn is a limit like any other, also in the middle of a reply."""
    with ScriptedServer([Slow(600, FINE)]) as server:
        outcome = asked(tmp_path, server.base_url, max_seconds=0.1).outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.BUDGET_STOP, StopReason.WALL_CLOCK)
    assert (len(server.requests), outcome.usage["total_calls"]) == (1, 1)


def test_address_without_its_v1_is_found_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names the host alone is understood; a server that is no such endpoint is told where most of them are."""
    set_clock(monkeypatch)
    with ScriptedServer([Calls([("list_directory", "{}")]), FINE]) as server:
        host = server.base_url.removesuffix("/v1")
        outcome = asked(tmp_path, host).outcome
    assert (outcome.answer, server.paths) == ("All is well.", ["/chat/completions", *["/v1/chat/completions"] * 2])
    with ScriptedServer([Status(200, {"error": "Unexpected endpoint or method."})] * 3) as server:
        host = server.base_url.removesuffix("/v1")
        outcome = asked(tmp_path, host).outcome
    assert f"Most servers answer below /v1: try {host}/v1." in outcome.message


def test_retries_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch)
    with ScriptedServer([Status(503)] * 3) as server:
        outcome = asked(tmp_path, server.base_url, max_calls_per_turn=2).outcome
    assert (outcome.kind, outcome.reason) == (OutcomeKind.BUDGET_STOP, StopReason.MAX_CALLS_PER_TURN)
    assert len(server.requests) == 2


def test_endpoint_of_one_model_needs_no_name(tmp_path: Path) -> None:
    with ScriptedServer([FINE]) as server:
        outcome = asked(tmp_path, server.base_url, model=None).outcome
    assert (outcome.answer, server.requests[0]["model"]) == ("All is well.", "scripted")


@pytest.mark.parametrize(
    ("word", "done", "answered"),
    [(None, True, True), ("wat", False, True), (None, False, False), ("error", True, False)],
)
def test_reply_that_no_known_word_ends_is_complete_with_another_word_or_at_the_end_of_its_stream(
    word: str | None, done: bool, answered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    choice = {"index": 0, "delta": {"content": "All is well."}, "finish_reason": word}
    body = f"data: {json.dumps({'choices': [choice]})}\n\n" + "data: [DONE]\n\n" * done
    with ScriptedServer([Status(200, body, {"Content-Type": "text/event-stream"})] * 3) as server:
        outcome = asked(tmp_path, server.base_url).outcome
    assert (outcome.kind is OutcomeKind.FINISHED) is answered
    assert answered or word is None or f"the unknown word '{word}'" in outcome.message
