import json
import sys
from pathlib import Path

import pytest

from benchmarks.real_model.contestants import Contestant, run_task
from benchmarks.real_model.endpoint import MeasuredEndpoint
from benchmarks.real_model.score import scores
from benchmarks.real_model.task import Task, write_files
from benchmarks.real_model.tasks import public

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


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_files(tmp_path / public.OCTOPACK, {public.REPAIRS: json.dumps(REPAIR) + "\n"})
    write_files(tmp_path / public.EXERCISM / "exercises/practice/leap", EXERCISE)
    return tmp_path


@pytest.mark.parametrize("tasks_of", [public.exercism, public.humanevalfix])
def test_public_task_is_unsolved_at_first_and_solved_by_its_reference(tasks_of: type, data: Path) -> None:
    task: Task
    [task] = tasks_of(data)
    workspace = data / "workspace"
    write_files(workspace, task.files)
    assert task.check(workspace, "")
    write_files(workspace, task.solution)
    assert task.check(workspace, "") is None


def test_second_try_of_an_exercise_is_told_what_its_tests_print(data: Path) -> None:
    [task] = public.exercism(data)
    write_files(data / "workspace", task.files)
    told = task.check(data / "workspace", "") or ""
    assert ("leap_test.py:4: in test_leap" in told, "Fix the code in leap.py" in task.again) == (True, True)
    assert ("Say True." in task.request, "leap_test.py" in task.files) == (True, False)


WORKER = """
import json, pathlib, sys
asked = json.loads(sys.stdin.read())
if asked["said"]:
    pathlib.Path(asked["workspace"], "leap.py").write_text("def leap():\\n    return True\\n")
print(json.dumps({"ended": "done", "answer": str(len(asked["said"]))}))
"""


def test_second_try_is_made_once_where_the_first_has_not_solved_it(data: Path) -> None:
    [exercise], [repair] = public.exercism(data), public.humanevalfix(data)
    worker = Contestant("worker", "default", [sys.executable, "-c", WORKER])
    with MeasuredEndpoint(lambda: "", "model") as endpoint:
        runs = [run_task(worker, task, endpoint) for task in (exercise, repair)]
    assert [(run.tries, run.problem is None, run.end.answer) for run in runs] == [(2, True, "1"), (1, False, "0")]
    [row] = scores(runs)
    assert (str(row.solved), str(row.first), row.wrong_claims) == ("1/2", "0/2", 1)


def test_what_cannot_be_fetched_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = str(tmp_path / "nowhere")
    monkeypatch.setitem(public.SOURCES, public.EXERCISM, nowhere)
    with pytest.raises(OSError, match="put a clone of it at"):
        public.exercism(tmp_path)
