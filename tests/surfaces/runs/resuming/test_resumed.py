"""A run that is interrupted after any event and resumed as by a new process has the result of an undisturbed run."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import AgentContext, Asked, Ended, RunResult, Session, Text, Traced, list_runs, open_run, serializer
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.doubles.tool_use import Use, message_of, use
from tests.extent import slow
from tests.surfaces.runs import run_plays
from tests.surfaces.runs.tool_play import play, reads, scripted_model, session as open_session
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

FILES = {"a.py": "a = 1\n", "b.py": "b = 2\n", "sub/c.txt": "c\n", ".env": "A=1\n"}
PATCH = "*** Begin Patch\n*** Update File: b.py\n@@\n-b = 2\n+b = 3\n*** Delete File: sub/c.txt\n*** End Patch\n"

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("read_file", {"path": "a.py"}),
    ("read_file", {"path": ".env"}),
    ("edit_file", {"path": "a.py", "old_str": "1", "new_str": "11"}),
    ("edit_file", {"path": "a.py", "old_str": "no such text", "new_str": "x"}),
    ("write_file", {"path": "new/d.py", "content": "d = 4\n"}),
    ("append_file", {"path": "b.py", "content": "more = 1\n"}),
    ("apply_patch", {"patch": PATCH}),
    ("delete_file", {"path": "b.py"}),
    ("move_file", {"path": "sub/c.txt", "target": "sub/e.txt"}),
    ("search_files", {"pattern": "a"}),
    ("update_plan", {"steps": [{"title": "mend it", "status": "done"}]}),
    ("no_such_tool", {}),
    ("edit_file", {"path": 3}),
)
LINES = st.lists(st.sampled_from(CALLS), min_size=1, max_size=3).map(lambda calls: use(*calls))
NUMBERS = count()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("places")
    yield folder
    shutil.rmtree(folder)


def workspace(places: Path) -> Path:
    root = places / str(next(NUMBERS))
    write_files(root, FILES)
    return root


def model_of(lines: Sequence[Use | Say]) -> HistoryModel:
    return HistoryModel([message_of(line, Protocol.NATIVE) for line in lines])


def session(root: Path, model: Any, **more: Any) -> Session:
    context = AgentContext(workspace=str(root), protocol="native", offer="all", **more)
    return Session(context, model=model, thread_id=root.name)


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode)
        for path in root.rglob("*")
        if path.is_file()
    }


def ending(root: Path, result: RunResult) -> tuple[Any, ...]:
    """All values that must be the same after an interruption; durations are left out."""
    usage = {name: value for name, value in result.outcome.usage.items() if not name.startswith("seconds")}
    history = [(message.type, message.content, getattr(message, "tool_calls", None)) for message in result.messages]
    return result.outcome.model_copy(update={"usage": usage}), history, result.changes, result.plan, files(root)


def undisturbed(root: Path, lines: Sequence[Use | Say], **more: Any) -> tuple[list[int], tuple[Any, ...]]:
    """After how many events the undisturbed run can be abandoned, and its ending. Traces come in groups."""
    with session(root, model_of(lines), **more) as opened:
        events = list(opened.stream("Do it."))
        places = [place for place, event in enumerate(events) if place and not isinstance(event, Traced)]
        return places, ending(root, opened.result())


def ending_after_cut(root: Path, lines: Sequence[Use | Say], after: int, **more: Any) -> tuple[Any, ...]:
    """The ending of a run that is abandoned after this many events and resumed by another session."""
    with session(root, model_of(lines), **more) as opened:
        stream = opened.stream("Do it.")
        assert len(list(islice(stream, after))) == after
        stream.close()
    taken_up = open_run("", str(root), model=model_of(lines))
    assert isinstance(taken_up, Session), taken_up
    with taken_up:
        list(taken_up.resume())
        return ending(root, taken_up.result())


@slow
@settings(max_examples=8)
@given(
    lines=st.lists(LINES, min_size=1, max_size=4),
    limit=st.sampled_from([2, 10]),
    share=st.floats(0, 1, exclude_max=True),
)
def test_run_interrupted_at_any_event_resumes_with_the_same_result(
    places: Path, lines: list[Use], limit: int, share: float
) -> None:
    places_to_stop, expected = undisturbed(workspace(places), lines, max_calls_per_turn=limit)
    after = places_to_stop[int(share * len(places_to_stop))]
    assert ending_after_cut(workspace(places), lines, after, max_calls_per_turn=limit) == expected


@slow
def test_run_with_all_tools_resumes_with_the_same_result_after_every_third_event(places: Path) -> None:
    lines: list[Use | Say] = [use(*CALLS[:5]), use(*CALLS[5:9]), use(*CALLS[9:]), Say("All done.")]
    places_to_stop, expected = undisturbed(workspace(places), lines)
    endings = [ending_after_cut(workspace(places), lines, after) for after in places_to_stop[::3]]
    assert endings == [expected] * len(places_to_stop[::3])


@slow
def test_received_reply_is_not_requested_again(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if threads deliver their results a moment late, as on a busy machine."""
    hand_over: Callable[[Future[Any]], None] = Future._invoke_callbacks  # type: ignore[attr-defined]

    def late(future: Future[Any]) -> None:
        time.sleep(0.01)
        hand_over(future)

    monkeypatch.setattr(Future, "_invoke_callbacks", late)
    lines: list[Use | Say] = [use(CALLS[0]), Say("All done.")]
    places_to_stop, expected = undisturbed(workspace(places), lines)
    assert [ending_after_cut(workspace(places), lines, after) for after in places_to_stop] == [expected] * len(
        places_to_stop
    )


