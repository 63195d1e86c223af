"""What has come of a run so far: its diffs in all turns together, and its plan."""

import hashlib
from contextlib import closing
from pathlib import Path

import pytest

from graph.run import Session
from graph.run_work import RunDiff, run_diffs, run_plan
from graph.store import Store
from graph.time_travel import undo_run
from nodes.execute_tools.environment.change_records import FileEffect, FileState
from nodes.execute_tools.environment.journal import CallKey, Journal
from nodes.execute_tools.environment.restoring import Restored
from nodes.guard.file_rules import FileGuardrailRule
from nodes.records import Plan, PlanStatus, PlanStep, ToolError, ToolErrorCode
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.graph.run_plays import context, cut_off, played, project, use

CALC = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b  # sum\n"
DOCS = "--- /dev/null\n+++ b/docs/calc.md\n@@ -0,0 +1 @@\n+# calc\n"
NOTES = "--- a/notes.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
NEW = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1 @@\n+x = 1\n"


@pytest.fixture
def folder(any_store: str, tmp_path: Path) -> Path:  # noqa: ARG001 - each test runs with both
    return project(tmp_path / "project")


def test_each_file_has_one_diff_from_before_the_run_to_now(folder: Path) -> None:
    run = played(folder)
    expected = (
        RunDiff("calc.py", CALC),
        RunDiff("docs/calc.md", DOCS),
        RunDiff("notes.txt", NOTES),
        RunDiff("pkg/new.py", NEW),
    )
    assert run_diffs(run.thread_id[:8], str(folder)) == expected
    assert isinstance(undo_run(run.thread_id, str(folder), from_step=4), Restored)
    (one, other) = [each for each in run_diffs(run.thread_id, str(folder)) if isinstance(each, RunDiff)]
    assert (one.path, one.diff.replace("b\n", "b  # sum\n", 3).count("# sum"), other.path) == (
        "calc.py",
        2,
        "pkg/new.py",
    )


def test_a_run_that_was_cut_off_has_its_diffs_too(folder: Path) -> None:
    found = run_diffs(cut_off(folder, 2), str(folder))
    assert isinstance(found, tuple)
    assert [each.path for each in found] == ["calc.py"]


def test_what_others_changed_since_is_in_it_and_said(folder: Path) -> None:
    run = played(folder)
    (folder / "pkg" / "new.py").write_text("x = 2\n", encoding="utf-8")
    (folder / "docs" / "calc.md").write_bytes(b"\xff\xfe")
    (folder / "notes.txt").write_text("old\n", encoding="utf-8")
    found = run_diffs(run.thread_id, str(folder))
    assert found == (
        RunDiff("calc.py", CALC),
        RunDiff("docs/calc.md", "", "it is no text", changed_since=True),
        RunDiff("pkg/new.py", NEW.replace("1\n", "2\n").replace("+2 @@", "+1 @@"), changed_since=True),
    )


def test_a_file_that_the_rules_deny_is_named_without_its_text(folder: Path) -> None:
    run = played(folder)
    rule = FileGuardrailRule("no_docs", "Docs are private.", lambda path: path.suffix == ".md")
    found = run_diffs(run.thread_id, str(folder), rules=(rule,))
    said = "Blocked by rule 'no_docs': Docs are private. (docs/calc.md). Go on without this file."
    assert found == (
        RunDiff("calc.py", CALC),
        RunDiff("docs/calc.md", "", said),
        RunDiff("notes.txt", NOTES),
        RunDiff("pkg/new.py", NEW),
    )


def test_a_file_of_which_nothing_was_kept_is_named_without_a_diff(folder: Path) -> None:
    run = played(folder, (use(("list_files", {})), Say("Done.")))
    (folder / "large.bin").write_bytes(b"new")
    with closing(Store(str(folder))) as store:
        journal = Journal(store.folder)
    call = journal.begin(CallKey(run.thread_id, "later", 9, 0, "run_command", "execute", "0" * 64))
    before, after = FileState("1" * 64, 0o644), FileState(hashlib.sha256(b"new").hexdigest(), 0o644)
    journal.recorder(call).add("token", [FileEffect("large.bin", before, after)], {}, ())
    assert run_diffs(run.thread_id, str(folder)) == (
        RunDiff("large.bin", "", "what it held before was not kept, or is damaged"),
    )


def test_a_plan_stands_as_the_model_left_it(folder: Path) -> None:
    steps = [{"title": "Look", "status": "done"}, {"title": "Mend", "status": "in_progress"}]
    model = HistoryModel((use(("update_plan", {"steps": steps})), Say("More later.")))
    with Session(context(folder), model=model) as session:
        session.work("Fix it")
        run_id = session.thread_id
    done, going = PlanStep(title="Look", status=PlanStatus.DONE), PlanStep(title="Mend", status=PlanStatus.IN_PROGRESS)
    assert run_plan(run_id, str(folder)) == Plan(steps=(done, going))
    assert run_plan(played(folder).thread_id, str(folder)) == Plan()


def test_a_run_that_is_not_there_is_named(folder: Path) -> None:
    for found in (run_diffs("nothing", str(folder)), run_plan("nothing", str(folder))):
        assert isinstance(found, ToolError)
        assert found.code is ToolErrorCode.NOT_FOUND
