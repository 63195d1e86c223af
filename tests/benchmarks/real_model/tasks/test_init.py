from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.real_model.task import Kind, Task
from benchmarks.real_model.tasks import ALL_TASKS, tasks_digest
from tests.benchmarks.real_model.tasks.verdicts import verdict

SMALLEST: dict[Kind, int] = {
    "repair": 14,
    "one_file": 8,
    "several_files": 5,
    "other_files": 5,
    "new_files": 5,
    "unnamed": 4,
    "question": 4,
    "refusal": 3,
}


def named(tasks: Sequence[Task]) -> list[object]:
    return [pytest.param(task, id=task.name) for task in tasks]


CHANGING = [task for task in ALL_TASKS if task.changes]


def test_there_are_enough_tasks_of_each_kind() -> None:
    assert Counter(task.kind for task in ALL_TASKS) == SMALLEST


def test_the_halves_alternate() -> None:
    assert [task.half for task in ALL_TASKS] == ["dev", "held_out"] * (len(ALL_TASKS) // 2)


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(task.name for task in ALL_TASKS).items() if count > 1] == []


def test_only_questions_and_refusals_need_no_change() -> None:
    assert {task.kind for task in ALL_TASKS if not task.changes} == {"question", "refusal"}


@pytest.mark.parametrize("task", named(ALL_TASKS))
def test_requests_are_as_a_person_writes(task: Task) -> None:
    assert task.name.isidentifier()
    assert task.request == task.request.strip()
    assert "tool" not in task.request


@pytest.mark.parametrize("task", named([task for task in ALL_TASKS if task.kind == "unnamed"]))
def test_unnamed_tasks_name_no_file(task: Task) -> None:
    assert [path for path in task.files if path in task.request] == []


@pytest.mark.parametrize("task", named([task for task in ALL_TASKS if task.kind == "repair"]))
def test_repairs_are_of_one_line_in_a_small_program(task: Task) -> None:
    ((path, solved),) = task.solution.items()
    before, after = task.files[path].splitlines(), (solved or "").splitlines()
    assert len(before) == len(after)
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
    assert 15 <= len(before) <= 80


@pytest.mark.parametrize("task", named(CHANGING))
def test_an_untouched_workspace_is_not_solved(task: Task) -> None:
    assert verdict(task, answer="I have done what you asked for.") is not None


@pytest.mark.parametrize("task", named(CHANGING))
def test_the_solution_is_accepted(task: Task) -> None:
    assert verdict(task, task.solution) is None


def test_the_digest_is_that_of_the_texts() -> None:
    assert tasks_digest() == tasks_digest()
    assert len(tasks_digest()) == 64
    assert " at 0x" not in repr(ALL_TASKS)
