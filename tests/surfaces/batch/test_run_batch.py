"""`run_batch`: its arguments and its results; whole batches are in `tests/surfaces/batch/test_whole_batches.py`."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph import AgentContext, BatchResult, BatchTask, TaskResult, ToolError, run_batch
from mendgraph.graph.fleet.batch import executors
from mendgraph.graph.fleet.batch.batch import (
    Batch,
    BatchOptions,
    check_batch_options,
    check_session_options,
    prepare_batch,
)
from mendgraph.graph.fleet.batch.executors import ProcessExecutor, ThreadExecutor
from mendgraph.nodes.records import ToolErrorCode
from tests.row_tables import rows
from tests.surfaces.batch.scripted_work import done

LINE = '{"id": "a", "prompt": "p", "workspace": "w"}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    (tmp_path / "tasks.jsonl").write_text(LINE)
    return tmp_path / "tasks.jsonl"


def prepare(file: Path, **options: Any) -> Any:
    return prepare_batch(str(file), BatchOptions(**options))


def test_results_are_reported_after_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "run_order", lambda work_order, *_: done(work_order))
    reported: list[TaskResult] = []
    tasks = [BatchTask(id=name, prompt="p", workspace=str(tmp_path)) for name in ("a", "b")]
    result = run_batch(tasks, out=tmp_path / "out", on_result=reported.append, durability="async")
    assert isinstance(result, BatchResult)
    assert result.ok
    assert sorted(result.id for result in reported) == ["a", "b"]
    assert [*result.results()] == reported
    again = run_batch(tasks, out=tmp_path / "out")
    assert isinstance(again, BatchResult)
    assert again.ok


def test_wrong_arguments_raise_and_invalid_tasks_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="out: name the folder"):
        run_batch([])
    with pytest.raises(ValueError, match='mode: "ask" needs a person'):
        run_batch([], out=tmp_path / "out", context=AgentContext(mode="ask"))
    with pytest.raises(ValueError, match="workers: 0"):
        run_batch([], out=tmp_path / "out", workers=0)
    (tmp_path / "t.jsonl").write_text("{\n[]\n")
    wrong = run_batch(tmp_path / "t.jsonl")
    assert isinstance(wrong, ToolError)
    assert (wrong.code, len(wrong.message.splitlines())) == (ToolErrorCode.INVALID_ARGUMENT, 2)
    assert isinstance(run_batch([], out=tmp_path), ToolError)  # it holds something else


@pytest.mark.parametrize(("processes", "kind"), [(1, ThreadExecutor), (2, ProcessExecutor)])
def test_prepared_batch_locks_its_folder_until_it_is_closed(file: Path, processes: int, kind: type) -> None:
    for _ in range(2):
        ready = prepare(file, workers=2, processes=processes)
        with ready.folder:
            assert ready.folder.path == str(file.parent / "tasks.batch")
            assert isinstance(ready.executor, kind)


def test_problem_of_a_task_is_reported_first_and_releases_the_folder(file: Path) -> None:
    file.write_text(LINE.replace('"w"', '"none"'))
    assert isinstance(prepare(file), tuple)
    file.write_text(LINE)
    with prepare(file).folder as folder:
        assert folder.begun_hashes == {}
        folder.begin(BatchTask(id="a", prompt="old", workspace="w"))
    changed = prepare(file)
    assert isinstance(changed, ToolError)
    assert changed.message.startswith("1 task was changed after it was started in this folder")
    file.write_text(LINE.replace('"a"', '"b"').replace('"w"', '"none"'))
    assert isinstance(prepare(file), tuple)


def test_tasks_in_a_list_are_checked(file: Path) -> None:
    task = BatchTask(id="a", prompt="p", workspace=str(file.parent / "w"))
    out = str(file.parent / "out")
    problems = prepare_batch([task, task.model_copy(update={"id": "A"})], BatchOptions(), out=out)
    assert isinstance(problems, tuple)
    assert [str(problem) for problem in problems] == [
        "tasks:2: the id 'a' exists: each task needs a different id, whatever its case (line 1)"
    ]
    wrong: Any = ["a"]
    with pytest.raises(TypeError, match="str is not a BatchTask"):
        prepare_batch(wrong, BatchOptions(), out=out)


HOSTED = AgentContext(model="m", base_url="http://127.0.0.1:1/v1")
OPTIONS: list[tuple[BatchOptions, str]] = [
    (BatchOptions(), ""),
    (BatchOptions(AgentContext(mode="ask")), 'mode: "ask" needs a person'),
    (BatchOptions(max_cost_usd=0.0), "max_cost_usd_per_account: must be at least 0.0001"),
    (BatchOptions(AgentContext(account="us"), max_tokens=5), "account: a limit for the whole batch"),
    (BatchOptions(AgentContext(account="us")), ""),
    (BatchOptions(processes=2), "processes: the embedded model would be loaded by each of them"),
    (BatchOptions(HOSTED, processes=2), ""),
    (BatchOptions(workers=0), "workers: 0 is not a number from 1 to 10,000"),
    (BatchOptions(processes=10_001), "processes: 10001 is not a number"),
    (BatchOptions(on="dask"), "on: 'dask' is unknown"),  # type: ignore[arg-type]
]


@rows(*OPTIONS)
def test_wrong_options_are_refused(options: BatchOptions, message: str) -> None:
    if not message:
        check_batch_options(options)
        return
    with pytest.raises(ValueError, match=message):
        check_batch_options(options)


SESSION_OPTIONS: list[tuple[Any, str]] = [
    ({"thread_id": "x"}, "thread_id, checkpointer: each task"),
    ({"secrets": ("s",)}, "secrets: these cannot be sent to other processes"),
    ({"tools": "all of them"}, "use a sequence of tools"),
]


@rows(*SESSION_OPTIONS)
def test_session_options_that_a_worker_cannot_have_are_refused(options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_session_options(options, in_this_process="tools" in options)
    check_session_options({"secrets": ("s",)}, in_this_process=True)


def test_ray_executor_is_opened_for_on_ray(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ToolError(code=ToolErrorCode.UNAVAILABLE, message="There is no cluster.")
    arguments: list[dict[str, object]] = []

    def open_ray_executor(context: AgentContext, folder: str, **options: object) -> ToolError:
        arguments.append({"context": context, "folder": folder, **options})
        return error

    module = SimpleNamespace(open_ray_executor=open_ray_executor)
    monkeypatch.setitem(sys.modules, "mendgraph.graph.fleet.batch.on_ray", module)
    context = AgentContext(model="m", max_steps=3)
    assert prepare(file, context=context, workers=2, on="ray", address="head:1") is error
    assert arguments == [
        {"context": context, "folder": str(file.parent / "tasks.batch"), "workers": 2, "address": "head:1"}
    ]
    ready = prepare(file)
    assert isinstance(ready, Batch)
    ready.folder.close()
