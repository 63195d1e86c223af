"""The runs of a folder and the steps of one run: tables for people, objects for programs. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size

from mendgraph.graph.runs.run_words import state_words, when_words
from mendgraph.graph.terminal.output import Line, table
from mendgraph.nodes.language.display import one_line, short_id, target_of
from mendgraph.nodes.records import CallError, JsonMap, ToolCall

if TYPE_CHECKING:
    from mendgraph.graph.runs.runs import ListedRun, RunStep

_MIN_TASK_CELLS: Final = 20
"""Cells of a task that are shown in however narrow a terminal."""
_MAX_TASK: Final = 200
_STYLES: Final = {
    "working": "bold cyan",
    "asks": "bold cyan",
    "cut off": "yellow",
    "stopped": "yellow",
    "forked": "yellow",
    "failed": "red",
}


def run_lines(runs: Sequence["ListedRun"], width: int | None, now: datetime, zone: tzinfo | None = None) -> list[Line]:
    """Return a table with a line for each run, of `width` cells if that is possible; None: as wide as needed."""
    if not runs:
        return [Line("There are no runs of this folder yet.")]

    cells = [("RUN", "WHEN", "STATE", "FILES")]
    for run in runs:
        state = state_words(run.standing, run.reason)
        cells.append((one_line(short_id(run.run_id)), when_words(run.updated, now, zone), state, str(len(run.files))))

    rows = table(cells)
    room = _MAX_TASK
    if width is not None:
        room = max(width - cell_len(rows[0]) - 2, _MIN_TASK_CELLS)

    lines = [Line(f"{rows[0]}  TASK", "bold")]
    for row, run in zip(rows[1:], runs, strict=True):
        task = one_line(run.task, _MAX_TASK)
        if cell_len(task) > room:
            task = set_cell_size(task, room - 3).rstrip() + "..."

        lines.append(Line(f"{row}  {task}", _STYLES.get(run.standing, "")))

    return lines


def run_details(run: "ListedRun", steps: Sequence["RunStep"], now: datetime, zone: tzinfo | None = None) -> list[Line]:
    """Return the task of a run, its outcome, its settings and its steps."""
    from mendgraph.graph.configuration.context import AgentContext

    stored = json.loads(run.stored_context)
    default = json.loads(AgentContext().model_dump_json())
    chosen = []
    for name, value in stored.items():
        if name != "workspace" and value != default.get(name):
            chosen.append(f"{name}={json.dumps(value, ensure_ascii=False)}")

    if run.durability != "sync":
        chosen.append(f"durability={run.durability}")

    parts = {
        "task": one_line(run.task, _MAX_TASK),
        "state": state_words(run.standing, run.reason),
        "end": one_line(run.message, _MAX_TASK),
        "answer": one_line(run.answer, _MAX_TASK),
        "begun": f"{when_words(run.created, now, zone)}, at work: {when_words(run.updated, now, zone)}",
        "folder": one_line(str(stored.get("workspace", ""))),
        "context": one_line(", ".join(chosen), 1_000),
    }
    if run.request != run.task:
        parts["last request"] = one_line(run.request, _MAX_TASK)
    if run.parent:
        parts["forked from"] = f"run {short_id(run.parent)} after step {run.forked_at}"

    lines = [Line(one_line(f"run {run.run_id}"), "bold")]
    lines += [Line(f"{name}: {text}") for name, text in parts.items() if text]
    return [*lines, Line(""), *_step_lines(steps)]


_NO_CALLS: Final = {
    "start": "(the start)",
    "calls": "(no call)",
    "answer": "(the answer)",
    "unusable": "(a reply that could not be used)",
    "unknown": "(no checkpoint of it is left)",
}
"""What a step without calls is, by its kind."""


def _step_lines(steps: Sequence["RunStep"]) -> list[Line]:
    if not steps:
        return [Line("No step is stored: the run has made none yet, or was started with --durability exit.")]

    size = max(4, *(len(str(step.number)) for step in steps))
    indent = " " * (size + 8)
    lines = [Line(f"{'STEP':>{size}}  FORK  CALLS AND FILES", "bold")]
    turn = 1

    for step in steps:
        if step.turn > turn:
            turn = step.turn
            lines.append(Line(f"{indent}(request {turn})", "dim"))

        calls = [one_line(f"{call.tool or 'a malformed call'} {_target(call)}").rstrip() for call in step.calls]
        first, *others = calls or [_NO_CALLS[step.kind]]
        fork = "-   "
        if step.can_fork:
            fork = "yes "

        lines.append(Line(f"{step.number:>{size}}  {fork}  {first}"))
        lines += [Line(indent + call) for call in others]
        lines += [Line(f"{indent}changed: {one_line(path)}", "dim") for path in step.changed]

    return lines


def _target(call: ToolCall | CallError) -> str:
    if isinstance(call, ToolCall):
        return target_of(call.arguments)

    return ""


def run_object(run: "ListedRun") -> JsonMap:
    """Return a run as an object for programs; `state` is its current state."""
    values = asdict(run)
    for name in ("standing", "changed", "stored_context"):
        del values[name]

    return {
        **values,
        "state": str(run.standing),
        "can_go_on": run.resumable,
        "files": list(run.files),
        "context": json.loads(run.stored_context),
    }


def step_object(step: "RunStep") -> JsonMap:
    """Return a step as an object for programs, with the tool and the target of each call."""
    return {
        "step": step.number,
        "turn": step.turn,
        "kind": str(step.kind),
        "calls": [{"tool": call.tool, "target": _target(call)} for call in step.calls],
        "changed": list(step.changed),
        "can_fork": step.can_fork,
    }
