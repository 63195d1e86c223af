"""A run that is cut off after any of its events and taken up in a new process's place ends as if nothing had been."""

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

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Ended, Text, Traced
from mendgraph.graph.runs.run import RunResult, Session
from mendgraph.graph.runs.runs import RunState, list_runs, open_run
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import Protocol, StopReason
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.doubles.scripted_model import Line
from tests.doubles.tool_use import Use, message_of, use
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
    """All that has to be the same, whatever happened in between: not the time that it took."""
    usage = {name: value for name, value in result.outcome.usage.items() if not name.startswith("seconds")}
    history = [(message.type, message.content, getattr(message, "tool_calls", None)) for message in result.messages]
    return result.outcome.model_copy(update={"usage": usage}), history, result.changes, result.plan, files(root)


def whole(root: Path, lines: Sequence[Use | Say], **more: Any) -> tuple[list[int], tuple[Any, ...]]:
    """Where the run that nobody disturbs may be left, after how many events, and its ending. Traces come in crowds."""
    with session(root, model_of(lines), **more) as opened:
        events = list(opened.stream("Do it."))
        places = [place for place, event in enumerate(events) if place and not isinstance(event, Traced)]
        return places, ending(root, opened.result())


def cut_off(root: Path, lines: Sequence[Use | Say], after: int, **more: Any) -> tuple[Any, ...]:
    """The ending of the run that is left after so many events, and taken up by another session."""
    with session(root, model_of(lines), **more) as opened:
        stream = opened.stream("Do it.")
        assert len(list(islice(stream, after))) == after
        stream.close()
    taken_up = open_run("", str(root), model=model_of(lines))
    assert isinstance(taken_up, Session), taken_up
    with taken_up:
        list(taken_up.resume())
        return ending(root, taken_up.result())


@settings(max_examples=8)
@given(
    lines=st.lists(LINES, min_size=1, max_size=4),
    limit=st.sampled_from([2, 10]),
    share=st.floats(0, 1, exclude_max=True),
)
def test_run_that_is_cut_off_anywhere_ends_as_if_nothing_had_been(
    places: Path, lines: list[Use], limit: int, share: float
) -> None:
    left, expected = whole(workspace(places), lines, max_calls_per_turn=limit)
    after = left[int(share * len(left))]
    assert cut_off(workspace(places), lines, after, max_calls_per_turn=limit) == expected


EVERYTHING: list[Use | Say] = [use(*CALLS[:5]), use(*CALLS[5:9]), use(*CALLS[9:]), Say("All done.")]


def test_one_run_is_cut_off_after_every_other_of_its_events(places: Path) -> None:
    left, expected = whole(workspace(places), EVERYTHING)
    found = [cut_off(workspace(places), EVERYTHING, after) for after in left[::2]]
    assert found == [expected] * len(left[::2])


@pytest.fixture
def handed_over_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads hand over what they came to a moment after they have ended, as they do on a machine with much to do."""
    hand_over: Callable[[Future[Any]], None] = Future._invoke_callbacks  # type: ignore[attr-defined]

    def late(future: Future[Any]) -> None:
        time.sleep(0.01)
        hand_over(future)

    monkeypatch.setattr(Future, "_invoke_callbacks", late)


@pytest.mark.usefixtures("handed_over_late")
def test_reply_that_has_come_is_not_asked_for_again(places: Path) -> None:
    lines: list[Use | Say] = [use(CALLS[0]), Say("All done.")]
    left, expected = whole(workspace(places), lines)
    assert [cut_off(workspace(places), lines, after) for after in left] == [expected] * len(left)


class Wordy(HistoryModel):
    """Comes to no end the first time."""

    blocks = True

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__(lines)

    def chunks(self, call: Call) -> Iterator[AIMessageChunk]:
        if not self.calls:
            self.calls.append(call)
            for _ in range(10_000):
                yield AIMessageChunk(content="Well. ")
                time.sleep(0.001)
        yield from super().chunks(call)


def test_reply_that_is_dropped_ends_the_run_and_is_asked_for_again_at_once(places: Path) -> None:
    root = workspace(places)
    model = Wordy([Say("All done.")])
    with session(root, model) as opened:
        stream = opened.stream("Do it.")
        assert next(stream) == Text(text="Well. ")
        stream.close()
        left = opened.result().outcome
        assert (left.reason, left.message, left.usage["total_calls"]) == (
            StopReason.CANCELLED,
            "The run was stopped by the program, which closed the stream.",
            1,
        )
    listed = list_runs(str(root))
    assert isinstance(listed, tuple), listed
    (known,) = listed
    assert (known.standing, known.kind, known.reason) == (RunState.STOPPED, "BUDGET_STOP", "cancelled")
    taken_up = open_run("", str(root), model=model)
    assert isinstance(taken_up, Session), taken_up
    with taken_up:
        *_, last = taken_up.resume()
        assert isinstance(last, Ended)
        assert (last.outcome.reason, last.outcome.answer, last.outcome.usage["total_calls"]) == (
            StopReason.ANSWERED,
            "All done.",
            2,
        )
