"""Taking back what a run did, and beginning once more after one of its steps."""

import stat
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from graph.build import build_graph
from graph.run import RunResult, Session, run_task
from graph.run_steps import StepKind
from graph.runs import ListedRun, get_run, prune_runs, resume_run, steps_of
from graph.store import Pruned, Store
from graph.time_travel import Forked, fork_run, undo_run
from nodes.execute_tools.environment.restoring import Restored, RestoredFile
from nodes.execute_tools.environment.run_folder import run_folder_path
from nodes.execute_tools.registry import tool
from nodes.records import ChangeKind, Effect, OutcomeKind, ToolError, ToolErrorCode
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.graph.run_plays import (
    EDIT,
    LINES,
    context,
    cut_off,
    error,
    listed,
    played,
    project,
    recorded,
    state_of,
    tree,
    use,
)


@pytest.fixture
def folder(any_store: str, tmp_path: Path) -> Path:  # noqa: ARG001 - each test runs with both
    return project(tmp_path / "project")


# --- Taking back


def test_undo_restores_the_files_as_they_were(folder: Path) -> None:
    before = tree(folder)
    run = played(folder)
    assert set(tree(folder)) == {"calc.py", "pkg", "pkg/new.py", "docs", "docs/calc.md"}
    assert undo_run(run.thread_id[:8], str(folder)) == Restored(
        files=(
            RestoredFile("calc.py", ChangeKind.EDITED),
            RestoredFile("docs/calc.md", ChangeKind.DELETED),
            RestoredFile("notes.txt", ChangeKind.CREATED),
            RestoredFile("pkg/new.py", ChangeKind.DELETED),
        ),
        removed=("docs", "pkg"),
        steps=(2, 3, 4, 5),
    )
    assert tree(folder) == before
    assert stat.S_IMODE(before["notes.txt"][1]) == 0o640
    assert undo_run(run.thread_id, str(folder)) == Restored()


def test_undo_from_a_step_keeps_what_came_before(folder: Path) -> None:
    trees, run_id = recorded(folder)
    for step in (5, 4, 2):
        assert isinstance(undo_run(run_id, str(folder), from_step=step), Restored)
        assert tree(folder) == trees[step - 1]


def test_undo_of_a_run_that_was_cut_off(folder: Path) -> None:
    before = tree(folder)
    dead = cut_off(folder, 4)
    assert isinstance(undo_run(dead, str(folder)), Restored)
    assert tree(folder) == before


def test_what_somebody_else_changed_is_not_touched(folder: Path) -> None:
    run = played(folder)
    (folder / "calc.py").write_text("mine\n", encoding="utf-8")
    mine = tree(folder)
    refused = error(undo_run(run.thread_id, str(folder)))
    assert (refused.code, refused.suggestions, tree(folder)) == (ToolErrorCode.CONFLICT, ("calc.py",), mine)
    done = undo_run(run.thread_id, str(folder), skip_changed=True)
    assert isinstance(done, Restored)
    assert ([each.path for each in done.left], (folder / "calc.py").read_text()) == (["calc.py"], "mine\n")
    assert set(tree(folder)) == {"calc.py", "notes.txt"}


# --- Forks


@pytest.mark.parametrize("at", range(6))
def test_a_fork_begins_with_the_conversation_and_the_files_after_a_step(folder: Path, at: int) -> None:
    trees, run_id = recorded(folder)
    whole = state_of(folder, run_id)
    forked = fork_run(run_id, at, str(folder))
    assert isinstance(forked, Forked)
    assert (forked.parent, tree(folder)) == (run_id, trees[at])
    store = Store(str(folder))
    history = build_graph(store.saver).get_state_history({"configurable": {"thread_id": run_id}})
    (then,) = [each for each in history if each.next == ("call_model",) and each.values.get("step", 0) == at]
    now = build_graph(store.saver).get_state({"configurable": {"thread_id": forked.run_id}})
    store.close()
    assert now.next == ("call_model",)
    assert now.values == {**then.values, "run_id": forked.run_id}
    result = resume_run(forked.run_id, str(folder), model=HistoryModel(LINES))
    assert isinstance(result, RunResult)
    assert tree(folder) == trees[-1]
    end = state_of(folder, forked.run_id)
    assert [message.content for message in end["messages"]] == [message.content for message in whole["messages"]]
    assert end["outcome"].model_dump(exclude={"usage"}) == whole["outcome"].model_dump(exclude={"usage"})
    assert [end[name] for name in ("step", "files_read", "loop")] == [
        whole[name] for name in ("step", "files_read", "loop")
    ]
    assert end["spending"].usage == whole["spending"].usage
    assert isinstance(undo_run(forked.run_id, str(folder)), Restored)
    assert tree(folder) == trees[at]
    assert isinstance(undo_run(run_id, str(folder)), Restored)
    assert tree(folder) == trees[0]


