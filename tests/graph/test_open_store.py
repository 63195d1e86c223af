"""What can go wrong with a workspace, its store or its runs, for each function that takes a run."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from graph.run import RunResult, run_task
from graph.runs import RunState, get_run, list_runs, open_run, prune_runs, resume_run, steps_of
from graph.time_travel import fork_run, undo_run
from nodes.execute_tools.environment.run_folder import workspace_folder, workspace_folder_path
from nodes.execute_tools.environment.run_lock import Owner, RunLock
from nodes.records import StopReason, ToolError, ToolErrorCode
from tests.broken_stores import make_unusable
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.graph.run_plays import context, error, listed, played, project, tree


@pytest.fixture
def folder(any_store: str, tmp_path: Path) -> Path:  # noqa: ARG001 - each test runs with both
    return project(tmp_path / "project")


ALL: Mapping[str, Callable[[str, str], object]] = {
    "list": lambda _, root: list_runs(root),
    "get": get_run,
    "steps": steps_of,
    "resume": resume_run,
    "open": open_run,
    "undo": undo_run,
    "fork": lambda run, root: fork_run(run, 0, root),
    "prune": lambda _, root: prune_runs(root, keep=0),
}
OF_ONE_RUN = [name for name in ALL if name not in {"list", "prune"}]


@pytest.mark.parametrize("name", OF_ONE_RUN)
def test_an_unknown_run_is_an_error_that_says_where_to_look(folder: Path, name: str) -> None:
    assert error(ALL[name]("zz", str(folder))) == ToolError(
        code=ToolErrorCode.NOT_FOUND,
        message="There is no run 'zz' in this workspace: `mendgraph runs` lists those that there are.",
    )


@pytest.mark.parametrize("name", OF_ONE_RUN)
def test_of_several_runs_all_are_named(folder: Path, name: str) -> None:
    for run_id in ("my-1", "my-2"):
        run_task("Hello", context(folder), model=HistoryModel((Say("Hi."),)), thread_id=run_id)
    refused = error(ALL[name]("my-", str(folder)))
    assert (refused.code, set(refused.suggestions)) == (ToolErrorCode.INVALID_ARGUMENT, {"my-1", "my-2"})


@pytest.mark.parametrize("name", ALL)
def test_a_folder_that_is_no_workspace_is_an_error(tmp_path: Path, name: str) -> None:
    assert error(ALL[name]("zz", str(tmp_path / "none"))).code is ToolErrorCode.NOT_FOUND
    assert isinstance(ALL[name]("zz", "/"), ToolError)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        *(("torn", name) for name in ALL),
        *((damage, name) for damage in ("newer", "foreign") for name in ("list", "undo")),
    ],
)
def test_a_store_that_cannot_be_used_is_an_error_that_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    run = played(folder)
    said = make_unusable(workspace_folder_path(str(folder)), monkeypatch, damage)
    refused = error(ALL[name](run.thread_id, str(folder)))
    assert refused.code is ToolErrorCode.IO_ERROR
    assert said in refused.message


@pytest.mark.parametrize("name", ["undo", "fork", "prune"])
def test_while_another_run_works_here_nothing_is_changed(folder: Path, name: str) -> None:
    run, after = played(folder), tree(folder)
    store_folder = workspace_folder(str(folder))
    assert isinstance(store_folder, str)
    with RunLock(store_folder) as lock:
        assert lock.acquire(Owner("somebody")) is None
        busy = error(ALL[name](run.thread_id, str(folder)))
        result = resume_run(run.thread_id, str(folder))
    assert (busy.code, "somebody" in busy.message, str(os.getpid()) in busy.message) == (
        ToolErrorCode.UNAVAILABLE,
        True,
        True,
    )
    assert isinstance(result, RunResult)
    assert result.outcome.reason is StopReason.WORKSPACE_BUSY
    assert (tree(folder), listed(folder)) == (after, [(run.thread_id, RunState.FINISHED)])
    assert not isinstance(ALL[name](run.thread_id, str(folder)), ToolError)
