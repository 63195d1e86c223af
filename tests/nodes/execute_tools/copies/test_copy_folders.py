import json
import os
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.copies import copy_folders
from mendgraph.nodes.execute_tools.copies.copy_folders import (
    BEGUN,
    FINISHED,
    CopyFolder,
    PrivateGit,
    TreeChanges,
    TreeRecord,
    changes_since,
    copy_folder,
    record_tree,
)
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.processes.git_places import write


def filled(path: Path, note: str = FINISHED) -> None:
    with copy_folder(str(path), make=True) as folder:
        assert isinstance(folder, CopyFolder)
        folder.write_note({"a": "\udcff"}, note)
    write(path, {"workspace/deep/file": "x"})


@pytest.mark.parametrize("note", [FINISHED, BEGUN])
def test_only_a_folder_of_ours_is_emptied(tmp_path: Path, note: str) -> None:
    filled(tmp_path / "ours", note)
    write(tmp_path / "other", {"x": "x"})
    for name, left in (("ours", []), ("other", ["x"])):
        with copy_folder(str(tmp_path / name), make=False) as folder:
            assert isinstance(folder, CopyFolder)
            assert (folder.empty() is None) is (left == [])
            assert os.listdir(folder.handle) == left


def made(path: Path, objects: str = "") -> PrivateGit:
    own = PrivateGit(str(path))
    assert own.make(objects) is None
    return own


def kept(own: PrivateGit, root: Path, names: list[str], tree: str = "", gone: tuple[str, ...] = ()) -> str:
    with closing(open_root(str(root))) as handle:
        found = own.keep(handle, names, tree=tree, gone=gone)
    assert isinstance(found, str), found
    return found


def test_a_patch_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "root", {"a": "a\n" * 1_000})
    own = made(tmp_path / "own.git")
    kept(own, root, [])
    monkeypatch.setattr(copy_folders, "MOST_PATCH_BYTES", 500)
    with closing(open_root(str(root))) as handle:
        found = own.patch(handle, [], ["a"])
    message = "The patch has more than 500 bytes: what was changed is in the copy itself."
    assert found == ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "root", {"a": "a", "b": "b"})
    own = made(tmp_path / "own.git")
    os.mkfifo(root / "pipe")
    with closing(open_root(str(root))) as handle:
        for name, said in (("gone", "there is no such file"), ("pipe", "it is not a regular file")):
            found = own.keep(handle, ["a", name])
            assert isinstance(found, ToolError)
            assert f"Cannot read '{name}': {said}" in found.message
        monkeypatch.setattr(os, "read", lambda *_: b"")
        found = own.keep(handle, ["b"])
    assert isinstance(found, ToolError)
    assert found.message == "Cannot read 'b': 'b' became shorter while it was read."


@pytest.fixture(autouse=True)
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a test has just written count as old."""
    monkeypatch.setattr(copy_folders, "_TICK_NS", -3_600_000_000_000)


def recorded(root: Path, tracked: list[str] | None = None) -> TreeRecord:
    with closing(open_root(str(root))) as handle:
        return record_tree(handle, tracked=tracked)


def changed(root: Path, before: TreeRecord) -> TreeChanges:
    with closing(open_root(str(root))) as handle:
        return changes_since(handle, before)


def test_files_and_links_are_recorded_and_nothing_else(tmp_path: Path) -> None:
    ignored = {"x.log": "", "build/a": "", "src/build/b": "", "src/keep.log": ""}
    write(tmp_path, {".gitignore": "*.log\nbuild/\n!keep.log\n", "a": "a", "src/b": "b", **ignored})
    write(tmp_path, {".git/config": "", "src/.GIT/x": "", "git~1": "", "src/.gitignore": "c\n", "src/c": "c"})
    (tmp_path / "link").symlink_to("build")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    found = recorded(tmp_path)
    assert sorted(found.files) == [".gitignore", "a", "link", "src/.gitignore", "src/b", "src/keep.log"]
    assert found.hidden == {"x.log", "build/", "src/build/", "src/c"}
    assert changed(tmp_path, found) == TreeChanges((), ())
    assert TreeRecord.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_of_tracked_files_those_that_are_there_are_recorded(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "d/\n", "a": "a", "d/e/b": "b", "not": "x", "file": "x"})
    found = recorded(tmp_path, ["a", "d/e/b", "missing", "no/where", "file/below", "d/e"])
    assert (sorted(found.files), found.hidden) == (["a", "d/e/b"], frozenset())
    (tmp_path / "d/e/b").unlink()
    assert changed(tmp_path, found) == TreeChanges(("d/e/b",), (".gitignore", "file", "not"))
