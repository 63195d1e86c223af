"""What the checkpoints of a run tell of it."""

from contextlib import closing
from pathlib import Path

import pytest

from graph.report.history import END, START, History, read_history
from graph.routes import Transition
from graph.run import Session
from graph.store import Store
from nodes.records import LoopRecord, LoopVerdict
from tests.doubles.history_model import HistoryModel
from tests.graph.report.visits import visit
from tests.graph.run_plays import DOWN, LINES, context, cut_off, played, project

USUAL = ["call_model", "parse", "guard", "execute_tools", "loop_check"]


def read(folder: Path, run_id: str) -> History:
    with closing(Store(str(folder))) as store:
        return read_history(store.saver, run_id)


def test_a_run_from_its_start_to_its_end(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    found = read(folder, played(folder).thread_id)
    nodes = [START, "begin_turn", *USUAL * 5, "call_model", "parse", "FINISHED"]
    assert [each.node for each in found.visits] == nodes
    assert [each.target for each in found.visits] == [*nodes[1:], END]
    assert all(each.transition for each in found.visits)
    assert all(each.ended and each.seconds >= 0 for each in found.visits)
    assert (found.whole, found.requests) == (True, ("Mend add.",))
    assert [who for who, _ in found.messages] == [
        "person",
        *["model", "results", "results"],
        *["model", "results"] * 4,
        "model",
    ]
    assert found.messages[1][1] == 'read_file({"path": "calc.py"})\nread_file({"path": "notes.txt"})'


def test_a_run_that_was_cut_off_has_not_left_its_last_node(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    *_, last = read(folder, cut_off(folder)).visits
    assert (last.node, last.target, last.ended, last.seconds, last.transition) == ("call_model", "", None, 0.0, None)


def test_a_run_that_is_taken_up_again_says_so(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    run_id = played(folder, (LINES[0], DOWN)).thread_id
    with Session(context(folder), model=HistoryModel(LINES), thread_id=run_id) as session:
        list(session.resume())
    found = read(folder, run_id)
    assert [each.node for each in found.visits if each.taken_up] == ["call_model"]
    assert found.whole


def test_of_turns_that_were_kept_at_their_end_no_visit_is_made_up(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    with Session(context(folder), model=HistoryModel(LINES), durability="exit") as session:
        session.work("Mend add.")
        session.work("Once more.")
    found = read(folder, session.thread_id)
    assert (found.visits, found.whole) == ((), False)
    assert found.requests == ("Mend add.", "Once more.")


def test_an_unknown_run_has_no_history(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    assert read(folder, "nobody") == History((), whole=True, values={}, requests=(), messages=())


@pytest.mark.parametrize(
    ("verdict", "label"),
    [
        (LoopVerdict.PERSISTED, "still repeating"),
        (LoopVerdict.GAVE_UP, "tries used up"),
        (LoopVerdict.BROKEN, "workspace failed"),
    ],
)
def test_edges_with_both_ends_in_common_are_told_apart(verdict: LoopVerdict, label: str) -> None:
    left = visit("loop_check", "SYSTEM_ERROR", after={"loop": LoopRecord(verdict=verdict)})
    assert left.transition == Transition("loop_check", label, "SYSTEM_ERROR")


def test_an_edge_that_the_table_does_not_know_is_none() -> None:
    assert visit("loop_check", "SYSTEM_ERROR").transition is None
    assert visit("parse", "execute_tools").transition is None
