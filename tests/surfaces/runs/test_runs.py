"""Stored runs: how they are listed, resumed, pruned and forked."""

import hashlib
import os
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.run_records import runs_to_prune
from mendgraph.graph.persistence.store import _SIZES, Pruned, Store
from mendgraph.graph.runs.events import Asked
from mendgraph.graph.runs.run import RunResult, Session, run_task
from mendgraph.graph.runs.runs import (
    Forked,
    RunDiff,
    RunState,
    StepKind,
    apply_run,
    fork_run,
    get_run,
    list_runs,
    open_run,
    prune_runs,
    resume_run,
    run_diffs,
    steps_of,
    undo_run,
)
from mendgraph.nodes.guard.file_rules import FileGuardrailRule
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState
from mendgraph.nodes.workspace.journal.journal import CallKey, Journal
from mendgraph.nodes.workspace.journal.restoring import Restored
from mendgraph.nodes.workspace.store.database import open_database, uses_postgres
from mendgraph.nodes.workspace.store.run_folder import run_folder_path, workspace_folder
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock, WorkspaceLock
from tests.broken_stores import make_unusable
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Calls, Say
from tests.extent import slow
from tests.surfaces.runs.run_plays import (
    DOWN,
    EDIT,
    FILES,
    LINES,
    context,
    error,
    killed_run,
    list_states,
    project,
    record_trees,
    run_lines,
    state_of,
    tree,
    use,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=slow)])
