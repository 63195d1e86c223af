"""A run whose workspace lies in another folder when it goes on: the folder where it began is not touched any more."""

import shutil
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.machine.state import serializer
from mendgraph.graph.runs.events import Asked, Ended
from mendgraph.graph.runs.run import Session
from mendgraph.nodes.records import OutcomeKind, StopReason
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.graph.runs.run_plays import EDIT, LINES, context, cut_off, project, tree


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return project(tmp_path / "old")


@pytest.fixture
def saver() -> InMemorySaver:
    return InMemorySaver(serde=serializer())


def test_resumed_run_works_in_new_folder_only(old: Path, tmp_path: Path, saver: InMemorySaver) -> None:
    run_id = cut_off(old, 2, checkpointer=saver)
    new = shutil.copytree(old, tmp_path / "new")
    before = tree(old)

    with Session(context(new), model=HistoryModel(LINES), checkpointer=saver, thread_id=run_id) as session:
        *_, end = session.resume()
    assert isinstance(end, Ended)
    assert end.outcome.kind is OutcomeKind.FINISHED
    assert tree(old) == before
    assert (new / "pkg" / "new.py").read_text(encoding="utf-8") == "x = 1\n"


def test_approval_of_moved_run_is_refused_until_it_is_resumed(old: Path, tmp_path: Path, saver: InMemorySaver) -> None:
    lines = (EDIT, EDIT, Say("It adds now."))  # the first one is never approved
    with Session(context(old, mode="ask"), model=HistoryModel(lines), checkpointer=saver) as session:
        *_, request = session.stream("Mend add.")
        assert isinstance(request, Asked)
    new = shutil.copytree(old, tmp_path / "new")
    before = tree(old)

    asking, run_id = context(new, mode="ask"), session.thread_id
    with Session(asking, model=HistoryModel(lines), checkpointer=saver, thread_id=run_id) as moved:
        *_, refusal = moved.answer("approve")
        assert isinstance(refusal, Ended)
        assert refusal.outcome.reason is StopReason.INVALID_REQUEST
        assert refusal.outcome.message == "The workspace has moved since the approval was requested: resume the run."
        assert tree(new) == before

        *_, request = moved.resume()
        assert isinstance(request, Asked)
        *_, end = moved.answer("approve")
    assert isinstance(end, Ended)
    assert end.outcome.changed_files == ("calc.py",)
    assert tree(old) == before
