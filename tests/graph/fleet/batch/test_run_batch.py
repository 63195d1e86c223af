"""`run_batch`: its arguments and what it answers; whole batches are in `tests/runs/test_batch.py`."""

from pathlib import Path

import pytest

from mendgraph import BatchResult, BatchTask, TaskResult, run_batch
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.orders import Worked, failed
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode
from tests.graph.fleet.batch.scripted_work import done


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.fleet.batch.local.work", lambda given, *_: done(given))


def test_results_are_told_once_they_are_written(tmp_path: Path) -> None:
    told: list[TaskResult] = []
    tasks = [BatchTask(id=name, prompt="p", workspace=str(tmp_path)) for name in ("a", "b")]
    found = run_batch(
        tasks, out=tmp_path / "out", work_folder=tmp_path / "w", on_result=told.append, durability="async"
    )
    assert isinstance(found, BatchResult)
    assert found.ok
    assert sorted(each.id for each in told) == ["a", "b"]
    assert [*found.results()] == told
    assert told[0].kind is OutcomeKind.FINISHED
    assert run_batch(tasks, out=tmp_path / "out").ok  # type: ignore[union-attr]


def test_what_is_wrong_with_tasks_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("{\n[]\n")
    found = run_batch(tmp_path / "t.jsonl")
    assert isinstance(found, ToolError)
    assert (found.code, len(found.message.splitlines())) == (ToolErrorCode.INVALID_ARGUMENT, 2)


def test_what_a_program_gets_wrong_is_raised(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="out: name the folder"):
        run_batch([])
    with pytest.raises(ValueError, match='mode: "ask" needs a person'):
        run_batch([], out=tmp_path / "out", context=AgentContext(mode="ask"))
    with pytest.raises(ValueError, match="workers: 0"):
        run_batch([], out=tmp_path / "out", workers=0)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    assert isinstance(run_batch([], out=tmp_path / "out"), ToolError)


def test_a_task_without_a_result_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ToolError(code=ToolErrorCode.RATE_LIMITED, message="Too much.")
    monkeypatch.setattr(
        "mendgraph.graph.fleet.batch.local.work", lambda given, *_: Worked(failed(given, error, "day_limit"))
    )
    told: list[TaskResult] = []
    task = BatchTask(id="a", prompt="p", workspace=str(tmp_path))
    found = run_batch([task], out=tmp_path / "out", on_result=told.append)
    assert isinstance(found, BatchResult)
    assert (told, found.left) == ([], 1)
