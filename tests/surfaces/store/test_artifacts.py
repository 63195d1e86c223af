"""Results that are too large for a model's window, stored in the run's own folder."""

import errno
import os
import stat
from pathlib import Path

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store.run_folder import (
    DATA_DIR_VARIABLE,
    Artifacts,
    copy_artifacts,
    run_folder,
    run_folder_path,
)
from tests.doubles.system_calls import failing, replaced


def read(artifacts: Artifacts, reference: str) -> bytes:
    opened = artifacts.open(reference)
    assert not isinstance(opened, ToolError), opened
    with opened:
        data = opened.stream.read()
    assert (opened.path, opened.size) == (reference, len(data))
    return data


# --- What is not kept ------------------------------------------------------------------------------------------


def test_size_of_stored_results_is_limited(tmp_path: Path) -> None:
    artifacts = Artifacts(str(tmp_path), max_bytes=10, max_total=25)
    assert artifacts.keep("é" * 6) is None
    assert [artifacts.keep("x" * 10), artifacts.keep("y" * 10)] == ["@result/1", "@result/2"]
    assert [artifacts.keep("z" * 6), artifacts.keep("z" * 5), artifacts.keep("")] == [None, "@result/3", "@result/4"]
    assert artifacts.keep("z") is None

    artifacts = Artifacts(str(tmp_path / "default"))
    assert artifacts.keep("x" * 10_000_001) is None
    assert artifacts.keep("x" * 10_000_000) == "@result/1"
    with (tmp_path / "default" / "1.txt").open("r+b") as file:
        file.truncate(99_999_999)
    assert [artifacts.keep("xx"), artifacts.keep("x")] == [None, "@result/2"]


def test_full_disk_leaves_no_file(tmp_path: Path) -> None:
    with failing("fdopen", number=errno.ENOSPC):
        assert Artifacts(str(tmp_path)).keep("x") is None
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_a_link_a_file_or_another_users_is_not_used(tmp_path: Path) -> None:
    for number, target in enumerate(("..", "nowhere", "")):
        folder = tmp_path / str(number) / "results"
        folder.parent.mkdir()
        if target:
            folder.symlink_to(target)
        else:
            folder.touch()
        artifacts = Artifacts(str(folder))
        assert artifacts.keep("x") is None
        assert isinstance(artifacts.open("@result/1"), ToolError)
        assert list(folder.parent.iterdir()) == [folder]

    (tmp_path / "own").mkdir()
    artifacts = Artifacts(str(tmp_path / "own"))
    artifacts.keep("x")
    with replaced(geteuid=lambda: tmp_path.stat().st_uid + 1):
        assert artifacts.keep("y") is None
        opened = artifacts.open("@result/1")
    assert isinstance(opened, ToolError)
    assert opened.code is ToolErrorCode.PERMISSION_DENIED
    assert len(list((tmp_path / "own").iterdir())) == 1


# --- What is not opened ----------------------------------------------------------------------------------------


def test_unknown_reference_error_names_the_existing_ones(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    artifacts = Artifacts(str(tmp_path / "results"))
    artifacts.keep("a")
    artifacts.keep("b")
    for reference in ("@result/3", "../secret"):
        opened = artifacts.open(reference)
        assert isinstance(opened, ToolError)
        assert (opened.code, opened.suggestions) == (ToolErrorCode.NOT_FOUND, ("@result/2", "@result/1"))


def test_link_or_fifo_is_neither_opened_nor_replaced(tmp_path: Path) -> None:
    (tmp_path / "1.txt").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "2.txt")
    artifacts = Artifacts(str(tmp_path))
    assert isinstance(artifacts.open("@result/1"), ToolError)
    assert isinstance(artifacts.open("@result/2"), ToolError)
    assert artifacts.keep("x") == "@result/3"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "data"))
    return tmp_path / "data"


def artifacts_of(run_id: str, workspace: str = "w") -> Artifacts:
    folder = run_folder(run_id)
    assert isinstance(folder, str)
    return Artifacts(f"{folder}/results-{workspace}")


def text(run_id: str, reference: str, workspace: str = "w") -> bytes:
    opened = artifacts_of(run_id, workspace).open(reference)
    assert not isinstance(opened, ToolError), opened
    with opened:
        return opened.stream.read()


def test_forked_run_reads_the_old_results_and_stores_its_own(data: Path) -> None:
    references = [
        artifacts_of("old").keep("one"),
        artifacts_of("old").keep("two"),
        artifacts_of("old", "v").keep("three"),
    ]
    Path(run_folder_path("old"), "audit.jsonl").write_text("{}", encoding="utf-8")
    copy_artifacts("old", "new")
    assert references == ["@result/1", "@result/2", "@result/1"]
    assert [text("new", "@result/1"), text("new", "@result/2"), text("new", "@result/1", "v")] == [
        b"one",
        b"two",
        b"three",
    ]
    assert artifacts_of("new").keep("four") == "@result/3"
    assert isinstance(artifacts_of("old").open("@result/3"), ToolError)
    assert not Path(run_folder_path("new"), "audit.jsonl").exists()
    folder = Path(run_folder_path("new"), "results-w")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "1.txt")] == [0o700, 0o600]
    assert data in folder.parents


def test_link_among_the_results_is_copied_as_a_link(tmp_path: Path) -> None:
    artifacts_of("old").keep("one")
    (tmp_path / "secret").write_text("secret")
    (Path(run_folder_path("old")) / "results-w" / "2.txt").symlink_to(tmp_path / "secret")

    copy_artifacts("old", "new")

    assert (Path(run_folder_path("new")) / "results-w" / "2.txt").is_symlink()
    assert isinstance(artifacts_of("new").open("@result/2"), ToolError)
