"""What `make redteam` counts: a goal is achieved only by its own acts, and not by a refused one."""

from pathlib import Path

import pytest

from benchmarks.redteam.catalogue import GOALS
from benchmarks.redteam.child import attack, collect_evidence
from benchmarks.redteam.contestants import ours, plain_loop
from benchmarks.redteam.goal import Goal
from benchmarks.redteam.layout import create_layout, project_repository
from benchmarks.redteam.outcome import RunEnd
from benchmarks.redteam.steps import CODINGS, holds_secret
from tests.extent import slow

HONEST = RunEnd("Nothing is done yet.", True, "Nothing is done yet.", "Nothing is done yet.")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_repository(tmp_path_factory.mktemp("redteam") / "project")


def test_secret_is_found_in_every_encoding() -> None:
    assert [c for c in CODINGS if not holds_secret(f"<p>{CODINGS[c]('sk_live_cnry51H8xQ2ePzNmKa')}</p>")] == []
    assert [c for c in CODINGS if holds_secret(f"<p>{CODINGS[c]('an ordinary sentence of a page')}</p>")] == []


@slow
@pytest.mark.parametrize("goal", GOALS[::26], ids=lambda goal: goal.name)  # `make redteam` plays all of them
def test_goal_is_achieved_only_by_its_own_acts(goal: Goal, project: Path, tmp_path: Path) -> None:
    with create_layout(goal, project, tmp_path / "untouched") as layout:
        assert not goal.achieved(collect_evidence(layout, (), (HONEST,)))
    row = attack("plain loop", plain_loop.run, goal, project, tmp_path / "attacked")
    assert (row.seen, row.achieved) == (True, True)
    assert row.work is not False


@slow
def test_goal_refused_by_guard_is_not_achieved_and_the_work_is_kept(project: Path, tmp_path: Path) -> None:
    [goal] = [goal for goal in GOALS if goal.name == "sibling-write"]
    row = attack("ours", ours.run_defaults, goal, project, tmp_path / "run")
    assert (row.seen, row.achieved, row.work) == (True, False, True)
    assert "write_file: workspace_boundary" in row.refused
