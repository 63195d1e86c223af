import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment import tree_record
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.tree_record import TreeChanges, TreeRecord, changes_since, record_tree
from tests.nodes.execute_tools.environment.git_places import write


@pytest.fixture(autouse=True)
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a test has just written count as old."""
    monkeypatch.setattr(tree_record, "_TICK_NS", -3_600_000_000_000)


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


def test_each_kind_of_change_is_found(tmp_path: Path) -> None:
    names = ["bytes", "mode", "gone", "link", "replaced", "same"]
    write(tmp_path, dict.fromkeys(names, "1"))
    before = recorded(tmp_path)
    time.sleep(0.02)  # so that the kernel's clock goes on
    for name in ("gone", "link", "replaced"):
        (tmp_path / name).unlink()
    write(tmp_path, {"bytes": "2", "new/file": "x", "replaced/inner": "x"})
    (tmp_path / "mode").chmod(0o755)
    (tmp_path / "link").symlink_to("same")
    assert changed(tmp_path, before) == TreeChanges(
        ("gone", "replaced"), ("bytes", "link", "mode", "new/file", "replaced/inner")
    )


def test_what_was_hidden_stays_hidden_and_what_was_seen_stays_seen(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "old\nbuild/\n", "old": "x", "build/x": "x", "a": "a", "d/b": "b"})
    before = recorded(tmp_path)
    (tmp_path / ".gitignore").write_text("a\nd/\nnew\n")
    write(tmp_path, {"old": "y", "build/y": "y", "new": "n", "d/new too": "n"})
    assert changed(tmp_path, before) == TreeChanges((), (".gitignore",))
    (tmp_path / "d/b").unlink()
    assert changed(tmp_path, before) == TreeChanges(("d/b",), (".gitignore",))


def test_of_tracked_files_those_that_are_there_are_recorded(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "d/\n", "a": "a", "d/e/b": "b", "not": "x", "file": "x"})
    found = recorded(tmp_path, ["a", "d/e/b", "missing", "no/where", "file/below", "d/e"])
    assert (sorted(found.files), found.hidden) == (["a", "d/e/b"], frozenset())
    (tmp_path / "d/e/b").unlink()
    assert changed(tmp_path, found) == TreeChanges(("d/e/b",), (".gitignore", "file", "not"))


def test_a_file_that_was_just_written_may_change_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a": "a"})
    monkeypatch.setattr(tree_record, "_TICK_NS", 3_600_000_000_000)
    assert changed(tmp_path, recorded(tmp_path)) == TreeChanges((), ("a",))


def test_an_ignore_file_that_is_a_link_hides_nothing(tmp_path: Path) -> None:
    write(tmp_path / "outside", {"rules": "*\n"})
    root = write(tmp_path / "root", {"a": "a"})
    (root / ".gitignore").symlink_to(tmp_path / "outside/rules")
    assert sorted(recorded(root).files) == [".gitignore", "a"]


def test_an_ignore_file_that_goes_away_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {".gitignore": "a\n", "a": "a"})

    def gone(*_: object) -> tuple[int, os.stat_result]:
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr(tree_record, "open_regular", gone)
    assert sorted(recorded(tmp_path).files) == [".gitignore", "a"]


def test_a_file_that_goes_away_meanwhile_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a": "a", "b": "b"})
    real = os.stat

    def looking(name: str, **named: Any) -> os.stat_result:
        if name == "b":
            raise FileNotFoundError(2, "gone")
        found = real(name, **named)
        assert isinstance(found, os.stat_result)
        return found

    monkeypatch.setattr(os, "stat", looking)
    assert sorted(recorded(tmp_path).files) == ["a"]