def in_any_store(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A project with its runs in the store of the workspace, in sweeps also in a shared one."""
    if request.param == "postgresql":
        request.getfixturevalue("shared_store")
    return folder


def test_store_of_another_version_is_reported_even_if_its_workspace_is_locked(
    in_any_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(in_any_store)
    run = run_lines(in_any_store).thread_id
    folder = str(workspace_folder(root))
    lock = WorkspaceLock(folder)
    assert lock.acquire(Owner("another")) is None
    with lock:
        make_unusable(folder, monkeypatch, "newer")
        refused = [undo_run(run, root), apply_run(run, root), fork_run(run, 1, root), prune_runs(root, keep=0)]
    assert ["was written by a newer mendgraph" in error(result).message for result in refused] == [True] * 4


# --- Listing


WRITE_NEW = use(("write_file", {"path": "new.py", "content": "x = 1\n"}))


@slow
def test_runs_are_listed_with_their_state(in_any_store: Path) -> None:
    finished = run_lines(in_any_store).thread_id
    stopped = run_lines(in_any_store, (use(("list_files", {})),) * 9, max_calls_per_turn=1).thread_id
    failed = run_lines(in_any_store, (DOWN,)).thread_id
    dead = killed_run(in_any_store, 0)
    asking = Session(context(in_any_store, mode="ask"), model=HistoryModel((WRITE_NEW,)))
    with asking:
        assert isinstance([*asking.stream("Mend add.")][-1], Asked)
        assert list_states(in_any_store)[0] == (asking.thread_id, RunState.WORKING)
    forked = fork_run(finished, 1, str(in_any_store), skip_changed=True)
    assert isinstance(forked, Forked)
    assert list_states(in_any_store) == [
        (forked.run_id, RunState.FORKED),
        (asking.thread_id, RunState.ASKS),
        (dead, RunState.CUT_OFF),
        (failed, RunState.FAILED),
        (stopped, RunState.STOPPED),
        (finished, RunState.FINISHED),
    ]


@slow
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_steps_list_their_calls_and_the_files_that_can_be_restored(folder: Path, durability: Any) -> None:
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


# --- Resuming


@slow
def test_interrupted_run_resumes_to_the_same_end(folder: Path, tmp_path: Path) -> None:
    other = project(tmp_path / "other")
    undisturbed = run_lines(other)
    dead = killed_run(folder, 3)
    result = resume_run("", str(folder), model=HistoryModel(LINES))
    assert isinstance(result, RunResult)
    assert (result.thread_id, tree(folder)) == (dead, tree(other))
    assert [message.content for message in result.messages] == [message.content for message in undisturbed.messages]
    assert (result.outcome.answer, result.outcome.changed_files) == (
        undisturbed.outcome.answer,
        undisturbed.outcome.changed_files,
    )
    assert list_states(folder) == [(dead, RunState.FINISHED)]


def test_resume_without_a_person_rejects_the_approval_request(folder: Path) -> None:
    with Session(context(folder, mode="ask"), model=HistoryModel((EDIT,))) as session:
        list(session.stream("Mend add."))
    result = resume_run("", str(folder), model=HistoryModel((EDIT, Say("I may not."))))
    assert isinstance(result, RunResult)
    assert (result.outcome.answer, tree(folder)["calc.py"][0]) == ("I may not.", FILES["calc.py"].encode())


# --- Pruning


@slow
def test_prune_keeps_the_newest_runs_and_those_that_can_be_resumed(in_any_store: Path) -> None:
    runs = [run_lines(in_any_store, (Say(f"{number}"),), mode="read-only").thread_id for number in range(4)]
    dead = killed_run(in_any_store, 0)
    stopped = run_lines(in_any_store, (use(("list_files", {})),) * 9, max_calls_per_turn=1).thread_id
    assert prune_runs(str(in_any_store)) == Pruned((), 0)
    assert prune_runs(str(in_any_store), older_than_days=1) == Pruned((), 0)
    assert error(prune_runs(str(in_any_store), keep=-1)).code is ToolErrorCode.INVALID_ARGUMENT
    pruned = prune_runs(str(in_any_store), keep=3)
    assert isinstance(pruned, Pruned)
    assert pruned.run_ids == (runs[2], runs[1], runs[0])
    assert pruned.freed_bytes > 0 or uses_postgres()
    assert [run_id for run_id, _ in list_states(in_any_store)] == [stopped, dead, runs[3]]
    assert not Path(run_folder_path(runs[0])).exists()
    every = prune_runs(str(in_any_store), keep=0, unfinished=True)
    assert isinstance(every, Pruned)
    assert (every.run_ids, list_runs(str(in_any_store))) == ((stopped, dead, runs[3]), ())


def age_runs(folder: Path, days: float, *runs: str) -> None:
    """Set the end of these runs this far back, and make pruning due."""
    with closing(Store(str(folder))) as store:
        for run in runs:
            ended = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="milliseconds")
            with closing(open_database(store.folder)) as database:
                database.execute("UPDATE runs SET updated = ? WHERE run_id = ?", (ended, run))
        for mark in (Path(store.folder, "retained"), Path(store.folder).parent / "retained"):
            if mark.exists():
                os.utime(mark, (0, 0))


def finished_run(folder: Path, **more: Any) -> str:
    return run_lines(folder, (Say("4"),), mode="read-only", **more).thread_id


def run_ids(folder: Path) -> set[str]:
    return {run_id for run_id, _ in list_states(folder)}


def test_old_runs_are_removed_automatically_except_resumable_ones(in_any_store: Path) -> None:
    old, newer, dead = finished_run(in_any_store), finished_run(in_any_store), killed_run(in_any_store, 0)
    with Session(context(in_any_store, mode="ask"), model=HistoryModel((EDIT,))) as session:
        assert isinstance(list(session.stream("Mend add."))[-1], Asked)
    stopped, given_up = (
        run_lines(in_any_store, (use(("list_files", {})),) * 9, max_calls_per_turn=1).thread_id for _ in range(2)
    )
    age_runs(in_any_store, 40, dead, session.thread_id, given_up)
    age_runs(in_any_store, 10, old, stopped)
    newest = finished_run(in_any_store)
    assert run_ids(in_any_store) == {old, newer, dead, session.thread_id, stopped, given_up, newest}
    age_runs(in_any_store, 10)
    last = finished_run(in_any_store, keep_days=7)
    assert run_ids(in_any_store) == {newer, dead, session.thread_id, stopped, newest, last}
    age_runs(in_any_store, 10, newer)
    Path(str(workspace_folder(str(in_any_store))), "retained").touch()
    finished_run(in_any_store, keep_runs=1)  # within the hour
    assert {newer, newest, last} < run_ids(in_any_store)
    age_runs(in_any_store, 1)
    only = finished_run(in_any_store, keep_runs=1)
    assert run_ids(in_any_store) == {dead, session.thread_id, stopped, only}


def test_oldest_runs_are_removed_until_the_rest_is_below_keep_mb(in_any_store: Path) -> None:
    runs = [finished_run(in_any_store) for _ in range(3)]
    settings = context(in_any_store, keep_mb=1)
    with closing(Store(str(in_any_store))) as store:
        records = store.runs()
        sizes = dict.fromkeys(runs, 600000)
        assert runs_to_prune(records, sizes, settings, datetime.now(UTC)) == runs[:2]
        assert runs_to_prune(records, sizes | {runs[0]: 1, runs[1]: 1}, settings, datetime.now(UTC)) == []
        with closing(open_database(store.folder)) as database:
            sizes_in_database = dict(database.execute(_SIZES[uses_postgres()]).fetchall())
        assert sizes_in_database.keys() == {*runs}
        assert min(sizes_in_database.values()) > 500
        store.prune_by_settings(settings)
    assert run_ids(in_any_store) == {*runs}


@slow
def test_idle_workspaces_are_pruned_by_the_settings_of_their_last_run(in_any_store: Path, tmp_path: Path) -> None:
    idle, at_work, keeping = (project(tmp_path / name) for name in ("idle", "at_work", "keeping"))
    old = {folder: finished_run(folder) for folder in (idle, at_work, keeping)}
    for folder, run in old.items():
        newer = finished_run(folder, keep_days=None if folder == keeping else 7)
        age_runs(folder, 10, run)
        age_runs(folder, 3, newer)
    with RunLock(str(workspace_folder(str(at_work)))) as lock:
        assert lock.acquire(Owner("r1")) is None
        for folder in old:
            os.utime(str(workspace_folder(str(folder))), (0, 0))
        finished_run(in_any_store, keep_days=7)
    assert [old[folder] in run_ids(folder) for folder in old] == [False, True, True]


CALC = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b  # sum\n"
DOCS = "--- /dev/null\n+++ b/docs/calc.md\n@@ -0,0 +1 @@\n+# calc\n"
NOTES = "--- a/notes.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
NEW = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1 @@\n+x = 1\n"


@slow
def test_file_has_one_diff_from_before_the_run_to_now(in_any_store: Path) -> None:
    run = run_lines(in_any_store)
    expected = (
        RunDiff("calc.py", CALC),
        RunDiff("docs/calc.md", DOCS),
        RunDiff("notes.txt", NOTES),
        RunDiff("pkg/new.py", NEW),
    )
    assert run_diffs(run.thread_id[:8], str(in_any_store)) == expected
    assert isinstance(undo_run(run.thread_id, str(in_any_store), from_step=4), Restored)
    (one, other) = [diff for diff in run_diffs(run.thread_id, str(in_any_store)) if isinstance(diff, RunDiff)]
    assert (one.path, one.diff.replace("b\n", "b  # sum\n", 3).count("# sum"), other.path) == (
        "calc.py",
        2,
        "pkg/new.py",
    )


def test_file_denied_by_the_rules_is_named_without_its_text(folder: Path) -> None:
    run = run_lines(folder)
    rule = FileGuardrailRule("no_docs", "Docs are private.", lambda path: path.suffix == ".md")
    diffs = run_diffs(run.thread_id, str(folder), rules=(rule,))
    message = "Blocked by rule 'no_docs': Docs are private. (docs/calc.md). Go on without this file."
    assert diffs == (
        RunDiff("calc.py", CALC),
        RunDiff("docs/calc.md", "", message),
        RunDiff("notes.txt", NOTES),
        RunDiff("pkg/new.py", NEW),
    )


# --- Forks


@pytest.mark.parametrize("at", [0, 3])
def test_fork_starts_with_the_conversation_and_the_files_after_a_step(in_any_store: Path, at: int) -> None:
    trees, run_id = record_trees(in_any_store)
    original = state_of(in_any_store, run_id)
    forked = fork_run(run_id, at, str(in_any_store))
    assert isinstance(forked, Forked)
    assert (forked.parent, tree(in_any_store)) == (run_id, trees[at])
    store = Store(str(in_any_store))
    history = build_graph(store.saver).get_state_history({"configurable": {"thread_id": run_id}})
    (then,) = [
        snapshot for snapshot in history if snapshot.next == ("call_model",) and snapshot.values.get("step", 0) == at
    ]
    now = build_graph(store.saver).get_state({"configurable": {"thread_id": forked.run_id}})
    store.close()
    assert now.next == ("call_model",)
    assert now.values == {**then.values, "run_id": forked.run_id}
    result = resume_run(forked.run_id, str(in_any_store), model=HistoryModel(LINES))
    assert isinstance(result, RunResult)
    assert tree(in_any_store) == trees[-1]
    end = state_of(in_any_store, forked.run_id)
    assert [message.content for message in end["messages"]] == [message.content for message in original["messages"]]
    assert end["outcome"].model_dump(exclude={"usage"}) == original["outcome"].model_dump(exclude={"usage"})
    assert [end[name] for name in ("step", "files_read", "loop")] == [
        original[name] for name in ("step", "files_read", "loop")
    ]
    assert end["spending"].usage == original["spending"].usage
    assert isinstance(undo_run(forked.run_id, str(in_any_store)), Restored)
    assert tree(in_any_store) == trees[at]
    assert isinstance(undo_run(run_id, str(in_any_store)), Restored)
    assert tree(in_any_store) == trees[0]


@slow
def test_invalid_step_for_a_fork_is_reported_with_the_valid_ones(folder: Path) -> None:
    run = run_lines(folder)
    before = tree(folder)
    refused = error(fork_run(run.thread_id, 6, str(folder)))
    assert (refused.code, refused.suggestions) == (ToolErrorCode.NOT_FOUND, ("0", "1", "2", "3", "4", "5"))
    assert (tree(folder), len(list_states(folder))) == (before, 1)


def test_missing_or_ambiguous_run_is_an_error_that_says_where_to_look(folder: Path) -> None:
    none = ToolError(code=ToolErrorCode.NOT_FOUND, message="This folder has no runs yet: start a task.")
    assert error(get_run(workspace=str(folder))) == none
    for run_id in ("abc", "abd"):
        run_task("Look.", context(folder), model=HistoryModel((Say("Done."),)), thread_id=run_id)
    finished = "No run of this workspace can continue: `mendgraph runs` lists the finished ones."
    assert error(get_run(workspace=str(folder))).message == finished
    refused = error(get_run("ab", str(folder)))
    assert (refused.code, {*refused.suggestions}) == (ToolErrorCode.INVALID_ARGUMENT, {"abc", "abd"})
    unknown = "There is no run 'zz' in this workspace: `mendgraph runs` lists the existing ones."
    calls: list[Callable[[str, str], object]] = [get_run, steps_of, resume_run, open_run, undo_run]
    calls.append(lambda run, root: fork_run(run, 0, root))
    for call in calls:
        assert error(call("zz", str(folder))) == ToolError(code=ToolErrorCode.NOT_FOUND, message=unknown)


@slow
def test_fork_over_changes_of_somebody_else_is_refused(folder: Path) -> None:
    run = run_lines(folder)
    (folder / "calc.py").write_text("mine\n")
    before = tree(folder)
    assert "calc.py" in error(fork_run(run.thread_id, 1, str(folder))).message
    assert (tree(folder), list_states(folder)) == (before, [(run.thread_id, RunState.FINISHED)])


def test_unchanged_file_has_no_diff_and_a_binary_file_says_why(folder: Path) -> None:
    run = run_lines(folder)
    (folder / "calc.py").write_text(FILES["calc.py"])
    (folder / "pkg/new.py").write_bytes(b"\0\xff\xfe")
    assert run_diffs(run.thread_id, str(folder)) == (
        RunDiff("docs/calc.md", DOCS),
        RunDiff("notes.txt", NOTES),
        RunDiff("pkg/new.py", "", "it is not a text file", changed_since=True),
    )


def test_unusable_reply_is_a_step_of_its_own(folder: Path) -> None:
    broken = Calls([("edit_file", '{"path": "calc.py"')])
    steps = steps_of(run_lines(folder, (broken, Say("Done."))).thread_id, str(folder))
    assert not isinstance(steps, ToolError)
    assert [step.kind for step in steps] == [StepKind.START, StepKind.UNUSABLE, StepKind.ANSWER]


def test_file_without_a_stored_text_is_named_without_a_diff(folder: Path) -> None:
    run = run_lines(folder, (use(("list_files", {})), Say("Done.")))
    (folder / "large.bin").write_bytes(b"new")
    with closing(Store(str(folder))) as store:
        journal = Journal(store.folder)
    call = journal.begin(CallKey(run.thread_id, "later", 9, 0, "run_command", "execute", "0" * 64))
    before, after = FileState("1" * 64, 0o644), FileState(hashlib.sha256(b"new").hexdigest(), 0o644)
    journal.recorder(call).intend("token", [FileEffect("large.bin", before, after)], {}, (), ChangeState.DONE)
    assert run_diffs(run.thread_id, str(folder)) == (
        RunDiff("large.bin", "", "its earlier content was not stored, or is damaged"),
    )
