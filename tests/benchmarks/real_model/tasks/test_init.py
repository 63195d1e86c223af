from collections.abc import Sequence

import pytest

from benchmarks.real_model.task import Task
from benchmarks.real_model.tasks import ALL_TASKS, ORDERS
from tests.benchmarks.real_model.tasks.verdicts import verdict


def named(tasks: Sequence[Task]) -> list[object]:
    return [pytest.param(task, id=task.name) for task in tasks]


CHANGING = [task for task in (*ALL_TASKS, *ORDERS) if task.changes]


@pytest.mark.parametrize("task", named(CHANGING))
def test_untouched_workspace_is_not_solved(task: Task) -> None:
    assert verdict(task, answer="I have done what you asked for.") is not None


@pytest.mark.parametrize("task", named(CHANGING))
def test_solution_is_accepted(task: Task) -> None:
    assert verdict(task, task.solution) is None