def test_a_fork_is_a_run_of_its_own(folder: Path) -> None:
    run = played(folder, max_calls_per_turn=8)
    forked = fork_run(run.thread_id, 3, str(folder))
    assert isinstance(forked, Forked)
    found = get_run("", str(folder))
    assert isinstance(found, ListedRun)
    assert (found.run_id, found.parent, found.forked_at) == (forked.run_id, run.thread_id, 3)
    assert (found.task, found.request, found.turns) == ("Mend add.", "Mend add.", 1)
    assert found.context.max_calls_per_turn == 8
    steps = steps_of(forked.run_id, str(folder))
    assert not isinstance(steps, ToolError)
    assert [(step.number, step.kind, step.can_fork) for step in steps] == [(3, StepKind.START, True)]
    again = fork_run(forked.run_id, 3, str(folder))
    assert isinstance(again, Forked)
    assert again.restored == Restored()
    assert isinstance(resume_run(again.run_id, str(folder), model=HistoryModel(LINES)), RunResult)


def test_a_fork_in_an_earlier_turn_has_that_turn_s_request_and_context(folder: Path) -> None:
    lines = (use(("read_file", {"path": "calc.py"})), EDIT, Say("Edited."), LINES[2], Say("Written."))
    model = HistoryModel(lines)
    with Session(context(folder, max_calls_per_turn=7), model=model) as session:
        list(session.stream("Mend add."))
    with Session(context(folder), model=model, thread_id=session.thread_id) as session:
        list(session.stream("Now write."))
    for at, request, turns, calls in ((1, "Mend add.", 1, 7), (3, "Now write.", 2, 10)):
        forked = fork_run(session.thread_id, at, str(folder), skip_changed=True)
        assert isinstance(forked, Forked)
        found = get_run(forked.run_id, str(folder))
        assert isinstance(found, ListedRun)
        assert (found.request, found.turns, found.context.max_calls_per_turn) == (request, turns, calls)
        result = resume_run(forked.run_id, str(folder), model=HistoryModel(lines))
        assert isinstance(result, RunResult)
        requests = [message.text for message in result.messages if isinstance(message, HumanMessage)]
        assert (requests, result.outcome.kind) == (["Mend add.", "Now write."][:turns], OutcomeKind.FINISHED)
        assert result.outcome.answer == ("Edited." if turns == 1 else "Written.")


def test_a_step_that_no_run_can_begin_after_is_told_with_those_that_there_are(folder: Path) -> None:
    run = played(folder)
    before = tree(folder)
    refused = error(fork_run(run.thread_id, 6, str(folder)))
    assert (refused.code, refused.suggestions) == (ToolErrorCode.NOT_FOUND, ("0", "1", "2", "3", "4", "5"))
    assert (tree(folder), len(listed(folder))) == (before, 1)


def test_a_fork_leaves_everything_where_somebody_else_changed_a_file(folder: Path) -> None:
    run = played(folder)
    (folder / "calc.py").write_text("mine\n", encoding="utf-8")
    before = tree(folder)
    assert error(fork_run(run.thread_id, 2, str(folder))).code is ToolErrorCode.CONFLICT
    assert (tree(folder), len(listed(folder))) == (before, 1)


@tool(effect=Effect.NONE)
def recite() -> str:
    """Give back 200 kB of text."""
    return "word\n" * 40_000


def test_a_fork_reads_what_its_parent_kept(folder: Path) -> None:
    model = HistoryModel((use(("recite", {})), Say("Long.")))
    run = run_task("Recite.", context(folder), model=model, tools=[recite])
    forked = fork_run(run.thread_id, 1, str(folder))
    assert isinstance(forked, Forked)
    kept = [list(Path(run_folder_path(each)).glob("results-*/*.txt")) for each in (run.thread_id, forked.run_id)]
    assert [[path.name for path in paths] for paths in kept] == [["1.txt"], ["1.txt"]]


def test_what_was_forgotten_cannot_be_undone(folder: Path) -> None:
    run, after = played(folder), tree(folder)
    assert isinstance(prune_runs(str(folder), older_than_days=0.0), Pruned)
    assert error(undo_run(run.thread_id, str(folder))).code is ToolErrorCode.NOT_FOUND
    assert tree(folder) == after
