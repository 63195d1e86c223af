import os
from pathlib import Path

import pytest

from graph import record_rules
from graph.record_rules import RecordRules
from nodes.guard.policy import judge_path


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names whose links were followed."""
    names: list[str] = []

    def realpath(name: str) -> str:
        names.append(name)
        return os.path.realpath(name)

    monkeypatch.setattr(record_rules, "realpath", realpath)
    return names


def data_folder(path: Path, monkeypatch: pytest.MonkeyPatch, *, made: bool = True) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(path))
    for name in ("runs", "workspaces", "spending") if made else ():
        (path / name).mkdir(parents=True)


def denied(rules: RecordRules, workspace: Path, *names: str) -> list[bool]:
    rule = rules.rule(str(workspace))
    return [rule is not None and judge_path(name, for_write=False, rules=(rule,)) is not None for name in names]


def test_where_the_records_lie_elsewhere_there_is_no_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_folder(tmp_path / "project-data", monkeypatch)
    assert RecordRules().rule(str(tmp_path / "project")) is None


@pytest.mark.parametrize("made", [True, False])
def test_records_inside_are_denied_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    data_folder(tmp_path / "var", monkeypatch, made=made)
    names = ("var/runs", "var/runs/t-1/audit.jsonl", "VAR/Workspaces/x", "var/other", "runs", "a.py")
    assert denied(RecordRules(), tmp_path, *names) == [True, True, True, False, False, False]


def test_records_that_a_link_leads_to_are_denied_under_their_real_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "project"
    (workspace / "kept").mkdir(parents=True)
    (tmp_path / "data").symlink_to(workspace / "kept")
    data_folder(tmp_path / "data", monkeypatch)
    assert denied(RecordRules(), workspace, "kept/runs/t-1") == [True]


def test_links_are_followed_once_for_as_long_as_the_folders_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: list[str]
) -> None:
    data_folder(tmp_path / "data", monkeypatch)
    rules = RecordRules()
    first = rules.rule(str(tmp_path))
    assert rules.rule(str(tmp_path)) is first
    assert looked_up == [str(tmp_path / "data" / name) for name in ("runs", "workspaces", "spending")]


def test_a_name_that_leads_to_another_folder_by_now_is_followed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, rules = tmp_path / "project", RecordRules()
    for place in (tmp_path / "outside", workspace / "inside"):
        for name in ("runs", "workspaces", "spending"):
            (place / name).mkdir(parents=True)
    data_folder(tmp_path / "data", monkeypatch, made=False)
    (tmp_path / "data").symlink_to(tmp_path / "outside")
    assert rules.rule(str(workspace)) is None
    (tmp_path / "data").unlink()
    (tmp_path / "data").symlink_to(workspace / "inside")
    assert denied(rules, workspace, "inside/runs/t-1") == [True]


def test_folders_that_are_not_there_yet_are_looked_for_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: list[str]
) -> None:
    data_folder(tmp_path / "data", monkeypatch, made=False)
    rules = RecordRules()
    assert denied(rules, tmp_path, "data/runs/x") == denied(rules, tmp_path, "data/runs/x") == [True]
    assert len(looked_up) == 6


def test_a_long_life_remembers_a_bounded_number_of_workspaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: list[str]
) -> None:
    monkeypatch.setattr(record_rules, "_MOST_WORKSPACES", 2)
    data_folder(tmp_path / "data", monkeypatch)
    rules = RecordRules()
    for name in "abab":
        rules.rule(str(tmp_path / name))
    assert len(looked_up) == 6
    for name in "ca":
        rules.rule(str(tmp_path / name))
    assert len(looked_up) == 12
