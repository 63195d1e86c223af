"""`mendgraph replay` at the command line, on a scripted endpoint."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.graph.fleet.replay import Replay, replay_run
from mendgraph.graph.runs.run import run_task
from mendgraph.graph.runs.runs import get_run
from mendgraph.graph.terminal.outcome_lines import path_words
from mendgraph.nodes.records import ToolError
from tests.doubles.replies import Calls, Reply, Say, Slow
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.providers.wire import JsonMap
from tests.surfaces.conftest import Command
from tests.surfaces.runs.run_plays import context, killed_run, run_lines, tree
from tests.surfaces.terminal.stopping import start_command
from tests.workspace.processes.git_places import git, write

WRITE = Calls([("write_file", '{"path": "new.txt", "content": "made\\n"}')])


def answer(request: JsonMap) -> Reply:
    """A file, and the answer; the model "lazy" only reads."""
    if request["messages"][-1]["role"] == "tool":
        return Say("Done.")
    if request["model"] == "lazy":
        return Calls([("read_file", '{"path": "calc.py"}')])
    return WRITE


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    with ScriptedServer(then=answer) as serving:
        yield serving


@pytest.fixture
def run(folder: Path, server: ScriptedServer) -> str:
    """A run that has written a file in two calls."""
    settings = context(folder, base_url=server.base_url, model="m", offer="all")
    return run_task("Write it.", settings).run_id


def test_replay_is_shown_beside_its_run(command: Command, folder: Path, run: str, server: ScriptedServer) -> None:
    before = tree(folder)
    code, out, err = command("replay", run[:8], "--model", "lazy", "--max-calls", "1")
    assert (code, tree(folder)) == (1, before)
    assert err == f"mendgraph: replay 1 of 1: run {run[:8]}\n"
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:5] == [
        f"run {run[:8]}: Write it.",
        "ORIGINAL REPLAY",
        "outcome FINISHED (answered) BUDGET_STOP (max_calls_per_turn)",
        "checks none none",
        "files new.txt none",
    ]
    assert lines[5:7] == ["model m lazy", "calls 2 1"]
    round_of_tools = "call_model parse guard execute_tools loop_check"
    assert lines[9:] == [
        f"path of the original: begin_turn, {round_of_tools}, call_model parse FINISHED",
        f"path of the replay: begin_turn, {round_of_tools} BUDGET_STOP",
        "the replay is worse",
    ]
    assert [request["model"] for request in server.requests] == ["m", "m", "lazy"]


@slow
def test_replay_as_json_has_both_runs_and_can_use_a_prompt_file_and_keep_its_copy(
    command: Command, run: str, server: ScriptedServer, tmp_path: Path
) -> None:
    (tmp_path / "prompt.md").write_text("Answer in Latin.")
    words = ("--prompt", str(tmp_path / "prompt.md"), "--copy", str(tmp_path / "copy"), "--json")
    code, out, _ = command("replay", run, *words)
    (replay,) = json.loads(out)["replays"]
    assert (code, replay["worse"], json.loads(out)["worse"]) == (0, False, [])
    assert (replay["run_id"], replay["original"]["nodes"]) == (run, replay["replay"]["nodes"])
    assert (Path(replay["copy"]) / "new.txt").read_text() == "made\n"
    assert replay["diff"].startswith("--- /dev/null\n+++ b/new.txt\n")
    assert "Answer in Latin." in server.requests[2]["messages"][0]["content"]


@slow
def test_replay_of_a_folder_covers_its_ended_runs(
    command: Command, folder: Path, run: str, server: ScriptedServer
) -> None:
    killed_run(folder, 0)
    second = run_lines(folder, (Say("Nothing to do."),)).run_id
    code, out, _ = command("replay", ".", "--base-url", server.base_url, "--model", "m")
    assert code == 0
    assert [line.partition(":")[0] for line in out.splitlines() if line.startswith("run ")] == [
        f"run {run[:8]}",
        f"run {second[:8]}",
    ]
    assert out.endswith("\n2 runs, 0 worse\n")


@slow
def test_run_that_cannot_be_replayed_fails_the_suite(command: Command, folder: Path, run: str) -> None:
    code, out, _ = command("replay", run, "--from", "7")
    assert code == 1
    assert "cannot be replayed: The run cannot be forked after step 7: it can be after one of the steps 0, 1." in out
    assert command("replay", "zz")[0] == 2
    (folder / "empty").mkdir()
    code, _, err = command("replay", "empty")
    assert code == 2
    assert "no run of these folders has ended, so there is nothing to replay" in err
    assert command("replay", run, run, "--copy", "copy")[0] == 2


@slow
def test_model_of_another_provider_is_not_called_at_the_base_url_of_the_run(
    folder: Path, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    settings = context(folder, base_url=server.base_url, model="m", offer="all", fallback_models=("n",))
    run = run_task("Write it.", settings).run_id
    replay = replay_run(run, folder, model="anthropic:claude-sonnet-4-5", copy=tmp_path / "copy")
    assert isinstance(replay, Replay)
    stored = get_run(replay.replay.run_id, replay.copy)
    assert not isinstance(stored, ToolError)
    assert (stored.context.base_url, stored.context.fallback_models) == (None, ())
    assert [request["model"] for request in server.requests] == ["m", "m"]


@slow
def test_replay_stopped_by_a_signal_leaves_no_worktree(tmp_path: Path) -> None:
    def waiting(_: JsonMap) -> Reply:
        running.send(signal.SIGTERM)
        return Slow(60, Say("Too late."))

    root = write(tmp_path / "root", {"a.py": "a = 1\n"})
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    with ScriptedServer([Say("Done."), waiting]) as server:
        with start_command(root, server.base_url, "Look here.") as first:
            assert first.end() == 0
        with start_command(root, server.base_url, "replay", ".", "--copy", "../copy") as running:
            assert running.end() == 143
    assert running.err.endswith("mendgraph: stopped by SIGTERM; the replays are not stored\n")
    assert len(git(root, "worktree", "list").splitlines()) == 1
    assert not (tmp_path / "copy").exists()


def test_repeated_rounds_of_a_path_are_counted() -> None:
    nodes = ["begin_turn", *["call_model", "parse", "heal"] * 3, "call_model", "parse", "FINISHED"]
    assert path_words(nodes) == "begin_turn, 3 x (call_model parse heal), call_model parse FINISHED"
    assert path_words([]) == "it has no checkpoint"
