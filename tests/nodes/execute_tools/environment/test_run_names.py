"""The names of runs for a shell: the newest first, and never a trace of having looked."""

from pathlib import Path

import pytest

from graph.runs import list_runs
from graph.store import Store
from nodes.execute_tools.environment.run_folder import workspace_folder_path
from nodes.execute_tools.environment.run_names import run_names
from nodes.execute_tools.environment.shared_name import give_shared_name
from tests.broken_stores import make_unusable
from tests.graph.run_plays import played, project


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def data(any_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001 - with both
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_the_newest_run_comes_first_and_nothing_is_written(tmp_path: Path, data: Path) -> None:
    folder = project(tmp_path / "project")
    for _ in range(2):
        played(folder)
    before = files(data)
    names = run_names(str(folder))
    assert files(data) == before
    runs = list_runs(str(folder))
    assert isinstance(runs, tuple)
    assert names == [(run.run_id, run.task) for run in runs]
    store = Store(str(folder))
    during = files(data)
    assert run_names(str(folder)) == names
    assert files(data) == during
    store.close()


def test_there_are_none_where_none_can_be_read(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (run_names(str(tmp_path)), data.exists()) == ([], False)
    folder = Path(workspace_folder_path(str(tmp_path)))
    folder.mkdir(parents=True)
    assert run_names(str(tmp_path)) == []
    give_shared_name(str(folder), "w")
    assert run_names(str(tmp_path)) == []
    make_unusable(str(folder), monkeypatch)
    assert run_names(str(tmp_path)) == []
