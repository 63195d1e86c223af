import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment.copy_folders import BEGUN, FINISHED, CopyFolder, copy_folder
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.git_places import write


def filled(path: Path, note: str = FINISHED) -> None:
    with copy_folder(str(path), make=True) as folder:
        assert isinstance(folder, CopyFolder)
        folder.write_note({"a": "\udcff"}, note)
    write(path, {"workspace/deep/file": "x"})


def test_a_note_says_what_a_copy_is(tmp_path: Path) -> None:
    filled(tmp_path / "a/one")
    assert (tmp_path / "a/one").stat().st_mode & 0o777 == 0o700
    with copy_folder(str(tmp_path / "a/one"), make=False) as folder:
        assert isinstance(folder, CopyFolder)
        assert (folder.note(), folder.note(BEGUN)) == ({"a": "\udcff"}, None)
        assert folder.remove() is None
    assert not (tmp_path / "a/one").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "\udcff"])
def test_a_damaged_note_is_none(tmp_path: Path, content: str) -> None:
    filled(tmp_path / "one")
    (tmp_path / "one" / FINISHED).write_bytes(os.fsencode(content))
    with copy_folder(str(tmp_path / "one"), make=False) as folder:
        assert isinstance(folder, CopyFolder)
        assert folder.note() is None
        assert folder.empty() is None
        assert os.listdir(folder.handle) == []


@pytest.mark.parametrize("note", [FINISHED, BEGUN])
def test_only_a_folder_of_ours_is_emptied(tmp_path: Path, note: str) -> None:
    filled(tmp_path / "ours", note)
    write(tmp_path / "other", {"x": "x"})
    for name, left in (("ours", []), ("other", ["x"])):
        with copy_folder(str(tmp_path / name), make=False) as folder:
            assert isinstance(folder, CopyFolder)
            assert (folder.empty() is None) is (left == [])
            assert os.listdir(folder.handle) == left


def test_folders_that_nobody_may_enter_and_links_go_away(tmp_path: Path) -> None:
    filled(tmp_path / "one")
    write(tmp_path / "outside", {"x": "x"})
    inner = tmp_path / "one/workspace"
    (inner / "link").symlink_to(tmp_path / "outside")
    (inner / "deep/closed").mkdir()
    write(inner / "deep/closed", {"y": "y"})
    for path in (inner / "deep/closed", inner / "deep", inner):
        path.chmod(0)
    with copy_folder(str(tmp_path / "one"), make=False) as folder:
        assert isinstance(folder, CopyFolder)
        folder_remove(folder)
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (tmp_path / "outside/x").read_text() == "x"


def folder_remove(folder: CopyFolder) -> None:
    """Remove it as a user without root's rights meets it: the first try is refused."""
    real, calls = shutil.rmtree, []

    def rmtree(*arguments: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise PermissionError(13, "Permission denied")
        real(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        assert folder.remove() is None


def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"file": "x"})
    for path, make, code in (
        ("none", False, ToolErrorCode.NOT_FOUND),
        ("file", True, ToolErrorCode.CONFLICT),
        ("file/below", True, ToolErrorCode.INVALID_ARGUMENT),
    ):
        with copy_folder(str(tmp_path / path), make=make) as found:
            assert isinstance(found, ToolError)
            assert found.code is code


def test_one_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    order: list[str] = []
    with copy_folder(str(tmp_path / "one"), make=True):
        second = threading.Thread(target=lambda: enter(tmp_path / "one", order))
        second.start()
        order.append("first")
    second.join()
    assert order == ["first", "second"]


def enter(path: Path, order: list[str]) -> None:
    with copy_folder(str(path), make=True):
        order.append("second")


def test_a_file_system_without_locks_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    filled(tmp_path / "one")
