"""`run_batch`: its arguments and what it answers; whole batches are in `tests/runs/test_batch.py`."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph import BatchResult, BatchTask, TaskResult, run_batch
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.batch import Batch, Crew, Terms, check_crew, prepare, terms_problem
from mendgraph.graph.fleet.batch.local import ProcessExecutor, ThreadExecutor
from mendgraph.graph.fleet.batch.tasks import Worked, failed
from mendgraph.graph.machine.build import SessionOptions
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode
from tests.graph.fleet.batch.scripted_work import done


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.fleet.batch.local.work", lambda given, *_: done(given))


def test_results_are_told_once_they_are_written(tmp_path: Path) -> None:
    told: list[TaskResult] = []
    tasks = [BatchTask(id=name, prompt="p", workspace=str(tmp_path)) for name in ("a", "b")]
    found = run_batch(tasks, out=tmp_path / "out", on_result=told.append, durability="async")
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


def test_task_without_a_result_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ToolError(code=ToolErrorCode.RATE_LIMITED, message="Too much.")
    monkeypatch.setattr(
        "mendgraph.graph.fleet.batch.local.work", lambda given, *_: Worked(failed(given, error, "day_limit"))
    )
    told: list[TaskResult] = []
    task = BatchTask(id="a", prompt="p", workspace=str(tmp_path))
    found = run_batch([task], out=tmp_path / "out", on_result=told.append)
    assert isinstance(found, BatchResult)
    assert (told, found.left) == ([], 1)


LINE = '{"id": "a", "prompt": "p", "workspace": "w"}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    (tmp_path / "tasks.jsonl").write_text(LINE)
    return tmp_path / "tasks.jsonl"


@pytest.mark.parametrize(("processes", "kind"), [(1, ThreadExecutor), (2, ProcessExecutor)])
def test_batch_is_ready_in_its_folder(file: Path, processes: int, kind: type) -> None:
    ready = prepare(str(file), Terms(), Crew(2, processes))
    assert isinstance(ready, Batch)
    with ready.folder:
        assert ready.folder.path == str(file.parent / "tasks.batch")
        assert isinstance(ready.executor, kind)
    again = prepare(file, Terms(), Crew())
    assert isinstance(again, Batch)
    again.folder.close()


def test_workspace_that_is_not_there_is_told_before_anything_begins(file: Path) -> None:
    file.write_text(LINE.replace('"w"', '"none"'))
    assert isinstance(prepare(str(file), Terms(), Crew()), tuple)
    file.write_text(LINE)
    ready = prepare(str(file), Terms(), Crew())
    assert isinstance(ready, Batch)
    with ready.folder:
        assert ready.folder.begun == {}


def test_tasks_of_a_program_are_looked_at_as_well(file: Path) -> None:
    task = BatchTask(id="a", prompt="p", workspace=str(file.parent / "w"))
    found = prepare([task, task.model_copy(update={"id": "A"})], Terms(), Crew(), out=str(file.parent / "out"))
    assert isinstance(found, tuple)
    assert [str(each) for each in found] == [
        "tasks:2: the id 'a' is there already: give each task an id of its own, whatever its capitals (line 1)"
    ]
    wrong: Any = ["a"]
    with pytest.raises(TypeError, match="str is no BatchTask"):
        prepare(wrong, Terms(), Crew(), out=str(file.parent / "out"))


def test_folder_that_cannot_be_taken_is_an_error(file: Path) -> None:
    assert isinstance(prepare(str(file), Terms(), Crew(), out=str(file.parent)), ToolError)
    first = prepare(str(file), Terms(), Crew())
    assert isinstance(first, Batch)
    with first.folder:
        first.folder.begin(BatchTask(id="a", prompt="old", workspace="w"))
    changed = prepare(str(file), Terms(), Crew())
    assert isinstance(changed, ToolError)
    assert changed.message.startswith("1 task was changed after it was begun in this folder")
    file.write_text(LINE.replace('"a"', '"b"').replace('"w"', '"none"'))
    assert isinstance(prepare(str(file), Terms(), Crew()), tuple)


@pytest.mark.parametrize(
    ("terms", "crew", "problem"),
    [
        (Terms(), Crew(), None),
        (Terms(AgentContext(mode="ask")), Crew(), 'mode: "ask" needs a person'),
        (Terms(max_cost_usd=0.0), Crew(), "max_cost_usd_per_account: Input should be greater than or equal to 0.0001"),
        (Terms(AgentContext(account="us"), max_tokens=5), Crew(), "account: a limit for the whole batch"),
        (Terms(AgentContext(account="us")), Crew(), None),
        (Terms(), Crew(4, 2), "processes: the embedded model would be loaded by each of them"),
        (Terms(AgentContext(model="m", base_url="http://127.0.0.1:1/v1")), Crew(4, 2), None),
    ],
)
def test_terms_that_cannot_be_kept_are_told(
    monkeypatch: pytest.MonkeyPatch, terms: Terms, crew: Crew, problem: str | None
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    found = terms_problem(terms, crew)
    assert found is None if problem is None else found is not None and found.startswith(problem)


@pytest.mark.parametrize(
    ("crew", "options", "problem"),
    [
        (Crew(0), {}, "workers: 0 is no number from 1 to 10,000"),
        (Crew(4, 10_001), {}, "processes: 10001 is no number"),
        (Crew(on="dask"), {}, "on: 'dask' is unknown"),  # type: ignore[arg-type]
        (Crew(), {"thread_id": "x"}, "thread_id, checkpointer: each task"),
        (Crew(4, 2), {"secrets": ("s",)}, "secrets: these cannot be sent to other processes"),
    ],
)
def test_crew_that_cannot_work_is_refused(crew: Crew, options: SessionOptions, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_crew(crew, options)


def test_options_of_a_session_are_checked_before_anything_begins() -> None:
    wrong: Any = {"tools": "all of them"}
    with pytest.raises(TypeError, match="give a sequence of tools"):
        check_crew(Crew(), wrong)
    check_crew(Crew(), {"secrets": ("s",)})


def test_cluster_is_asked_when_ray_is_to_do_the_work(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ToolError(code=ToolErrorCode.UNAVAILABLE, message="There is no cluster.")
    asked: list[dict[str, object]] = []

    def ray_executor(context: AgentContext, folder: str, **options: object) -> ToolError:
        asked.append({"context": context, "folder": folder, **options})
        return error

    monkeypatch.setitem(sys.modules, "mendgraph.graph.fleet.batch.on_ray", SimpleNamespace(ray_executor=ray_executor))
    terms = Terms(AgentContext(model="m", max_steps=3))
    assert prepare(str(file), terms, Crew(2, 1, "ray", "head:1")) is error
    asking = {"workers": 2, "address": "head:1", "context": AgentContext(model="m", max_steps=3)}
    assert asked == [asking | {"folder": str(file.parent / "tasks.batch")}]
    ready = prepare([], terms, Crew(), out=str(file.parent / "tasks.batch"))
    assert isinstance(ready, Batch)
    ready.folder.close()
