"""What a run went through, as its checkpoints tell it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.build import build_graph
from graph.cassettes.run_course import RunCourse, _as_asked_for, read_course
from graph.context import AgentContext
from graph.open_store import thread_config
from graph.run import Session
from graph.state import serializer
from nodes.call_model.compaction import SUMMARY_SYSTEM, Summary, read_summary, summary_text
from nodes.call_model.model import Call
from nodes.records import ModelReply, OutcomeKind, ProviderFailure, StopReason, ToolError
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.graph.run_plays import DOWN, EDIT, context as context_of_runs, cut_off, error, project

SAID = {"done": ["looked"], "left": ["mend it"]}
BROKEN = Calls([("edit_file", '{"path": "calc.py"')])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path / "work")


def course(folder: Path, *lines: Line, turns: int = 1, mode: str = "auto") -> RunCourse | ToolError:
    context = AgentContext.model_validate(
        {"workspace": str(folder), "evidence": False, "read_ahead": False, "protocol": "native", "mode": mode}
    )
    saver = InMemorySaver(serde=serializer())
    with Session(context, model=ScriptedModel(lines), checkpointer=saver, thread_id="t") as session:
        for turn in range(turns):
            session.work(f"Task {turn}")
    return read_course(saver, "t")


def read(folder: Path, *lines: Line, turns: int = 1) -> RunCourse:
    found = course(folder, *lines, turns=turns)
    assert isinstance(found, RunCourse), found
    return found


def refused(folder: Path, *lines: Line, mode: str = "auto") -> str:
    found = course(folder, *lines, mode=mode)
    assert isinstance(found, ToolError)
    return found.message


def test_replies_are_told_also_those_that_healing_dropped(folder: Path) -> None:
    found = read(folder, BROKEN, EDIT, Say("Done."))
    (turn,) = found.turns
    assert [reply.text or reply.calls[0].arguments for reply in turn.replies] == [
        '{"path": "calc.py"',
        '{"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}',
        "Done.",
    ]
    assert [node for _, node in found.path] == [
        *("begin_turn", "call_model", "parse", "heal", "call_model", "parse", "guard", "execute_tools", "loop_check"),
        *("call_model", "parse", "FINISHED"),
    ]
    assert [(each.step, each.tool) for each in found.results] == [(2, "edit_file")]
    assert found.requests == ("Task 0",)


def test_each_turn_has_its_own_words_and_its_own_end(folder: Path) -> None:
    found = read(folder, EDIT, DOWN, Say("Done."), turns=2)
    assert [len(turn.replies) for turn in found.turns] == [1, 1]
    failure = found.turns[0].failure
    assert failure is not None
    assert (failure.reason, found.turns[1].failure) == (StopReason.PROVIDER_FAILED, None)
    assert [outcome.kind for outcome in found.outcomes] == [OutcomeKind.SYSTEM_ERROR, OutcomeKind.FINISHED]


def test_a_run_that_asks_has_not_ended(folder: Path) -> None:
    assert "has not ended" in refused(folder, EDIT, Say("Done."), mode="ask")


def test_a_run_that_asked_is_refused(folder: Path) -> None:
    context = AgentContext(workspace=str(folder), evidence=False, protocol="native", mode="ask")
    saver = InMemorySaver(serde=serializer())
    with Session(context, model=ScriptedModel([EDIT, Say("Done.")]), checkpointer=saver, thread_id="t") as session:
        session.work("Mend add.")
        session.work_on("approve")
    found = read_course(saver, "t")
    assert isinstance(found, ToolError)
    assert "In step 1 a person was asked" in found.message


def test_a_run_that_nobody_knows_has_not_ended() -> None:
    found = read_course(InMemorySaver(serde=serializer()), "t")
    assert isinstance(found, ToolError)
    assert "has not ended" in found.message


def test_a_run_of_which_only_the_end_is_kept_is_refused(folder: Path) -> None:
    context = AgentContext(workspace=str(folder), evidence=False, protocol="native")
    saver = InMemorySaver(serde=serializer())
    options = {"checkpointer": saver, "thread_id": "t", "durability": "exit"}
    with Session(context, model=ScriptedModel([Say("Done.")]), **options) as session:  # type: ignore[arg-type]
        session.work("Mend add.")
    found = read_course(saver, "t")
    assert isinstance(found, ToolError)
    assert "only runs with durability sync or async" in found.message


def test_a_run_whose_model_was_never_called_says_why(folder: Path) -> None:
    saver = InMemorySaver(serde=serializer())
    context = AgentContext(workspace=str(folder), role="nobody")
    with Session(context, model=ScriptedModel([]), checkpointer=saver, thread_id="t") as session:
        session.work("Mend add.")
    found = error(read_course(saver, "t"))
    assert found.message.startswith("The run ended before a model was called: There is no role 'nobody'.")


def test_a_turn_that_was_cut_off_is_told_apart_from_those_that_ended(folder: Path) -> None:
    saver = InMemorySaver(serde=serializer())
    settings = {"checkpointer": saver, "thread_id": "t"}
    cut_off(folder, 1, **settings)
    with Session(context_of_runs(folder), model=ScriptedModel([Say("Done.")]), **settings) as session:  # type: ignore[arg-type]
        session.work("Go on.")
    assert error(read_course(saver, "t")).message == (
        "The run has 2 requests and 1 ends: a turn of it was cut off, and what was said in it is not known. Take a run"
        " whose turns have all ended."
    )


def test_a_thread_that_somebody_changed_is_refused(folder: Path) -> None:
    saver = InMemorySaver(serde=serializer())
    with Session(
        context_of_runs(folder), model=ScriptedModel([Say("Done.")]), checkpointer=saver, thread_id="t"
    ) as session:
        session.work("Look.")
    build_graph(saver).update_state(thread_config("t"), {"step": 7}, as_node="FINISHED")
    assert error(read_course(saver, "t")).message.startswith(
        "The run was forked, or taken up again after it was stopped, at step 7: "
    )


class Summing(ScriptedModel):
    """A model that says the same whenever it is asked for a summary; `asked` counts these calls."""

    def __init__(self, script: Sequence[Line]) -> None:
        super().__init__(script)
        self.asked: int = 0

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        if call.prompt.messages[0].get("content") != SUMMARY_SYSTEM:
            return super().complete(call, on_text)
        self.asked += 1
        return ModelReply(text=json.dumps(SAID))


def test_what_was_summarised_is_told(folder: Path) -> None:
    (folder / "big.txt").write_text("".join(f"{number} {'word ' * 12}\n" for number in range(40)), encoding="utf-8")
    reads = [{"path": "big.txt", "start_line": number, "limit": 1} for number in range(1, 21)]
    lines = [Calls([("read_file", json.dumps(each))], text="I look once more. " * 60) for each in reads]
    model, saver = Summing([*lines, Say("Done.")]), InMemorySaver(serde=serializer())
    settings = {"window_tokens": 6_000, "max_output_tokens_per_call": 300, "max_calls_per_turn": 30}
    context = context_of_runs(folder, protocol="native", **settings)
    with Session(context, model=model, checkpointer=saver, thread_id="t") as session:
        session.work("Read it all.")
    found = read_course(saver, "t")
    assert isinstance(found, RunCourse), found
    (turn,) = found.turns
    assert (turn.replies[-1].text, len(turn.replies)) == ("Done.", 21)
    told = [json.loads(summary) for summary in turn.summaries if summary]
    assert (model.asked > 0, len(turn.summaries), told[0]) == (True, model.asked, SAID)


def test_a_summary_is_asked_for_as_it_was_read() -> None:
    summary = Summary(done=("a", "b"), left=("c - d",), files=("x.py: it",))
    assert read_summary(_as_asked_for(summary_text(summary))) == summary
