"""Whole batches against an endpoint: each task once, patches that apply, limits, cancellation, and failing tasks."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph import TaskResult, ToolError, list_runs, undo_run
from mendgraph.graph.fleet.batch.batch import Batch, BatchOptions, prepare_batch
from mendgraph.graph.fleet.batch.batch_folder import BatchEnd
from tests.crash import batch_play
from tests.crash.batch_play import number_of
from tests.doubles.replies import Calls, Reply, Say, Stall
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.surfaces.batch.batching import apply_patch, first_tasks, repository, run_to_result
from tests.vocabulary import JsonMap

FINISHED = "FINISHED"
CALLS = 3
"""Model calls of each task."""


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def model() -> Iterator[ScriptedServer]:
    with ScriptedServer(then=batch_play.answer) as server:
        yield server


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "repository")


def test_task_has_a_result_a_run_and_a_patch_that_applies(tmp_path: Path, model: ScriptedServer, project: Path) -> None:
    heard: list[TaskResult] = []
    out = tmp_path / "out"
    done = run_to_result(first_tasks(project, 4), out, model.base_url, workers=4, processes=2, on_result=heard.append)
    assert done.ok
    assert (done.total, done.left, done.tally.finished) == (4, 0, 4)
    assert done.tally.calls == len(model.requests) == 4 * CALLS
    results = {result.id: result for result in done.results()}
    assert list(results.values()) == heard
    assert sorted(results) == ["t0", "t1", "t2", "t3"]
    third = results["t3"]
    assert (third.kind, third.reason, third.answer) == (FINISHED, "answered", "Done 3.")
    assert third.changed == ("new3.txt", "old3.txt")
    assert (third.tries, third.resumed, third.error) == (1, False, None)
    fresh = repository(tmp_path / "fresh")
    files = apply_patch(fresh, out / third.patch)
    assert files == {**batch_play.files(), "old3.txt": "one\ntwo, two\n", "new3.txt": "made\n"}
    assert {path.read_text() for path in project.glob("*.txt")} == {"one\ntwo\n"}


@slow
def test_run_stopped_by_a_limit_keeps_its_result(tmp_path: Path, model: ScriptedServer, project: Path) -> None:
    tasks = first_tasks(project, 1, limits={"max_calls_per_turn": 2, "max_calls_per_session": 2})
    first = run_to_result(tasks, tmp_path / "out", model.base_url)
    (stopped,) = first.results()
    assert (stopped.kind, stopped.reason) == ("BUDGET_STOP", "max_calls_per_session")
    assert stopped.patch == "patches/t0.patch"
    assert (first.ok, first.end, first.tally.stopped) == (False, BatchEnd.COMPLETE, 1)
    (tmp_path / "out" / "results.jsonl").write_text("")
    (again,) = run_to_result(tasks, tmp_path / "out", model.base_url).results()
    assert again == stopped.model_copy(update={"seconds": again.seconds, "resumed": True})
    assert len(model.requests) == 2


def test_limit_stops_the_batch_and_a_higher_one_continues(tmp_path: Path, model: ScriptedServer, project: Path) -> None:
    out, settings = tmp_path / "out", {"max_output_tokens_per_call": 64}
    first = run_to_result(first_tasks(project, 4), out, model.base_url, workers=1, max_tokens=1_500, settings=settings)
    assert first.end is BatchEnd.LIMIT
    assert first.left is not None
    assert 0 < first.left <= 4
    assert "start the same batch again" in first.message
    calls = len(model.requests)
    same = run_to_result(first_tasks(project, 4), out, model.base_url, workers=1, max_tokens=1_500, settings=settings)
    assert (same.end, same.left) == (BatchEnd.LIMIT, first.left)
    assert len(model.requests) <= calls + 1
    last = run_to_result(
        first_tasks(project, 4), out, model.base_url, workers=1, max_tokens=10_000_000, settings=settings
    )
    assert last.ok
    assert sorted(result.id for result in last.results()) == ["t0", "t1", "t2", "t3"]


def stop_when(stalled: threading.Event, batch: Batch) -> None:
    assert stalled.wait(60)
    batch.cancel("by the test")


def test_cancelled_batch_continues(tmp_path: Path, project: Path) -> None:
    """In threads; `tests/surfaces/batch/test_executors.py` shows how processes are cancelled."""
    stalled, out = threading.Event(), tmp_path / "out"

    def answer(request: JsonMap) -> Reply:
        if number_of(request) == 1 and not stalled.is_set():
            stalled.set()
            return Stall(1, Say("I think"), seconds=3)
        return batch_play.answer(request)

    with ScriptedServer(then=answer) as model:
        options = BatchOptions(batch_play.context(model.base_url), workers=3)
        ready = prepare_batch(first_tasks(project, 3), options, out=str(out))
        assert isinstance(ready, Batch)
        stopper = threading.Thread(target=stop_when, args=(stalled, ready))
        stopper.start()
        with ready.folder:
            first = ready.run()
        stopper.join()
        assert first.end is BatchEnd.CANCELLED
        assert "stopped by the test" in first.message
        assert "t1" not in {result.id for result in first.results()}
        last = run_to_result(first_tasks(project, 3), out, model.base_url)
    assert last.ok
    (second,) = [result for result in last.results() if result.id == "t1"]
    assert second.resumed


@slow
def test_refusals_of_a_task_are_counted_over_all_starts(tmp_path: Path, project: Path) -> None:
    agents = Calls([("write_file", '{"path": "AGENTS.md", "content": "x"}')])
    for _ in range(2):
        with ScriptedServer([agents, Say("Done.")]) as server:
            done = run_to_result(first_tasks(project, 1), tmp_path / "out", server.base_url)
        assert str(done).startswith("1 of 1 task has a result: 1 finished; calls were refused in 1 task. ")
    [result] = done.results()
    assert [words.partition(" (")[0] for words in result.refused] == ["refused"]
    assert result.message == f"No file was changed: {result.refused[0]}."


@slow
def test_run_in_a_kept_copy_can_be_undone_and_its_copy_is_removed_with_it(
    tmp_path: Path, model: ScriptedServer, project: Path
) -> None:
    out = tmp_path / "out"
    (result,) = run_to_result(first_tasks(project, 1), out, model.base_url).results()
    runs = list_runs(result.copy_path)
    assert not isinstance(runs, ToolError)
    assert [(run.run_id, run.answer) for run in runs] == [(result.run_id, "Done 0.")]
    assert not isinstance(undo_run(result.run_id, result.copy_path), ToolError)
    assert (Path(result.copy_path) / "old0.txt").read_text() == "one\ntwo\n"
    assert not (Path(result.copy_path) / "new0.txt").exists()

    second = run_to_result(first_tasks(project, 2), out, model.base_url, remove_copies=True)
    assert second.ok
    assert [*(out / "work").iterdir()] == []
    assert [*(tmp_path / "data" / "workspaces").iterdir()] == []
    assert [*(tmp_path / "data" / "runs").iterdir()] == []
    assert (out / result.patch).is_file()
