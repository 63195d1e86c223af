"""`run_batch`: its arguments and what it answers; whole batches are in `tests/surfaces/batch/test_whole_batches.py`."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph import AgentContext, BatchResult, BatchTask, TaskResult, ToolError, run_batch
from mendgraph.graph.fleet.batch import local
from mendgraph.graph.fleet.batch.batch import Batch, Crew, Terms, check_crew, prepare, terms_problem
from mendgraph.graph.fleet.batch.local import ProcessExecutor, ThreadExecutor
from mendgraph.nodes.records import ToolErrorCode
from tests.row_tables import rows
from tests.surfaces.batch.scripted_work import done

LINE = '{"id": "a", "prompt": "p", "workspace": "w"}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    (tmp_path / "tasks.jsonl").write_text(LINE)
    return tmp_path / "tasks.jsonl"


def prepared(file: Path, crew: Crew | None = None, terms: Terms | None = None) -> Any:
    return prepare(str(file), terms or Terms(), crew or Crew())


def test_results_are_told_once_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "work", lambda given, *_: done(given))
    told: list[TaskResult] = []
    tasks = [BatchTask(id=name, prompt="p", workspace=str(tmp_path)) for name in ("a", "b")]
    result = run_batch(tasks, out=tmp_path / "out", on_result=told.append, durability="async")
    assert isinstance(result, BatchResult)
    assert result.ok
    assert sorted(each.id for each in told) == ["a", "b"]
    assert [*result.results()] == told
    again = run_batch(tasks, out=tmp_path / "out")
    assert isinstance(again, BatchResult)
    assert again.ok


def test_wrong_arguments_are_raised_and_wrong_tasks_are_one_error(tmp_path: Path) -> None:
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
def test_batch_is_ready_in_its_folder_and_leaves_it_to_the_next(file: Path, processes: int, kind: type) -> None:
    for _ in range(2):
        ready = prepared(file, Crew(2, processes))
        with ready.folder:
            assert ready.folder.path == str(file.parent / "tasks.batch")
            assert isinstance(ready.executor, kind)


def test_problem_of_a_task_is_told_before_anything_begins_and_leaves_the_folder_free(file: Path) -> None:
    file.write_text(LINE.replace('"w"', '"none"'))
    assert isinstance(prepared(file), tuple)
    file.write_text(LINE)
    with prepared(file).folder as folder:
        assert folder.begun_hashes == {}
        folder.begin(BatchTask(id="a", prompt="old", workspace="w"))
    changed = prepared(file)
    assert isinstance(changed, ToolError)
    assert changed.message.startswith("1 task was changed after it was begun in this folder")
    file.write_text(LINE.replace('"a"', '"b"').replace('"w"', '"none"'))
    assert isinstance(prepared(file), tuple)


def test_tasks_of_a_program_are_looked_at_as_well(file: Path) -> None:
    task = BatchTask(id="a", prompt="p", workspace=str(file.parent / "w"))
    out = str(file.parent / "out")
    problems = prepare([task, task.model_copy(update={"id": "A"})], Terms(), Crew(), out=out)
    assert isinstance(problems, tuple)
    assert [str(each) for each in problems] == [
        "tasks:2: the id 'a' is there already: give each task an id of its own, whatever its capitals (line 1)"
    ]
    wrong: Any = ["a"]
    with pytest.raises(TypeError, match="str is no BatchTask"):
        prepare(wrong, Terms(), Crew(), out=out)


TERMS = [
    (Terms(), Crew(), None),
    (Terms(AgentContext(mode="ask")), Crew(), 'mode: "ask" needs a person'),
    (Terms(max_cost_usd=0.0), Crew(), "max_cost_usd_per_account: Input should be greater than or equal to 0.0001"),
    (Terms(AgentContext(account="us"), max_tokens=5), Crew(), "account: a limit for the whole batch"),
    (Terms(AgentContext(account="us")), Crew(), None),
    (Terms(), Crew(4, 2), "processes: the embedded model would be loaded by each of them"),
    (Terms(AgentContext(model="m", base_url="http://127.0.0.1:1/v1")), Crew(4, 2), None),
]


@rows(*TERMS)
def test_terms_that_cannot_be_kept_are_told(terms: Any, crew: Any, words: Any) -> None:
    problem = terms_problem(terms, crew)
    assert problem is None if words is None else problem is not None and problem.startswith(words)


CREWS: list[tuple[Crew, Any, str]] = [
    (Crew(0), {}, "workers: 0 is no number from 1 to 10,000"),
    (Crew(4, 10_001), {}, "processes: 10001 is no number"),
    (Crew(on="dask"), {}, "on: 'dask' is unknown"),  # type: ignore[arg-type]
    (Crew(), {"thread_id": "x"}, "thread_id, checkpointer: each task"),
    (Crew(4, 2), {"secrets": ("s",)}, "secrets: these cannot be sent to other processes"),
    (Crew(), {"tools": "all of them"}, "give a sequence of tools"),
]


def test_crew_that_cannot_work_is_refused(subtests: pytest.Subtests) -> None:
    for crew, options, words in CREWS:
        with subtests.test(words=words), pytest.raises((TypeError, ValueError), match=words):
            check_crew(crew, options)
    check_crew(Crew(), {"secrets": ("s",)})


def test_cluster_is_asked_when_ray_is_to_do_the_work(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ToolError(code=ToolErrorCode.UNAVAILABLE, message="There is no cluster.")
    asked: list[dict[str, object]] = []

    def ray_executor(context: AgentContext, folder: str, **options: object) -> ToolError:
        asked.append({"context": context, "folder": folder, **options})
        return error

    monkeypatch.setitem(sys.modules, "mendgraph.graph.fleet.batch.on_ray", SimpleNamespace(ray_executor=ray_executor))
    context = AgentContext(model="m", max_steps=3)
    assert prepared(file, Crew(2, 1, "ray", "head:1"), Terms(context)) is error
    assert asked == [
        {"context": context, "folder": str(file.parent / "tasks.batch"), "workers": 2, "address": "head:1"}
    ]
    ready = prepared(file)
    assert isinstance(ready, Batch)
    ready.folder.close()
