"""Results that are too large for a model's window, kept in the run's own folder."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.store.run_folder import (
    DATA_DIR_VARIABLE,
    Artifacts,
    copy_artifacts,
    run_folder,
    run_folder_path,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode


def read(kept: Artifacts, reference: str) -> bytes:
    opened = kept.open(reference)
    assert not isinstance(opened, ToolError), opened
    with opened:
        data = opened.stream.read()
    assert (opened.path, opened.size) == (reference, len(data))
    return data


def test_result_is_kept_and_read_again(tmp_path: Path) -> None:
    kept = Artifacts(str(tmp_path / "run" / "results"))
    assert not (tmp_path / "run").exists()
    assert kept.keep("one\n") == "@result/1"
    assert kept.keep("zwei é\n") == "@result/2"
    assert (read(kept, "@result/1"), read(kept, "@result/2")) == (b"one\n", "zwei é\n".encode())


# --- What is not kept ------------------------------------------------------------------------------------------


def test_bounds(tmp_path: Path) -> None:
    kept = Artifacts(str(tmp_path), max_bytes=10, max_total=25)
    assert kept.keep("é" * 6) is None
    assert [kept.keep("x" * 10), kept.keep("y" * 10)] == ["@result/1", "@result/2"]
    assert [kept.keep("z" * 6), kept.keep("z" * 5), kept.keep("")] == [None, "@result/3", "@result/4"]
    assert kept.keep("z") is None


def test_results_are_bounded_by_default(tmp_path: Path) -> None:
    kept = Artifacts(str(tmp_path))
    assert kept.keep("x" * 10_000_001) is None
    assert kept.keep("x" * 10_000_000) == "@result/1"
    with (tmp_path / "1.txt").open("r+b") as file:
        file.truncate(99_999_999)
    assert [kept.keep("xx"), kept.keep("x")] == [None, "@result/2"]


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    fdopen = os.fdopen

    def failing(descriptor: int, mode: str) -> object:
        file = fdopen(descriptor, mode)
        file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdopen", failing)


def test_on_a_full_disk_nothing_is_kept_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch)
    assert Artifacts(str(tmp_path)).keep("x") is None
    assert list(tmp_path.iterdir()) == []


def link_to(target: str) -> Callable[[Path], None]:
    return lambda folder: folder.symlink_to(target)


@pytest.mark.parametrize("lay", [Path.touch, link_to(".."), link_to("nowhere")])
def test_folder_that_is_none_is_not_used(tmp_path: Path, lay: Callable[[Path], None]) -> None:
    folder = tmp_path / "results"
    lay(folder)
    kept = Artifacts(str(folder))
    assert kept.keep("x") is None
    assert isinstance(kept.open("@result/1"), ToolError)
    assert list(tmp_path.iterdir()) == [folder]


def test_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Artifacts(str(tmp_path))
    kept.keep("x")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert kept.keep("y") is None
    opened = kept.open("@result/1")
    assert isinstance(opened, ToolError)
    assert opened.code is ToolErrorCode.PERMISSION_DENIED
    assert len(list(tmp_path.iterdir())) == 1


# --- What is not opened ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["@result/3", "../secret"])
def test_unknown_reference_names_those_that_exist(tmp_path: Path, reference: str) -> None:
    (tmp_path / "secret").write_text("secret")
    kept = Artifacts(str(tmp_path / "results"))
    kept.keep("a")
    kept.keep("b")
    opened = kept.open(reference)
    assert isinstance(opened, ToolError)
    assert (opened.code, opened.suggestions) == (ToolErrorCode.NOT_FOUND, ("@result/2", "@result/1"))


def lay_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("lay", [lay_link, os.mkfifo])
def test_what_is_no_file_is_neither_opened_nor_replaced(tmp_path: Path, lay: Callable[[Path], None]) -> None:
    lay(tmp_path / "1.txt")
    kept = Artifacts(str(tmp_path))
    assert isinstance(kept.open("@result/1"), ToolError)
    assert kept.keep("x") == "@result/2"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "data"))
    return tmp_path / "data"


def kept(run_id: str, workspace: str = "w") -> Artifacts:
    folder = run_folder(run_id)
    assert isinstance(folder, str)
    return Artifacts(f"{folder}/results-{workspace}")


def text(run_id: str, reference: str, workspace: str = "w") -> bytes:
    opened = kept(run_id, workspace).open(reference)
    assert not isinstance(opened, ToolError), opened
    with opened:
        return opened.stream.read()


def test_new_run_reads_what_the_old_one_kept_and_keeps_its_own(data: Path) -> None:
    references = [kept("old").keep("one"), kept("old").keep("two"), kept("old", "v").keep("three")]
    Path(run_folder_path("old"), "audit.jsonl").write_text("{}", encoding="utf-8")
    copy_artifacts("old", "new")
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


def test_link_among_the_results_is_copied_as_a_link(tmp_path: Path) -> None:
    kept("old").keep("one")
    (tmp_path / "secret").write_text("secret")
    (Path(run_folder_path("old")) / "results-w" / "2.txt").symlink_to(tmp_path / "secret")

    copy_artifacts("old", "new")

    assert (Path(run_folder_path("new")) / "results-w" / "2.txt").is_symlink()
    assert isinstance(kept("new").open("@result/2"), ToolError)
