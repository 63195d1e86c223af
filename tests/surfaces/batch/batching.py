"""What whole batches use: a repository, a model that answers from the history, and their results."""

import subprocess
from pathlib import Path
from typing import Any

from mendgraph import AgentContext, BatchResult, BatchTask, ToolError, run_batch
from tests.crash import batch_play
from tests.workspace_files import write_files


def repository(folder: Path) -> Path:
    """A repository with a file for each task, in `folder`."""
    write_files(folder, batch_play.files())
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@example.org commit -qm first"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)
    return folder


def first_tasks(folder: Path, count: int, **changed: Any) -> list[BatchTask]:
    """The first tasks of the batch, on the repository in `folder`."""
    return [task.model_copy(update=changed) for task in batch_play.tasks(str(folder))[:count]]


def run_to_result(tasks: Any, out: Path, base_url: str, **options: Any) -> BatchResult:
    """The result of a batch that could start."""
    settings = options.pop("settings", {})
    context = AgentContext(**{**batch_play.context(base_url).model_dump(), **settings})
    result = run_batch(tasks, out=out, context=context, **options)
    assert not isinstance(result, ToolError), result.message
    return result


def apply_patch(copy: Path, patch: Path) -> dict[str, str]:
    """The files of a fresh checkout after the patch was applied to it, those at its top."""
    subprocess.run(["git", "apply", str(patch)], cwd=copy, check=True)
    return {path.name: path.read_text() for path in copy.glob("*.txt")}
