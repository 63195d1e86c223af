"""mendgraph on the script, with its defaults or with `--strict`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.commits.chat_model import Call, Replies, ScriptedChat
from benchmarks.commits.result import Row
from benchmarks.commits.script import PATCH, READ_LINES, Script, Step
from mendgraph import AgentContext, Session
from mendgraph.graph.configuration.settings import MOST
from mendgraph.graph.runs.events import Denied, Event, StepDone
from mendgraph.graph.terminal.outcome_lines import outcome_lines
from mendgraph.nodes.records import ToolErrorCode

LIMITS: Final[dict[str, Any]] = {
    "max_calls_per_turn": 1_000,
    "max_calls_per_session": 1_000,
    "max_input_tokens_per_session": MOST,
    "max_output_tokens_per_session": MOST,
    "max_output_tokens_per_call": MOST // 4,
    "window_tokens": MOST,
}
"""Limits that the scripted model does not reach."""


def run(row: Row, request: str, script: Script, folder: Path) -> None:
    """Make the commit, and add the result to the row. The projects are not installed, so nothing is checked."""
    context = AgentContext(
        workspace=folder,
        evidence=False,
        edit_form="patch" if row.form == PATCH else "replace",
        strict=row.contestant == "strict",
        **LIMITS,
    )
    model = ScriptedChat(replies=Replies(script, call_of), row=row, last=[""])

    with Session(context, model=model, durability="exit") as session:
        events = list(session.stream(request))
        result = session.result()

    row.refusals = list(_refusals(events))
    row.errors = list(_errors(events))
    row.marks = sorted({mark.kind for mark in result.outcome.marks})
    row.first_line = next(iter(outcome_lines(result.outcome))).text
    row.outcome = f"{result.outcome.kind.value} ({result.outcome.reason.value})"


def call_of(step: Step) -> Call:
    """Return the call of mendgraph's tool for a step."""
    path = {"path": step.path}
    calls: dict[str, Call] = {
        "read": ("read_file", {**path, "start_line": step.line, "limit": READ_LINES}),
        "write": ("write_file", {**path, "content": step.text}),
        "edit": ("edit_file", {**path, "old_str": step.text, "new_str": step.new}),
        "patch": ("apply_patch", {"patch": step.text}),
        "delete": ("delete_file", path),
        "move": ("move_file", {**path, "target": step.new}),
    }
    return calls[step.act]


def _refusals(events: Sequence[Event]) -> Iterator[str]:
    """Yield the rule of each denied call."""
    for event in events:
        if isinstance(event, Denied):
            yield event.verdict.rule


def _errors(events: Sequence[Event]) -> Iterator[str]:
    """Yield the error of each other call that failed."""
    for event in events:
        if not isinstance(event, StepDone):
            continue
        for call in event.results:
            error = call.result.error
            if error is not None and error.code is not ToolErrorCode.PERMISSION_DENIED:
                yield f"{call.tool}: {error.message}"
