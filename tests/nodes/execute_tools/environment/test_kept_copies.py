"""Kept results go along with a conversation that is taken up in another run."""

import stat
from pathlib import Path

import pytest

from nodes.execute_tools.environment.kept_copies import copy_kept_results
from nodes.execute_tools.environment.kept_results import KeptResults
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE, run_folder, run_folder_path
from nodes.records import ToolError


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "data"))
    return tmp_path / "data"


def kept(run_id: str, workspace: str = "w") -> KeptResults:
    folder = run_folder(run_id)
    assert isinstance(folder, str)
    return KeptResults(f"{folder}/results-{workspace}")


def text(run_id: str, reference: str, workspace: str = "w") -> bytes:
    opened = kept(run_id, workspace).open(reference)
    assert not isinstance(opened, ToolError), opened
    with opened:
        return opened.stream.read()


def test_the_new_run_reads_what_the_old_one_kept_and_keeps_its_own(data: Path) -> None:
    references = [kept("old").keep("one"), kept("old").keep("two"), kept("old", "v").keep("three")]
    Path(run_folder_path("old"), "audit.jsonl").write_text("{}", encoding="utf-8")
    copy_kept_results("old", "new")
    assert references == ["@result/1", "@result/2", "@result/1"]
    assert [text("new", "@result/1"), text("new", "@result/2"), text("new", "@result/1", "v")] == [
        b"one",
        b"two",
        b"three",
    ]
    assert kept("new").keep("four") == "@result/3"
    assert isinstance(kept("old").open("@result/3"), ToolError)
    assert not Path(run_folder_path("new"), "audit.jsonl").exists()
    folder = Path(run_folder_path("new"), "results-w")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "1.txt")] == [0o700, 0o600]
    assert data in folder.parents


def test_a_run_that_has_kept_nothing_leaves_nothing() -> None:
    copy_kept_results("old", "new")
    assert kept("old")
    copy_kept_results("old", "new")
    assert not Path(run_folder_path("new")).exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    kept("old")
    (tmp_path / "elsewhere").mkdir()
    Path(run_folder_path("old"), "results-w").symlink_to(tmp_path / "elsewhere")
    copy_kept_results("old", "new")
    assert not Path(run_folder_path("new")).exists()


def test_a_disk_that_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    kept("old").keep("one")
    monkeypatch.setattr("shutil.copytree", full)
    copy_kept_results("old", "new")
    assert isinstance(kept("new").open("@result/1"), ToolError)
