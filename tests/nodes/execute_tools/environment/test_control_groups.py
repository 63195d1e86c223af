"""Groups in a folder that stands for the kernel's; in real ones the programs of `test_sandbox_watch` run."""

import os
from pathlib import Path

import pytest

from nodes.execute_tools.environment import control_groups
from nodes.execute_tools.environment.control_groups import ControlGroup, group_parent


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(control_groups, "own_groups", lambda: iter([f"{tmp_path}/none", str(tmp_path)]))
    monkeypatch.setattr(control_groups, "group_parent", group_parent.__wrapped__)
    return tmp_path


def test_a_group_bounds_its_processes_before_one_is_in_it(parent: Path) -> None:
    made = ControlGroup.made_for(77, processes=21, memory_bytes=64_000_000)
    assert made is not None
    [folder] = parent.glob(f"mendgraph-{os.getpid()}-*")
    assert {each.name: each.read_text() for each in folder.iterdir()} == {
        "pids.max": "21",
        "memory.max": "64000000",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cgroup.procs": "77",
    }


def test_what_happened_in_a_group(parent: Path) -> None:
    made = ControlGroup.made_for(77, processes=21, memory_bytes=64)
    assert made is not None
    [folder] = parent.glob("mendgraph-*")
    assert (made.events("memory", "oom_kill"), made.most_memory(64)) == (0, 64)
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (folder / "memory.peak").write_text("63\n")
    assert (made.events("memory", "oom_kill"), made.most_memory(64)) == (2, 63)


@pytest.mark.parametrize(("counted", "writable"), [("cpu memory", True), ("memory pids", False)])
def test_where_no_group_can_be_made_there_is_none(
    parent: Path, counted: str, writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent / "cgroup.subtree_control").write_text(counted)
    monkeypatch.setattr(os, "access", lambda *_: writable)
    assert ControlGroup.made_for(77, processes=21, memory_bytes=64) is None


def test_a_group_that_takes_no_process_is_not_used(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ControlGroup, name: str, value: int) -> None:
        raise PermissionError(name, value)

    monkeypatch.setattr(ControlGroup, "_write", refuse)
    assert ControlGroup.made_for(77, processes=21, memory_bytes=64) is None
    assert list(parent.glob("mendgraph-*")) == []


def test_a_group_that_was_left_by_a_killed_run_is_taken_away(parent: Path) -> None:
    for name in ("mendgraph-999999999-0", f"mendgraph-{os.getpid()}-7", "other"):
        (parent / name).mkdir()
    assert control_groups.group_parent() == str(parent)
    assert {each.name for each in parent.iterdir() if each.is_dir()} == {f"mendgraph-{os.getpid()}-7", "other"}


def test_only_names_of_ours_are_taken_away(parent: Path) -> None:
    names = {"mendgraph-backup-1", "mendgraph-999999999", "mendgraph-", "mendgraph-999999999x-1"}
    for name in names:
        (parent / name).mkdir()
    assert control_groups.group_parent() == str(parent)
    assert {each.name for each in parent.iterdir() if each.is_dir()} == names


def test_one_that_cannot_be_taken_away_does_not_disturb(parent: Path) -> None:
    for name in ("mendgraph-999999997-0", "mendgraph-999999998-0/inner", "mendgraph-999999999-0"):
        (parent / name).mkdir(parents=True)
    assert control_groups.group_parent() == str(parent)
    assert [each.name for each in parent.iterdir() if each.is_dir()] == ["mendgraph-999999998-0"]
