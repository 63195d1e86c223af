"""What the report says of runs of each kind: `pages/<name>.txt` holds the text of the page, compared exactly.

`make test ARGS="tests/surfaces/report --update-snapshots"` writes the files; read them before you commit them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mendgraph import AgentContext, Asked, Effect, Session, ToolError, default_tools, fork_run, report_html, tool
from mendgraph.documents import ToolErrorCode
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Calls, Say, Think
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.doubles.task_model import TaskModel
from tests.doubles.tool_use import use as task_use
from tests.extent import slow
from tests.snapshots import Snapshots
from tests.surfaces.report.page_text import page_text
from tests.surfaces.report.report_plays import page, run_with_approvals
from tests.surfaces.runs.run_plays import DOWN, EDIT, LINES, context, killed_run, project, run_lines, use

PAGES = Path(__file__).with_name("pages")
BUSY = ProviderFailure(kind=ProviderErrorKind.RATE_LIMITED, message="The endpoint is busy.", retry_after_s=0.0)
READ = use(("read_file", {"path": "calc.py"}))
PRINTED = '{"name": "read_file", "arguments": {"path": "calc.py"}}'
BROKEN_LINES = 'tool: read_file({"path": "calc.py"})\ntool: ({"path"'
MISS = use(("edit_file", {"path": "calc.py", "old_str": "a * b", "new_str": "a + b"}))


@tool(effect=Effect.WRITE)
def publish(name: str) -> ToolError:
    """Publish the package."""
    return ToolError(code=ToolErrorCode.IO_ERROR, message=f"Cannot publish {name!r}: the disk is full.", fatal=True)


def run(folder: Path, *lines: Line, **settings: Any) -> str:
    """Play a run that ends by itself, or that waits for a person."""
    settings = {"evidence": False, "read_ahead": False, "workspace": str(project(folder)), **settings}
    with Session(AgentContext(**settings), model=ScriptedModel(lines), tools=(*default_tools(), publish)) as session:
        session.work("Mend add in calc.py.")
    return session.thread_id


def run_with_answer(folder: Path, answer: Any, *lines: Line) -> str:
    """Play a run in mode ask, in which a person gives the same answer to each question."""
    with Session(context(project(folder), mode="ask"), model=ScriptedModel(lines)) as session:
        event = session.work("Mend add.")
        while isinstance(event, Asked):
            event = session.work_on(answer)
    return session.thread_id


def run_with_children(folder: Path) -> str:
    calls = task_use(*(("delegate", {"task": task}) for task in ("A", "B")))
    model = TaskModel({"MAIN": (calls, Say("All done.")), "A": (Say("a"),), "B": (Say("b"),)})
    with Session(context(project(folder), delegation=True), model=model) as session:
        session.work("MAIN")
    return session.thread_id


def resume(folder: Path, run_id: str) -> str:
    with Session(context(folder), model=HistoryModel(LINES), thread_id=run_id) as session:
        list(session.resume())
    return run_id


class Reporting(HistoryModel):
    """A model that makes the report during its second call."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LINES)
        self._folder = folder
        self.report = ""

    def complete(self, call: Any, on_text: Callable[[str], None]) -> Any:
        if len(self.calls) == 1:
            self.report = page(report_html("", str(self._folder)))
        return super().complete(call, on_text)


def run_of_two_turns(folder: Path, **options: Any) -> str:
    with Session(context(project(folder)), model=HistoryModel((*LINES, EDIT, Say("Once more."))), **options) as session:
        session.work("Mend add.")
        session.work("And <i>now</i>?")
    return session.thread_id


def forked_run(folder: Path) -> str:
    forked = fork_run(run_of_two_turns(folder), 2, str(folder))
    return getattr(forked, "run_id", "")


RUNS: dict[str, Callable[[Path], str]] = {
    "approvals": lambda folder: run_with_approvals(folder, require_changes=True),
    "approved_for_the_run": lambda folder: run_with_answer(folder, "approve_for_run", EDIT, MISS),
    "stopped_by_a_person": lambda folder: run_with_answer(folder, "stop", EDIT),
    "waits_for_a_person": lambda folder: run(folder, EDIT, mode="ask"),
    "cut_off": lambda folder: killed_run(project(folder)),
    "resumed": lambda folder: resume(folder, run_lines(project(folder), (LINES[0], DOWN)).thread_id),
    "two_turns": run_of_two_turns,
    "only_ends_kept": lambda folder: run_of_two_turns(folder, durability="exit"),
    "forked": forked_run,
    "forked_and_resumed": lambda folder: resume(folder, forked_run(folder)),
    "children": run_with_children,
    "retries": lambda folder: run(folder, BUSY, BUSY, READ, Say("Seen.")),
    "endpoint_down": lambda folder: run(folder, READ, DOWN),
    "loop": lambda folder: run(folder, *[READ] * 6),
    "disk_full": lambda folder: run(folder, use(("publish", {"name": "calc"}))),
    "read_as_it_is": lambda folder: run(folder, Say(PRINTED)),
    "malformed_in_text": lambda folder: run(folder, Say(BROKEN_LINES), protocol="text"),
    "budget_stop": lambda folder: run(folder, READ, EDIT, max_calls_per_turn=2),
    "read_ahead": lambda folder: run(folder, Say("It subtracts."), read_ahead=True),
    "malformed_call": lambda folder: run(folder, Calls([("read_file", '{"path": ')]), READ),
    "unknown_tool": lambda folder: run(folder, Calls([("read_file", '{"path": "calc.py"}'), ("x", "{")])),
    "thoughts": lambda folder: run(folder, Think("I look at it.", "It subtracts.")),
}


@slow
@pytest.mark.parametrize("name", RUNS)
def test_page_has_the_expected_text(name: str, tmp_path: Path, snapshots: Snapshots) -> None:
    folder = tmp_path / "project"
    run_id = RUNS[name](folder)
    html = page(report_html(run_id, str(folder)))
    snapshots.check(PAGES / f"{name}.txt", page_text(html, run_id, str(folder)))


@slow
def test_report_of_an_active_run_shows_its_node(tmp_path: Path, snapshots: Snapshots) -> None:
    folder = project(tmp_path / "project")
    model = Reporting(folder)
    with Session(context(folder), model=model) as session:
        session.work("Mend add.")
    snapshots.check(PAGES / "at_work.txt", page_text(model.report, session.thread_id, str(folder)))