class Wordy(HistoryModel):
    """Does not finish its first reply."""

    blocks = True

    def __init__(self, lines: Sequence[Say]) -> None:
        super().__init__(lines)

    def chunks(self, call: Any) -> Iterator[AIMessageChunk]:
        if not self.calls:
            self.calls.append(call)
            for _ in range(10_000):
                yield AIMessageChunk(content="Well. ")
                time.sleep(0.001)
        yield from super().chunks(call)


def test_closing_the_stream_stops_the_run_and_the_reply_is_requested_again(places: Path) -> None:
    root = workspace(places)
    model = Wordy([Say("All done.")])
    with session(root, model) as opened:
        stream = opened.stream("Do it.")
        assert next(stream) == Text(text="Well. ")
        stream.close()
        outcome = opened.result().outcome
    assert outcome.message == "The run was stopped by the program, which closed the stream."
    assert (outcome.reason, outcome.usage["total_calls"]) == ("cancelled", 1)
    listed = list_runs(str(root))
    assert isinstance(listed, tuple), listed
    assert [(run.standing, run.kind, run.reason) for run in listed] == [("stopped", "BUDGET_STOP", "cancelled")]
    taken_up = open_run("", str(root), model=model)
    assert isinstance(taken_up, Session), taken_up
    with taken_up:
        *_, last = taken_up.resume()
    assert isinstance(last, Ended)
    assert (last.outcome.answer, last.outcome.usage["total_calls"]) == ("All done.", 2)


@pytest.mark.parametrize("edits", [True, False])
def test_resumed_run_need_not_change_a_file_again(tmp_path: Path, edits: bool) -> None:
    write_files(tmp_path, FILES)
    first = use(CALLS[2]) if edits else reads("a.py")
    settings: dict[str, Any] = {"require_changes": True, "thread_id": "r"}
    run = play(tmp_path, first, max_calls_per_turn=1, **settings)
    assert (run.outcome.kind, bool(run.result.changed_files)) == ("BUDGET_STOP", edits)
    with open_session(tmp_path, scripted_model(Protocol.NATIVE), max_calls_per_turn=5, **settings) as later:
        list(later.resume())
        assert later.result().outcome.reason == ("answered" if edits else "nothing_changed")


# --- In another folder: the folder where the run began is not touched any more


@slow
def test_resumed_run_works_only_in_the_new_folder(tmp_path: Path) -> None:
    old, saver = run_plays.project(tmp_path / "old"), InMemorySaver(serde=serializer())
    run_id = run_plays.killed_run(old, 2, checkpointer=saver)
    new = shutil.copytree(old, tmp_path / "new")
    before = run_plays.tree(old)

    context, model = run_plays.context(new), HistoryModel(run_plays.LINES)
    with Session(context, model=model, checkpointer=saver, thread_id=run_id) as moved:
        *_, end = moved.resume()
    assert isinstance(end, Ended)
    assert end.outcome.kind == "FINISHED"
    assert run_plays.tree(old) == before
    assert (new / "pkg" / "new.py").read_text(encoding="utf-8") == "x = 1\n"


@slow
def test_approval_of_a_moved_run_is_refused_until_it_is_resumed(tmp_path: Path) -> None:
    old, saver = run_plays.project(tmp_path / "old"), InMemorySaver(serde=serializer())
    lines = (run_plays.EDIT, run_plays.EDIT, Say("It adds now."))  # the first one is never approved
    with Session(run_plays.context(old, mode="ask"), model=HistoryModel(lines), checkpointer=saver) as asking:
        assert isinstance(asking.work("Mend add."), Asked)
    new = shutil.copytree(old, tmp_path / "new")
    before = run_plays.tree(old)

    context, run_id = run_plays.context(new, mode="ask"), asking.thread_id
    with Session(context, model=HistoryModel(lines), checkpointer=saver, thread_id=run_id) as moved:
        *_, refusal = moved.answer("approve")
        assert isinstance(refusal, Ended)
        assert refusal.outcome.message == "The workspace has moved since the approval was requested: resume the run."
        assert run_plays.tree(new) == before
        assert isinstance([*moved.resume()][-1], Asked)
        *_, end = moved.answer("approve")
    assert isinstance(end, Ended)
    assert end.outcome.changed_files == ("calc.py",)
    assert run_plays.tree(old) == before
