"""`mendgraph model ...`: one line for each answer, and an exit code."""

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from mendgraph.graph import cli
from mendgraph.graph.terminal import setup_commands
from mendgraph.graph.terminal.setup_commands import shown_pull
from mendgraph.nodes.call_model.embedded import local_model, pull, weights
from mendgraph.nodes.call_model.embedded.pull import Pulled, PullFailure, PullFailureKind
from mendgraph.nodes.call_model.embedded.weights import PullPhase, PullProgress, WeightsState, WeightsStatus
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure

GIGABYTE = 1_000_000_000


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(["model", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(
    ("outcome", "code", "out", "err"),
    [
        (Pulled("/m\x1b.gguf", GIGABYTE, "hub"), 0, "the model is in place and verified: /m\\x1b.gguf (1.0 GB)\n", ""),
        (Pulled("/m.gguf", GIGABYTE, "cache"), 0, "the model was already there: /m.gguf (1.0 GB)\n", ""),
        (PullFailure(PullFailureKind.DISK_FULL, "the disk is full"), 4, "", "mendgraph: the disk is full\n"),
        (PullFailure(PullFailureKind.INTERRUPTED, "stopped"), 130, "", "mendgraph: stopped\n"),
    ],
)
def test_pull(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: Pulled | PullFailure,
    code: int,
    out: str,
    err: str,
) -> None:
    monkeypatch.setattr(pull, "pull_weights", lambda _: outcome)
    assert called(capsys, "pull") == (code, out, err)


@pytest.mark.parametrize(
    ("state", "present", "server", "code", "first"),
    [
        (WeightsState.READY, GIGABYTE, True, 0, "weights: ready (1.0 GB of 1.0 GB)"),
        (WeightsState.READY, GIGABYTE, False, 4, "weights: ready (1.0 GB of 1.0 GB)"),
        (WeightsState.ABSENT, 0, True, 4, "weights: absent (0.0 GB of 1.0 GB): run `mendgraph model pull`"),
        (WeightsState.DAMAGED, GIGABYTE, True, 4, "weights: damaged (1.0 GB of 1.0 GB): run `mendgraph model pull`"),
    ],
)
def test_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: WeightsState,
    present: int,
    server: bool,
    code: int,
    first: str,
) -> None:
    found = WeightsStatus(state, "/m.gguf", present, GIGABYTE)
    monkeypatch.setattr(setup_commands, "weights_status", lambda **_: found)
    monkeypatch.setattr(setup_commands, "find_spec", lambda _: object() if server else None)
    local = "installed" if server else setup_commands.EXTRA_HINT
    assert called(capsys, "status") == (code, f'{first}\nfile: /m.gguf\nextra "local": {local}\n', "")


def test_for_programs_there_is_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = WeightsStatus(WeightsState.READY, "/m.gguf", GIGABYTE, GIGABYTE)
    monkeypatch.setattr(setup_commands, "weights_status", lambda **_: found)
    monkeypatch.setattr(setup_commands, "find_spec", lambda _: None)
    monkeypatch.setattr(pull, "pull_weights", lambda _: PullFailure(PullFailureKind.DISK_FULL, "the disk is full"))
    assert cli.main(["--json", "model", "status"]) == 4
    assert json.loads(capsys.readouterr().out) == {
        "state": "ready",
        "path": "/m.gguf",
        "bytes_present": GIGABYTE,
        "bytes_expected": GIGABYTE,
        "extra_installed": False,
        "usable": False,
    }
    assert cli.main(["--json", "model", "pull"]) == 4
    told = {"code": "system_error", "message": "the disk is full"}
    assert json.loads(capsys.readouterr().out) == {"error": told}
    monkeypatch.setattr(pull, "pull_weights", lambda _: Pulled("/m.gguf", 5, "hub"))
    assert cli.main(["--json", "model", "pull"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "/m.gguf", "size_bytes": 5, "source": "hub"}


@pytest.mark.parametrize("words", ["model status", "doctor", "config", "runs"])
def test_what_works_on_no_task_tells_no_events(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--json-lines", *words.split()]) == 2
    assert "use --json here" in capsys.readouterr().err


def test_status_of_a_fresh_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(weights.MODEL_DIR_VARIABLE, str(tmp_path))
    code, out, err = called(capsys, "status")
    assert (code, err) == (4, "")
    assert out.startswith("weights: absent (0.0 GB of 1.1 GB): run `mendgraph model pull`\n")
    assert os.listdir(tmp_path) == []


def test_serve_says_where_and_ends_with_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(_: str, port: int, announce: object) -> None:
        assert callable(announce)
        announce(f"http://127.0.0.1:{port}/v1")

    monkeypatch.setattr(local_model, "why_unavailable", lambda: None)
    monkeypatch.setattr(local_model, "serve_in_foreground", serve)
    url = "http://127.0.0.1:8123/v1"
    line = f"serving on {url} until Ctrl-C; use it with OPENAI_BASE_URL={url}\n"
    assert called(capsys, "serve", "--port", "8123") == (0, line, "")
    assert cli.main(["--json", "model", "serve", "--port", "8123"]) == 0
    assert json.loads(capsys.readouterr().out) == {"base_url": url}


def test_serve_needs_the_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failure = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="no weights: run the pull")
    monkeypatch.setattr(local_model, "why_unavailable", lambda: failure)
    assert called(capsys, "serve") == (4, "", "mendgraph: no weights: run the pull\n")


def test_a_port_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "serve", "--port", "70000")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'--port'" in err


REPORTS = [
    PullProgress(PullPhase.WAITING, 0, 0),
    PullProgress(PullPhase.FETCHING, 500_000_000, 1_000_000_000),
    PullProgress(PullPhase.FETCHING, 750_000_000, 1_000_000_000),
    PullProgress(PullPhase.VERIFYING, 1_000_000_000, 1_000_000_000),
]


def shown(*, terminal: bool, reports: list[PullProgress]) -> str:
    file = io.StringIO()
    with shown_pull(Console(file=file, force_terminal=terminal, width=100, legacy_windows=False)) as bar:
        for report in reports:
            bar(report)
    return file.getvalue()


def test_without_a_terminal_each_phase_is_a_line() -> None:
    assert shown(terminal=False, reports=REPORTS) == "waiting for another pull\nfetching\nverifying\n"


def test_a_terminal_that_cannot_draw_gets_lines_too() -> None:
    file = io.StringIO()
    with shown_pull(Console(file=file, force_terminal=True, _environ={"TERM": "dumb"})) as bar:
        bar(REPORTS[1])
    assert file.getvalue() == "fetching\n"


def test_a_terminal_shows_one_bar_with_the_bytes_of_the_phase() -> None:
    drawn = shown(terminal=True, reports=REPORTS)
    last = drawn.rpartition("verifying")[2]
    assert "1.0/1.0 GB" in last
    assert "fetching" not in last


def test_nothing_is_drawn_before_the_first_report() -> None:
    assert shown(terminal=True, reports=[]) == ""
