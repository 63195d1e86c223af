"""The task file on the disk, and whether what its tasks work on is there."""

from pathlib import Path

import pytest

from mendgraph.graph.fleet.batch import task_file
from mendgraph.graph.fleet.batch.task_file import Sources, absolute, find_sources, read_task_file
from mendgraph.graph.fleet.batch.tasks import BatchTask, ReadTask
from tests.runs.batching import repository


def task(name: str, workspace: object, revision: str = "") -> BatchTask:
    return BatchTask(id=name, prompt="p", workspace=str(workspace), revision=revision)


def test_workspaces_are_below_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "t.jsonl"
    lines = [f'{{"id": "{n}", "prompt": "p", "workspace": "{w}"}}' for n, w in enumerate(("a/../b", "/c", "~/d"))]
    file.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    tasks, problems = read_task_file(str(file))
    assert problems == []
    assert [each.workspace for each, _ in tasks] == [str(tmp_path / "b"), "/c", "/home/me/d"]
    assert absolute(tasks[1].task, "/x") is tasks[1].task


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe")
    assert [str(each) for each in read_task_file(str(tmp_path / "t.jsonl"))[1]] == [
        f"{tmp_path}/t.jsonl: this is no UTF-8 text (invalid start byte): write it as UTF-8"
    ]
    (problem,) = read_task_file(str(tmp_path / "none"))[1]
    assert "Cannot read" in problem.message or "cannot read" in problem.message


def test_each_source_is_pinned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, plain = repository(tmp_path / "root"), tmp_path / "plain"
    plain.mkdir()
    tasks = [task("a", root), task("b", root), task("c", root, "HEAD"), task("d", plain)]
    found = find_sources([ReadTask(each, line) for line, each in enumerate(tasks, 1)], {})
    assert isinstance(found, Sources)
    commits = {source: found.pins[source] for source in found.pins}
    assert set(commits) == {(str(root), ""), (str(root), "HEAD"), (str(plain), "")}
    assert commits[str(root), ""] == commits[str(root), "HEAD"] != ""
    assert commits[str(plain), ""] == ""
    known = find_sources([ReadTask(tasks[0], 1)], {(str(root), ""): "c0ffee"})
    assert known == Sources({})
    monkeypatch.setattr(task_file, "PINNED_AT_ONCE", 0)
    assert find_sources([ReadTask(tasks[0], 1)], {}) == Sources({})


def test_what_is_not_there_is_told_with_its_line(tmp_path: Path) -> None:
    tasks = [ReadTask(task("a", tmp_path / "none"), 3), ReadTask(task("b", tmp_path, "v1"), 4)]
    found = find_sources(tasks, {}, "t.jsonl")
    assert isinstance(found, tuple)
    assert [str(each) for each in found] == [
        f"t.jsonl:3: there is no workspace '{tmp_path}/none': name a folder or an archive that is there",
        f"t.jsonl:4: '{tmp_path}' is no git repository, so it has no revision 'v1': leave the revision out.",
    ]
