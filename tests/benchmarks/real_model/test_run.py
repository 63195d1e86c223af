import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.real_model import run
from benchmarks.real_model.contestants import Contestant, run_task
from benchmarks.real_model.endpoint import MeasuredEndpoint
from benchmarks.real_model.record import RunRecord, read_records
from benchmarks.real_model.task import Task
from tests.benchmarks.real_model.samples import task
from tests.doubles.scripted_server import Say, ScriptedServer

WRITER = """
import json, sys, urllib.request
asked = json.load(sys.stdin)
body = json.dumps({"model": asked["model"], "messages": [{"role": "user", "content": asked["request"]}]}).encode()
headers = {"Content-Type": "application/json"}
with urllib.request.urlopen(urllib.request.Request(asked["base_url"] + "/chat/completions", body, headers)) as reply:
    said = json.load(reply)["choices"][0]["message"]["content"]
open("hello.txt", "w").write(said)
print(json.dumps({"ended": "done", "answer": str(asked["files"]), "seconds": 1.0, "events": asked.get("options", {})}))
"""


class Server:
    """Stands for the embedded model's server."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self.stops = 0

    def __call__(self) -> str:
        return self._base_url

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedServer]:
    ours = Contestant("mendgraph", "default", [sys.executable, "-c", WRITER])
    with ScriptedServer(then=lambda _: Say("Hello\n")) as server:
        monkeypatch.setattr(run, "EmbeddedServer", lambda: Server(server.base_url))
        monkeypatch.setattr(run, "why_unavailable", lambda: None)
        monkeypatch.setattr(run, "our_contestants", lambda *_, **__: [ours])
        monkeypatch.setattr(run, "ALL_TASKS", (task("a"), task("b", "held_out", text="Bye\n")))
        monkeypatch.setattr(run, "tasks_digest", lambda: "digest")
        monkeypatch.setattr(run, "REPLIES", tmp_path / "replies")
        monkeypatch.setenv("COLUMNS", "200")
        yield server


def evaluate(tmp_path: Path, *arguments: str) -> int:
    return run.main(["--out", str(tmp_path / "out"), *arguments])


def test_every_task_has_a_result_and_the_table_shows_them(
    scripted: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(tmp_path, "--no-cache") == 0
    printed = capsys.readouterr().out
    assert "mendgraph default a: solved [1 calls, " in printed
    assert "mendgraph default b: not solved (done): hello.txt says something else [1 calls, " in printed
    assert "| mendgraph | default | 1/2 | 1/1 | 0/1 | 1.0 |" in printed
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    assert (summary["tasks"], summary["tasks_digest"], summary["scores"][0]["solved"]) == (
        ["a", "b"],
        "digest",
        {"solved": 1, "total": 2},
    )
    assert len(scripted.requests) == 2


def test_what_has_a_result_is_not_run_again_unless_asked_for(scripted: ScriptedServer, tmp_path: Path) -> None:
    counts = []
    for more in (["--tasks", "a"], [], [], ["--fresh", "--tasks", "b"]):
        evaluate(tmp_path, "--no-cache", *more)
        counts.append(len(scripted.requests))
    assert counts == [1, 2, 2, 3]
    records = read_records((tmp_path / "out" / "results.jsonl").read_text("utf-8"))
    assert [record.task for record in records] == ["a", "b"]


@pytest.mark.usefixtures("scripted")
def test_an_interruption_keeps_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def interrupted(contestant: Contestant, chosen: Task, endpoint: MeasuredEndpoint) -> RunRecord:
        if done:
            raise KeyboardInterrupt
        done.append(chosen.name)
        return run_task(contestant, chosen, endpoint)

    monkeypatch.setattr(run, "run_task", interrupted)
    assert evaluate(tmp_path, "--no-cache") == 130
    assert "| mendgraph | default | 1/1 | 1/1 | - |" in capsys.readouterr().out


@pytest.mark.usefixtures("scripted")
def test_a_rival_that_cannot_be_prepared_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "prepare", lambda name: f"no environment for {name}")
    assert evaluate(tmp_path, "--no-cache", "--tasks", "a", "--against", "aider") == 1
    assert "aider is left out: no environment for aider" in capsys.readouterr().out


@pytest.mark.usefixtures("scripted")
def test_a_task_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(tmp_path, "--tasks", "z") == 1
    assert capsys.readouterr().out == "no task is called z: there are a, b\n"
