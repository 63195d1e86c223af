"""What the checkpoints of a run tell of it."""

from contextlib import closing
from pathlib import Path
from typing import Any

from mendgraph.graph.machine.routes import Transition
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.report.history import END, START, History, course_of, read_history
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.call_model.budget import APIUsageStats
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.records import LoopRecord, LoopVerdict, ModelReply
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.doubles.task_model import TaskModel
from tests.doubles.tool_use import use
from tests.surfaces.report.visits import ALLOWED, CALL, DONE, history, step, visit
from tests.surfaces.runs.run_plays import DOWN, LINES, context, cut_off, played, project

USUAL = ["call_model", "parse", "guard", "execute_tools", "loop_check"]


def read(folder: Path, run_id: str) -> History:
    with closing(Store(str(folder))) as store:
        return read_history(store.saver, run_id)


def test_run_from_its_start_to_its_end(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    found = read(folder, played(folder).thread_id)
    nodes = [START, "begin_turn", *USUAL * 5, "call_model", "parse", "FINISHED"]
    assert [each.node for each in found.visits] == nodes
    assert [each.target for each in found.visits] == [*nodes[1:], END]
    assert all(each.transition for each in found.visits)
    assert all(each.ended and each.seconds >= 0 for each in found.visits)
    assert found.requests == ("Mend add.",)


def test_run_that_was_cut_off_has_not_left_its_last_node(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    *_, last = read(folder, cut_off(folder)).visits
    assert (last.node, last.target, last.ended, last.seconds, last.transition) == ("call_model", "", None, 0.0, None)


def test_run_with_children_has_their_histories_by_step_and_place(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    calls = use(*(("delegate", {"task": task}) for task in ("A", "B")))
    model = TaskModel({"MAIN": (calls, Say("All done.")), "A": (Say("a"),), "B": (Say("b"),)})
    with Session(context(folder, delegation=True), model=model) as session:
        session.work("MAIN")
    children = read(folder, session.thread_id).children
    assert sorted(children) == [(1, 0), (1, 1)]
    assert [children[key].requests for key in sorted(children)] == [("A",), ("B",)]
    assert [children[1, 0].visits[-1].target, dict(children[1, 0].children)] == [END, {}]


def test_run_that_is_taken_up_again_says_so(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    run_id = played(folder, (LINES[0], DOWN)).thread_id
    with Session(context(folder), model=HistoryModel(LINES), thread_id=run_id) as session:
        list(session.resume())
    found = read(folder, run_id)
    assert [each.node for each in found.visits if each.taken_up] == ["call_model"]


REPLY = ModelReply(text="a reply")
TURN = (visit(START, "begin_turn"), visit("begin_turn", "call_model"))
SAID = visit("call_model", "parse", after={"reply": REPLY, "step": 1})


def test_visits_that_a_fork_took_over_have_no_number() -> None:
    assert [turn.number for turn in course_of(history(SAID)).turns] == [0]
    assert [turn.number for turn in course_of(history(TURN[1], SAID)).turns] == [1]


def test_calls_with_their_verdicts_and_results() -> None:
    edited = CALL.model_copy(update={"arguments": {"path": "b.py"}})
    first = {"kind": "approval", "calls": [{"index": 0, "arguments": {"path": "a.py"}}]}
    again = {"kind": "approval", "calls": [{"index": 0, "arguments": {"path": "b.py"}}]}
    guard = visit(
        "guard",
        "execute_tools",
        before={"items": [CALL]},
        after={"items": [edited], "verdicts": [ALLOWED]},
        asked=(first, again),
    )
    (call,) = step(SAID, guard, visit("execute_tools", "loop_check", after={"results": [DONE]})).calls
    assert (call.item, call.verdict, call.result) == (edited, ALLOWED, DONE)
    assert call.was == {"index": 0, "arguments": {"path": "a.py"}}


def test_turns_that_were_kept_at_their_end_have_no_visits(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    assert read(folder, "none") == history()
    with Session(context(folder), model=HistoryModel(LINES), durability="exit") as session:
        session.work("Mend add.")
        session.work("Once more.")
    found = read(folder, session.thread_id)
    assert (found.visits, found.requests) == ((), ("Mend add.", "Once more."))


LABELS = {
    LoopVerdict.PERSISTED: "still repeating",
    LoopVerdict.GAVE_UP: "tries used up",
    LoopVerdict.BROKEN: "workspace failed",
}


def test_edges_with_both_ends_in_common_are_told_apart() -> None:
    for verdict, label in LABELS.items():
        left = visit("loop_check", "SYSTEM_ERROR", after={"loop": LoopRecord(verdict=verdict)})
        assert left.transition == Transition("loop_check", label, "SYSTEM_ERROR")


def test_visits_of_the_model_for_one_reply_are_one_step() -> None:
    spent = [Spending(usage=APIUsageStats(calls, 0, 0, calls)) for calls in range(3)]
    for edge in ("retry", "next model", "conversation shortened"):
        again: Any = {"pending_call": PendingCall(edge=edge)}
        end = {"reply": REPLY, "step": 1, "spending": spent[2]}
        failed = visit("call_model", "call_model", before={"spending": spent[0]}, after={**again, "spending": spent[1]})
        said = visit("call_model", "parse", before={**again, "spending": spent[1]}, after=end)
        course = course_of(history(*TURN, failed, said))
        (found,) = course.steps
        assert (found.number, found.reply, len(found.visits)) == (1, REPLY, 2)
        assert found.spending == (spent[0], spent[2])
        assert course.edges[Transition("call_model", edge, "call_model")] == 1
