"""Why the prompt of a step does not continue the previous one."""

from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.report.page import make_report
from mendgraph.graph.report.prompt_cache import broken_by
from mendgraph.graph.runs.run import Session, run_task
from mendgraph.nodes.call_model.window import Window
from mendgraph.nodes.language.project_notes import ProjectNotes
from mendgraph.nodes.records import Correction, ModelReply, Profile, Protocol, ToolError
from tests.doubles.history_model import HistoryModel
from tests.doubles.replies import Say
from tests.extent import slow
from tests.surfaces.report.visits import visit
from tests.surfaces.runs.run_plays import LINES, context, project, use

CORRECTIONS = [Correction(reply="{", prompt="Again."), Correction(reply="[", prompt="Again.")]


def call(**state: Any) -> Any:
    """A model call in this state."""
    reply = state.pop("reply", ModelReply(model="m"))
    return visit("call_model", "parse", before=state, after={**state, "reply": reply})


@pytest.mark.parametrize(
    ("last", "now", "why"),
    [
        ({}, {}, ""),
        ({"corrections": CORRECTIONS[:1]}, {"corrections": CORRECTIONS}, ""),
        ({"window": Window(tokens=9)}, {"window": Window()}, ""),
        ({"reply": ModelReply(model="a")}, {"reply": ModelReply(model="b")}, "another model was asked: b"),
        (
            {"profile": Profile(protocol=Protocol.NATIVE)},
            {"profile": Profile(protocol=Protocol.TEXT)},
            "the tools changed: calls or edits are written in another form",
        ),
        (
            {"context": AgentContext()},
            {"context": AgentContext(mode="read-only", max_calls_per_turn=3)},
            "tools or system prompt changed: mode",
        ),
        ({"window": Window()}, {"window": Window(cleared=("a",))}, "the history was compacted"),
        (
            {"notes": ()},
            {"notes": (ProjectNotes(path="AGENTS.md", text="Be short."),)},
            "an earlier message changed: the project's notes come before the first request",
        ),
        ({"corrections": CORRECTIONS}, {}, "the corrections of unusable replies left the history"),
    ],
)
def test_reason_is_the_first_part_that_differs(last: Any, now: Any, why: str) -> None:
    assert broken_by(call(**last), call(**now)) == why


def broken_steps(run: str, folder: Path) -> dict[int, str]:
    report = make_report(run, folder)
    assert not isinstance(report, ToolError)
    for step in report.cache["steps"]:
        assert (f"continue the one before: {step['broken']}." in report.page) == bool(step["broken"])
    return {step["step"]: step["broken"] for step in report.cache["steps"] if step["broken"]}


@slow
def test_run_of_two_turns_keeps_its_prefix_until_its_mode_changes(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    model = HistoryModel((*LINES[:2], Say("Done."), Say("Done again.")))
    with Session(context(folder), model=model) as session:
        session.work("Mend add.")
    with Session(context(folder, mode="read-only"), model=model, thread_id=session.thread_id) as session:
        session.work("What did you do?")
    assert broken_steps(session.thread_id, folder) == {4: "tools or system prompt changed: mode"}


@slow
def test_compacted_history_breaks_the_prefix(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    (folder / "long.txt").write_text("a line of text that is long enough\n" * 100)
    reads = [use(("read_file", {"path": "long.txt", "start_line": line})) for line in range(1, 9)]
    settings = context(folder, window_tokens=6_000, max_calls_per_turn=20, max_output_tokens_per_call=500)
    run = run_task("Read long.txt.", settings, model=HistoryModel((*reads, Say("Read."))))
    reasons = broken_steps(run.run_id, folder)
    assert {*reasons.values()} == {"the history was compacted"}
    assert len(reasons) < run.usage["total_calls"] - 1
