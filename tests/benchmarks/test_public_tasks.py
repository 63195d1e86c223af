"""Tasks of public collections are unsolved at first and solved by their reference."""

import json
from pathlib import Path

import pytest

from benchmarks.real_model.task import Task, write_files
from benchmarks.real_model.tasks import public
from tests.extent import slow

REPAIR = {
    "entry_point": "double",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "buggy_solution": "    return x\n",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(double):\n    assert double(2) == 4\ncheck(double)\n",
}
EXERCISE = {
    ".meta/config.json": json.dumps(
        {"files": {"solution": ["leap.py"], "test": ["leap_test.py"], "example": [".meta/example.py"]}}
    ),
    ".meta/example.py": "def leap():\n    return True\n",
    ".docs/instructions.md": "# Instructions\n\nSay True.\n",
    "leap.py": "def leap():\n    pass\n",
    "leap_test.py": "from leap import leap\n\ndef test_leap():\n    assert leap()\n",
}


@slow
@pytest.mark.parametrize("tasks_of", [public.exercism, public.humanevalfix])
def test_public_task_is_unsolved_at_first_and_solved_by_its_reference(tasks_of: type, tmp_path: Path) -> None:
    write_files(tmp_path / public.OCTOPACK, {public.REPAIRS: json.dumps(REPAIR) + "\n"})
    write_files(tmp_path / public.EXERCISM / "exercises/practice/leap", EXERCISE)
    task: Task
    [task] = tasks_of(tmp_path)
    assert "leap_test.py" not in task.files
    workspace = tmp_path / "workspace"
    write_files(workspace, task.files)
    assert task.check(workspace, "")
    write_files(workspace, task.solution)
    assert task.check(workspace, "") is None
