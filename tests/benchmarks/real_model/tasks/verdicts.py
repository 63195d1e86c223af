"""What the check of a task says about a workspace that a test has prepared."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.real_model.task import Task, replace_once, write_files
from benchmarks.real_model.tasks import ALL_TASKS

TASKS = {task.name: task for task in ALL_TASKS}


def verdict(task: Task, written: Mapping[str, str | None] | None = None, answer: str = "") -> str | None:
    """The check's word on the task's files after `written` was done to them; paths may lead out of the workspace."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder, "workspace")
        workspace.mkdir()
        write_files(workspace, task.files)
        write_files(workspace, written or {})
        return task.check(workspace, answer)


def after(name: str, path: str, old: str, new: str) -> str | None:
    """The verdict on a task in whose file `old` was exchanged for `new`, and nothing else done."""
    task = TASKS[name]
    return verdict(task, {path: replace_once(task.files[path], old, new)})


def after_more(name: str, path: str, old: str, new: str) -> str | None:
    """The verdict on the reference solution, with one more exchange in one of its files."""
    task = TASKS[name]
    text = task.solution.get(path) or task.files[path]
    return verdict(task, {**task.solution, path: replace_once(text, old, new)})
