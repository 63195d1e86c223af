"""Each recorded run ends as the table says, on the replies that the embedded model gave once."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mendgraph.graph.cassettes.cassette_file import secrets_in
from mendgraph.graph.cassettes.recorder import CassetteMissError
from tests import network
from tests.doubles.history import history_problems
from tests.recorded.cassette import LIBRARY, OPENINGS, read, record, replay
from tests.recorded.player import PlayedTurn, play
from tests.recorded.recorded_run import RecordedRun, Turn
from tests.recorded.table import RUNS
from tests.sandboxes import sandbox_problem
from tests.vocabulary import Protocol
from tests.workspace_files import changed_files, write_files

pytestmark = [pytest.mark.local_model] if network.is_recording() else []

ONE_MACHINE = re.compile(r"(?<![\w.])/(?:(?:home|Users)/\w|root/|tmp/)|/pytest-of-\w+")
"""What would make a recording play on one machine only."""


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_recorded_run_ends_as_the_table_says(run: RecordedRun, tmp_path: Path) -> None:
    if run.sandboxed and (problem := sandbox_problem()) is not None:
        pytest.skip(problem)

    write_files(tmp_path, run.files)
    with endpoint(run) as base_url:
        played = play(run, base_url, tmp_path)

    for turn, outcome in zip(run.turns, played, strict=True):
        assert_expected(turn, outcome)
    assert changed_files(tmp_path, run.files) == run.changed

    requests = [exchange.request.decode() for exchange in read(run.name).exchanges]
    assert played[-1].outcome.usage["total_calls"] == len(requests) == run.calls
    contents = [message.get("content") or "" for body in requests for message in json.loads(body)["messages"]]
    assert [text for text in run.in_requests if not any(text in content for content in contents)] == []
    assert [text for text in run.hidden if any(text in body for body in requests)] == []

    protocol = Protocol(run.settings.get("protocol", "text"))
    assert history_problems(played[-1].result.messages, protocol) == []


@contextmanager
def endpoint(run: RecordedRun) -> Iterator[str]:
    """The run's cassette, or while it is recorded the embedded model."""
    if not network.is_recording():
        with replay(run.name) as base_url:
            yield base_url
        return

    from mendgraph.nodes.call_model.local_model import LocalServer, shared_local_server

    server = shared_local_server()
    assert isinstance(server, LocalServer), server
    with record(run.name, server.base_url, run.turns[0].request) as base_url:
        yield base_url


def assert_expected(turn: Turn, played: PlayedTurn) -> None:
    outcome = played.outcome
    assert (outcome.kind, outcome.reason) == (turn.kind, turn.reason), outcome
    assert played.steps == turn.steps
    assert turn.message in outcome.message
    assert turn.answer in outcome.answer


def test_request_that_differs_is_shown_with_a_diff(tmp_path: Path) -> None:
    run = next(run for run in RUNS if run.name == "constant_in_json")
    write_files(tmp_path, {name: text.replace("localhost", "example.com") for name, text in run.files.items()})

    with pytest.raises(CassetteMissError) as caught, replay(run.name) as base_url:
        play(run, base_url, tmp_path)

    message = str(caught.value)
    assert "POST /v1/chat/completions was not recorded in cassettes/constant_in_json.yaml." in message
    assert 'line 6: recorded \'  "host": "localhost",\', sent \'  "host": "example.com",\'' in message


def test_recorded_request_that_is_not_sent_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="not sent:\n  number 1 of 1: POST"), replay("constant_in_json"):
        pass


def test_cassettes_belong_to_runs_and_contain_nothing_private() -> None:
    names = [run.name for run in RUNS]
    assert len(names) == len(set(names))
    assert sorted(path.name for path in LIBRARY.iterdir()) == sorted(f"{name}.yaml" for name in [*names, OPENINGS])

    texts = {path.name: path.read_text(encoding="utf-8") for path in LIBRARY.iterdir()}
    assert {name: secrets_in(text) for name, text in texts.items() if secrets_in(text)} == {}
    assert [name for name, text in texts.items() if ONE_MACHINE.search(text)] == []
