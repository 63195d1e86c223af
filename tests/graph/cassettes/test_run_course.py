"""What a run went through, as its checkpoints tell it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.cassettes.replayed_run import (
    RunCourse,
    StartFiles,
    ToolStep,
    course_difference,
    files_at_start,
    read_course,
    secret_in,
)
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.runs.run import Session, run_task
from mendgraph.graph.runs.runs import thread_config
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder_path
from mendgraph.nodes.records import Outcome, OutcomeKind, Profile, StopReason, ToolCall, ToolError
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import Line, ScriptedModel
from tests.graph.runs.run_plays import (
    DOWN,
    EDIT,
    FILES,
    LINES,
    context,
    context as context_of_runs,
    cut_off,
    error,
    project,
)

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
    assert [outcome.kind for outcome in found.outcomes] == [OutcomeKind.SYSTEM_ERROR, OutcomeKind.FINISHED]


def test_a_run_that_asked_is_refused(folder: Path) -> None:
    context = AgentContext(workspace=str(folder), evidence=False, protocol="native", mode="ask")
    saver = InMemorySaver(serde=serializer())
    with Session(context, model=ScriptedModel([EDIT, Say("Done.")]), checkpointer=saver, thread_id="t") as session:
        session.work("Mend add.")
        session.work_on("approve")
    found = read_course(saver, "t")
    assert isinstance(found, ToolError)
    assert "In step 1 a person was asked" in found.message


def test_a_run_of_which_only_the_end_is_kept_is_refused(folder: Path) -> None:
    context = AgentContext(workspace=str(folder), evidence=False, protocol="native")
    saver = InMemorySaver(serde=serializer())
    options = {"checkpointer": saver, "thread_id": "t", "durability": "exit"}
    with Session(context, model=ScriptedModel([Say("Done.")]), **options) as session:  # type: ignore[arg-type]
        session.work("Mend add.")
    found = read_course(saver, "t")
    assert isinstance(found, ToolError)
    assert "only runs with durability sync or async" in found.message


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


DONE = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")
FAILED = Outcome(kind=OutcomeKind.SYSTEM_ERROR, reason=StopReason.PROVIDER_FAILED, message="No.")
CALL: Any = {"name": "read_file", "args": {"path": "a"}, "id": "1", "type": "tool_call"}
STORED = RunCourse(
    context=AgentContext(workspace="/stored"),
    profile=Profile(),
    requests=("Mend.",),
    turns=(),
    path=((0, "call_model"), (1, "guard")),
    results=(ToolStep(1, "read_file", '{"text": "/stored/a"}'),),
    calls=(),
    outcomes=(DONE,),
    messages=(HumanMessage("Mend."), AIMessage("", tool_calls=[CALL]), ToolMessage("in /stored/a", tool_call_id="1")),
    files_read={},
)

RESULT = (
    'in step 1 read_file gave another result: it was ...\'{"text": "<workspace>/a"}\', and is now ...\'{"text": "b"}\''
)


def played(**changed: Any) -> RunCourse:
    """The same in another folder."""
    messages = (*STORED.messages[:2], ToolMessage("in /played/a", tool_call_id="1"))
    usual: dict[str, Any] = {
        "context": AgentContext(workspace="/played"),
        "messages": messages,
        "results": (ToolStep(1, "read_file", '{"text": "/played/a"}'),),
    }
    return replace(STORED, **{**usual, **changed})


def test_another_folder_makes_no_difference() -> None:
    assert course_difference(STORED, played()) == ""


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"path": ((0, "call_model"), (1, "heal"))}, "in step 1 the run went to guard, and now it goes to heal"),
        ({"path": ((0, "call_model"),)}, "in step 1 the run went to guard, and now it goes to nothing"),
        (
            {"outcomes": (FAILED,)},
            "turn 1 ended with FINISHED (answered), and now it ends with SYSTEM_ERROR (provider_failed)",
        ),
        (
            {"messages": (HumanMessage("Mind."), *played().messages[1:])},
            "message 1 of the conversation is another one: it was ...'human: Mend.', and is now ...'human: Mind.'",
        ),
        (
            {"messages": played().messages[:2], "results": (ToolStep(1, "read_file", '{"text": "b"}'),)},
            RESULT,
        ),
    ],
)
def test_the_first_difference_is_told(changed: dict[str, Any], sentence: str) -> None:
    assert course_difference(STORED, played(**changed)) == sentence


SECRET = "correct-horse-battery"  # noqa: S105 - a test's own


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = project(tmp_path / "work")
    (path / "other.txt").write_text("unread\n", encoding="utf-8")
    (path / ".gitignore").write_text("*.log\n", encoding="utf-8")
    (path / "a.log").write_text("ignored\n", encoding="utf-8")
    (path / ".env").write_text("KEY=1\n", encoding="utf-8")
    return path


def start(work: Path) -> StartFiles:
    run = run_task("Mend add.", context(work), model=HistoryModel(LINES)).thread_id
    found = files_at_start(workspace_folder_path(str(work)), str(work), run)
    assert isinstance(found, StartFiles)
    return found


def course_of(*calls: ToolCall, result: str = "") -> RunCourse:
    return RunCourse(AgentContext(), Profile(), (), (), (), (ToolStep(1, "t", result),), calls, (), (), {})


def call(**arguments: str) -> ToolCall:
    return ToolCall(call_id="1", tool="t", arguments=arguments, raw_arguments="")


def test_what_the_run_changed_is_as_it_was_before(work: Path) -> None:
    before = {path: text.encode() for path, text in FILES.items()}
    assert start(work).touched(course_of()) == {".gitignore": b"*.log\n", **before}


def test_all_files_are_those_that_the_agent_may_see(work: Path) -> None:
    every = start(work).every(course_of())
    assert not isinstance(every, ToolError)
    assert sorted(every) == [".gitignore", "calc.py", "notes.txt", "other.txt"]


@pytest.mark.parametrize("named", ["other.txt", "./other.txt", "{root}/other.txt", "*** Update File: other.txt\n@@"])
def test_what_a_call_names_is_taken(work: Path, named: str) -> None:
    begun = start(work)
    files = begun.touched(course_of(call(path=named.format(root=begun.workspace.root))))
    assert not isinstance(files, ToolError)
    assert "other.txt" in files


def test_what_lies_beside_the_cassettes_of_other_runs_is_taken_only_by_name(work: Path) -> None:
    names = ("after/x/files/before/.gitignore", "before/.gitignore", "before/a.py", "conftest.py")
    copies = [f"kept/files/{name}" for name in names]
    for name in copies:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("", encoding="utf-8")
    begun = start(work)
    found = (begun.touched(course_of()), begun.touched(course_of(call(path=copies[1]))), begun.every(course_of()))
    kept = [sorted(path for path in files if path in copies) for files in found if not isinstance(files, ToolError)]
    assert kept == [[], [copies[1]], []]


def test_bytes_that_were_not_kept_are_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_task("Mend add.", context(work), model=HistoryModel(LINES)).thread_id
    monkeypatch.setattr(Journal, "backup", lambda *_: None)
    found = error(files_at_start(workspace_folder_path(str(work)), str(work), run))
    assert found.message.startswith("What 'calc.py' held before the run is gone")


def test_secrets_are_found_by_shape_and_by_value() -> None:
    redactor = Redactor((SECRET,))
    assert secret_in({"a": b"nothing", "b": b"\xff"}, redactor) is None
    by_shape = secret_in({"a": b"one\nsk-" + b"a1B2" * 8}, redactor)
    assert by_shape is not None
    assert by_shape.message.startswith("'a' holds a secret in line 2")
    by_value = secret_in({"a": SECRET.encode()}, redactor)
    assert by_value is not None
    assert by_value.message.startswith("'a' holds a secret of the environment")
