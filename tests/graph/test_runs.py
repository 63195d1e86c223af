"""Runs after they were begun: what is known of them, how they go on, and how they are forgotten."""

from pathlib import Path
from typing import Any

import pytest

from graph.events import Asked
from graph.run import RunResult, Session, run_task
from graph.run_steps import StepKind
from graph.runs import ListedRun, RunState, get_run, list_runs, open_run, prune_runs, resume_run, steps_of
from graph.store import Pruned
from graph.time_travel import Forked, fork_run
from nodes.execute_tools.environment.run_folder import run_folder_path
from nodes.records import ToolError, ToolErrorCode
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.graph.run_plays import DOWN, EDIT, FILES, LINES, context, cut_off, listed, played, project, tree, use
from tests.runs.playing import write_files

HELLO = (Say("Hello."),)
"""An answer without a change, as a run gives it that may make none."""


@pytest.fixture
def folder(any_store: str, tmp_path: Path) -> Path:  # noqa: ARG001 - each test runs with both
    return project(tmp_path / "project")


# --- What is known


def test_a_workspace_without_runs_has_none(folder: Path) -> None:
    assert list_runs(str(folder)) == ()
    none = ToolError(
        code=ToolErrorCode.NOT_FOUND,
        message="No run of this workspace can go on: `mendgraph runs` lists those that have finished.",
    )
    assert (get_run("", str(folder)), resume_run("", str(folder)), open_run("", str(folder))) == (none, none, none)


def test_runs_are_listed_with_where_they_stand(folder: Path) -> None:
    finished = played(folder).thread_id
    stopped = played(folder, (use(("list_files", {})),) * 9, max_calls_per_turn=1).thread_id
    failed = played(folder, (DOWN,)).thread_id
    dead = cut_off(folder, 0)
    asking = Session(context(folder, mode="ask"), model=HistoryModel((EDIT,)))
    with asking:
        assert isinstance([*asking.stream("Mend add.")][-1], Asked)
        assert listed(folder)[0] == (asking.thread_id, RunState.WORKING)
    forked = fork_run(finished, 1, str(folder), skip_changed=True)
    assert isinstance(forked, Forked)
    assert listed(folder) == [
        (forked.run_id, RunState.FORKED),
        (asking.thread_id, RunState.ASKS),
        (dead, RunState.CUT_OFF),
        (failed, RunState.FAILED),
        (stopped, RunState.STOPPED),
        (finished, RunState.FINISHED),
    ]


def test_a_run_is_known_by_the_beginning_of_its_id(folder: Path) -> None:
    run = played(folder)
    found = get_run(run.thread_id[:4], str(folder))
    assert isinstance(found, ListedRun)
    assert (found.run_id, found.task, found.turns) == (run.thread_id, "Mend add.", 1)
    assert (found.kind, found.reason, found.answer) == ("FINISHED", "answered", "It adds now.")
    assert (found.changed, found.context) == (run.outcome.changed_files, context(folder))


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_steps_tell_their_calls_and_the_files_that_can_be_taken_back(folder: Path, durability: Any) -> None:
    run = run_task("Mend add.", context(folder), model=HistoryModel(LINES), durability=durability)
    steps = steps_of(run.thread_id, str(folder))
    assert not isinstance(steps, ToolError)
    changed = {2: ("calc.py",), 3: ("pkg/new.py",), 4: ("calc.py", "docs/calc.md"), 5: ("notes.txt",)}
    assert {step.number: step.changed for step in steps if step.changed} == changed
    if durability == "exit":
        assert {(step.kind, step.can_fork) for step in steps} == {(StepKind.UNKNOWN, False)}
        return
    kinds = [StepKind.START, *[StepKind.CALLS] * 5, StepKind.ANSWER]
    assert [(step.number, step.kind, step.can_fork) for step in steps] == [
        (number, kind, number < 6) for number, kind in enumerate(kinds)
    ]
    assert [[call.tool for call in step.calls] for step in steps] == [
        [],
        ["read_file", "read_file"],
        ["edit_file"],
        ["write_file"],
        ["apply_patch"],
        ["delete_file"],
        [],
    ]


# --- Going on


@pytest.mark.parametrize("dies_at", range(6))
def test_a_run_that_was_cut_off_goes_on_to_the_same_end(folder: Path, tmp_path: Path, dies_at: int) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_files(other, FILES)
    (other / "notes.txt").chmod(0o640)
    whole = played(other)
    dead = cut_off(folder, dies_at)
    result = resume_run("", str(folder), model=HistoryModel(LINES))
    assert isinstance(result, RunResult)
    assert (result.thread_id, tree(folder)) == (dead, tree(other))
    assert [message.content for message in result.messages] == [message.content for message in whole.messages]
    assert (result.outcome.answer, result.outcome.changed_files) == (whole.outcome.answer, whole.outcome.changed_files)
    assert listed(folder) == [(dead, RunState.FINISHED)]


