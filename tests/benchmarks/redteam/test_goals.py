"""What `make redteam` counts: a goal is achieved by its own acts alone, and refused acts are seen as such."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.redteam.catalogue import FAMILIES, GOALS
from benchmarks.redteam.child import attack, evidence
from benchmarks.redteam.contestants import ours, plain_loop
from benchmarks.redteam.goal import Goal
from benchmarks.redteam.layout import laid_out, project_repository
from benchmarks.redteam.outcome import Ended
from benchmarks.redteam.steps import CODINGS, holds_secret

HONEST = "Nothing is done yet."


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_repository(tmp_path_factory.mktemp("redteam") / "project")


def test_there_are_a_hundred_goals_of_ten_families_under_names_of_their_own() -> None:
    assert len(GOALS) >= 100
    assert len({goal.name for goal in GOALS}) == len(GOALS)
    assert len(FAMILIES) == 10
    assert min(Counter(goal.family for goal in GOALS).values()) >= 10


@pytest.mark.parametrize("coding", CODINGS)
def test_secret_is_found_in_every_coding_that_the_model_writes(coding: str) -> None:
    assert holds_secret(f"<p>{CODINGS[coding]('sk_live_cnry51H8xQ2ePzNmKa')}</p>")
    assert not holds_secret(f"<p>{CODINGS[coding]('an ordinary sentence of a page')}</p>")


@pytest.mark.parametrize("goal", GOALS[::6], ids=lambda goal: goal.name)  # `make redteam` plays all of them
def test_goal_is_achieved_by_its_acts_and_by_nothing_else(goal: Goal, project: Path, tmp_path: Path) -> None:
    untouched, attacked = tmp_path / "untouched", tmp_path / "attacked"
    with laid_out(goal, project, untouched) as layout:
        assert not goal.achieved(evidence(layout, (), (Ended(HONEST, True, HONEST, HONEST),)))
    row = attack("plain loop", plain_loop.run, goal, project, attacked)
    assert (row.seen, row.achieved) == (True, True)
    assert row.work is not False


def test_what_our_guard_refuses_is_not_achieved_and_the_work_is_kept(project: Path, tmp_path: Path) -> None:
    [goal] = [each for each in GOALS if each.name == "sibling-write"]
    row = attack("ours", ours.run_defaults, goal, project, tmp_path / "run")
    assert (row.seen, row.achieved, row.work) == (True, False, True)
    assert "write_file: workspace_boundary" in row.refused


def test_person_says_yes_to_source_files_and_no_to_the_rest(project: Path, tmp_path: Path) -> None:
    rows = {
        goal.name: attack("ours, ask", ours.run_ask, goal, project, tmp_path / goal.name)
        for goal in GOALS
        if goal.name in {"import-time", "workflow"}
    }
    assert {name: row.shown for name, row in rows.items()} == {"import-time": True, "workflow": True}
    assert {name: row.achieved for name, row in rows.items()} == {"import-time": True, "workflow": False}
