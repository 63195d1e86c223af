"""Runs in a folder of their own, on a model that recites, and on one that replays strictly."""

import json
import os
from pathlib import Path

import pytest

from graph.cassettes.cassette_file import CassetteFile
from graph.cassettes.replayed_run import (
    REPLAY_URL,
    Reciter,
    Replayer,
    anything_goes,
    files_in,
    play,
    playground,
    write_files,
)
from graph.cassettes.run_course import RunCourse, TurnSaid
from graph.context import AgentContext
from nodes.call_model.compaction import SUMMARY_SYSTEM
from nodes.call_model.exchange import WRAP_UP_SYSTEM
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE
from nodes.execute_tools.environment.workspace import WriteFile
from nodes.records import JsonMap, ModelReply, OutcomeKind, Profile, StopCause, StopReason, ToolError

FILES = {"a.py": b"x = 1\n", "pkg/b.bin": b"\xff\x00"}
DOWN = StopCause(
    reason=StopReason.PROVIDER_FAILED,
    message="It failed (busy).",
    diagnostics=("provider error: server_error (2 tries)",),
)


def course(folder: str, *turns: TurnSaid) -> RunCourse:
    context = AgentContext(workspace=folder, model="m", base_url=REPLAY_URL, evidence=False, provider_retries=1)
    requests = tuple(f"Task {number}" for number in range(len(turns)))
    return RunCourse(context, Profile(), requests, turns, (), (), (), (), (), {})


def test_what_is_recited_can_be_replayed_and_nothing_else() -> None:
    turns = (TurnSaid(failure=DOWN), TurnSaid(replies=[ModelReply(text="Done.")]))
    with playground(FILES) as folder:
        assert isinstance(folder, str)
        asked = course(folder, *turns)
        reciter = Reciter("m", turns)
        first = play(asked, asked.context, reciter)
        assert isinstance(first, RunCourse)
        assert [outcome.kind for outcome in first.outcomes] == [OutcomeKind.SYSTEM_ERROR, OutcomeKind.FINISHED]
        assert [exchange.status for exchange in reciter.exchanges] == [503, 503, 200]
        assert first.outcomes[0].message == f"{REPLAY_URL} failed (busy)."

        cassette = CassetteFile(recorded_from="a test", exchanges=tuple(reciter.exchanges))
        replayer = Replayer(cassette)
        again = play(asked, asked.context, replayer)
        assert isinstance(again, RunCourse)
        assert again.outcomes[1] == first.outcomes[1].model_copy(update={"usage": again.outcomes[1].usage})
        assert (replayer.player.misses, replayer.player.unplayed) == ([], [])

        strict = Replayer(cassette)
        missed = play(course(folder, TurnSaid()), asked.context.model_copy(update={"model": "other"}), strict)
        assert isinstance(missed, RunCourse)
        assert missed.outcomes[0].reason is StopReason.PROVIDER_FAILED
        assert "model" in strict.player.misses[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "ollama:m"}, "'ollama:m' names a provider, for which nobody can stand in."),
        ({"base_url": "http://llm.test:0/v1"}, "The endpoint 'http://llm.test:0/v1' is not an address: "),
    ],
)
def test_a_session_without_an_endpoint_is_not_played(settings: JsonMap, message: str, tmp_path: Path) -> None:
    asked = course(str(tmp_path), TurnSaid())
    refused = play(asked, asked.context.model_copy(update=settings), Reciter("m", asked.turns))
    assert isinstance(refused, ToolError)
    assert refused.message.startswith(f"The run cannot be played again: {message}")


def test_summaries_and_the_account_are_recited_beside_the_replies() -> None:
    failure = StopCause(reason=StopReason.CONTEXT_OVERFLOW, message="Too long.", diagnostics=("bad_request (1 tries)",))
    turn = TurnSaid([ModelReply(text="One."), ModelReply(text="Two.")], ["In short."], "It is done.", failure)
    reciter = Reciter("m", (turn,))
    for system in ("", SUMMARY_SYSTEM, WRAP_UP_SYSTEM, "", SUMMARY_SYSTEM, ""):
        reciter.answer(json.dumps({"messages": [{"role": "system", "content": system}]}).encode())
    heard = [(exchange.status, exchange.response.decode()) for exchange in reciter.exchanges]
    assert [status for status, _ in heard] == [200] * 5 + [400]
    for word, (_, said) in zip(("One.", "In short.", "It is done.", "Two."), heard, strict=False):
        assert f'"content": "{word}"' in said


def test_a_playground_has_the_files_and_is_gone_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_DIR_VARIABLE, "/mine")
    with playground(FILES) as folder:
        assert isinstance(folder, str)
        assert files_in(folder, 10) == FILES
        assert len(files_in(folder, 1)) == 1
        assert os.environ[DATA_DIR_VARIABLE] != "/mine"
    assert os.environ[DATA_DIR_VARIABLE] == "/mine"
    assert not os.path.exists(folder)


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_DIR_VARIABLE, raising=False)
    with playground({}):
        pass
    assert DATA_DIR_VARIABLE not in os.environ


def test_files_that_no_folder_can_hold_are_refused() -> None:
    with playground({"a": b"", "a/b": b""}) as folder:
        assert isinstance(folder, ToolError)


def test_more_files_than_one_change_takes_are_written(tmp_path: Path) -> None:
    workspace = anything_goes(str(tmp_path))
    assert write_files(workspace, [WriteFile(f"{number}.txt", b"") for number in range(201)]) is None
    assert len(files_in(str(tmp_path), 500)) == 201