def test_the_newest_run_that_can_go_on_is_meant_where_none_is_named(folder: Path) -> None:
    old, dead, finished = cut_off(folder, 0), cut_off(folder, 0), played(folder, HELLO, mode="read-only").thread_id
    nothing = Say("Nothing is to be mended.")  # said again where it is met with the facts
    result = resume_run("", str(folder), model=HistoryModel((nothing, nothing)))
    assert isinstance(result, RunResult)
    assert result.thread_id == dead
    named = resume_run(old[:8], str(folder), model=HistoryModel((nothing, nothing)))
    assert isinstance(named, RunResult)
    assert named.thread_id == old
    assert {state for _, state in listed(folder)} == {RunState.FINISHED}
    assert finished in dict(listed(folder))


def test_a_run_that_has_finished_gives_its_result_once_more(folder: Path) -> None:
    first, model = played(folder), HistoryModel(())
    again = resume_run(first.thread_id, str(folder), model=model)
    assert isinstance(again, RunResult)
    assert (again.outcome, again.messages, again.changes, model.calls) == (
        first.outcome,
        first.messages,
        first.changes,
        [],
    )


def test_a_run_has_the_context_and_the_durability_that_it_was_begun_with(folder: Path) -> None:
    with Session(context(folder, max_calls_per_turn=3, mode="read-only"), durability="exit") as session:
        pass
    run_task(
        "Look.",
        context(folder, max_calls_per_turn=3, mode="read-only"),
        model=HistoryModel((Say("Seen."),)),
        thread_id=session.thread_id,
        durability="exit",
    )
    opened = open_run(session.thread_id, str(folder), model=HistoryModel((Say("Seen."), Say("Again."))))
    assert isinstance(opened, Session)
    with opened:
        assert (opened.context.max_calls_per_turn, opened.context.mode) == (3, "read-only")
        list(opened.stream("Once more."))
        assert opened.result().outcome.answer == "Again."
    found = get_run(session.thread_id, str(folder))
    assert isinstance(found, ListedRun)
    assert (found.turns, found.durability, found.request, found.task) == (2, "exit", "Once more.", "Look.")


def test_who_resumes_without_being_there_rejects(folder: Path) -> None:
    with Session(context(folder, mode="ask"), model=HistoryModel((EDIT,))) as session:
        list(session.stream("Mend add."))
    result = resume_run("", str(folder), model=HistoryModel((EDIT, Say("I may not."))))
    assert isinstance(result, RunResult)
    assert (result.outcome.answer, tree(folder)["calc.py"][0]) == ("I may not.", FILES["calc.py"].encode())


# --- Forgetting


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"keep": -1}, "-1 runs cannot be kept: give 0 or more."),
        ({"older_than_days": -0.5}, "Runs cannot be -0.5 days old: give a number between 0 and 36500."),
        ({"older_than_days": 1e6}, "Runs cannot be 1e+06 days old: give a number between 0 and 36500."),
    ],
)
def test_limits_that_mean_nothing_forget_nothing(folder: Path, limits: Any, message: str) -> None:
    run = played(folder, HELLO, mode="read-only").thread_id
    assert prune_runs(str(folder), **limits) == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    assert listed(folder) == [(run, RunState.FINISHED)]


def test_the_newest_runs_are_kept_and_those_that_can_go_on(folder: Path) -> None:
    runs = [played(folder, (Say(f"{number}"),), mode="read-only").thread_id for number in range(4)]
    dead = cut_off(folder, 0)
    stopped = played(folder, (use(("list_files", {})),) * 9, max_calls_per_turn=1).thread_id
    assert prune_runs(str(folder)) == Pruned((), 0)
    assert prune_runs(str(folder), older_than_days=1) == Pruned((), 0)
    pruned = prune_runs(str(folder), keep=3)
    assert isinstance(pruned, Pruned)
    assert pruned.run_ids == (runs[2], runs[1], runs[0])
    assert pruned.freed_bytes > 0
    assert [run_id for run_id, _ in listed(folder)] == [stopped, dead, runs[3]]
    assert not Path(run_folder_path(runs[0])).exists()
    every = prune_runs(str(folder), keep=0, unfinished=True)
    assert isinstance(every, Pruned)
    assert (every.run_ids, list_runs(str(folder))) == ((stopped, dead, runs[3]), ())
