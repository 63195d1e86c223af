"""What is known of runs, as lines for a person and as objects for a program. Pure."""

import json
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from graph.terminal.call_words import count_of, target_of
from graph.terminal.ending import Line
from graph.terminal.plain_text import one_line
from graph.terminal.run_words import short_id, state_words, when_words
from nodes.records import JsonMap, ToolCall

if TYPE_CHECKING:
    from graph.runs import ListedRun, RunStep

_HEAD = ("RUN", "WHEN", "STATE", "TURNS", "FILES", "TASK")
_GAP = "  "
_LEAST_FOR_THE_TASK = 20
"""Characters; a task that has less room gets a line of its own."""
_LONGEST_TASK = 200
_STYLES = {
    **dict.fromkeys(("working", "asks"), "bold cyan"),
    **dict.fromkeys(("cut off", "stopped", "forked"), "yellow"),
    **dict.fromkeys(("failed", "damaged"), "red"),
}


def run_lines(runs: Sequence["ListedRun"], width: int | None, now: datetime, zone: tzinfo | None = None) -> list[Line]:
    """A table with a line for each run, none of them wider than `width` cells; None is as wide as it takes."""
    rows = [
        (
            one_line(short_id(run.run_id)),
            when_words(run.updated, now, zone),
            state_words(run.standing, run.reason),
            str(run.turns),
            str(len(run.files)),
            one_line(run.task, _LONGEST_TASK),
        )
        for run in runs
    ]
    widths = [max(cell_len(row[column]) for row in (_HEAD, *rows)) for column in range(len(_HEAD) - 1)]
    left = None if width is None else width - sum(widths) - len(_GAP) * len(widths)
    styles = ["bold", *(_STYLES.get(run.standing, "") for run in runs)]
    return [
        Line(text, style)
        for row, style in zip((_HEAD, *rows), styles, strict=True)
        for text in _row(row, widths, left, width).splitlines()
    ]


def _row(cells: Sequence[str], widths: Sequence[int], left: int | None, width: int | None) -> str:
    *short, task = cells
    padded = _GAP.join(set_cell_size(cell, size) for cell, size in zip(short, widths, strict=True))
    if width is None or left is None:
        return f"{padded}{_GAP}{task}"
    if left >= _LEAST_FOR_THE_TASK:
        return f"{padded}{_GAP}{_cut(task, left)}"
    return f"{_cut(padded.rstrip(), width)}\n{_cut(_GAP + task, width)}"


def _cut(text: str, cells: int) -> str:
    """The text, or as much of it as has room."""
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, max(0, cells - 3)).rstrip() + "..."[: max(0, cells)]


# --- One run


def run_details(run: "ListedRun", steps: Sequence["RunStep"], now: datetime, zone: tzinfo | None = None) -> list[Line]:
    """Everything that helps to choose what to do with a run: its task, its end, its context, its steps."""
    stored = json.loads(run.stored_context)
    lines = [
        Line(one_line(f"run {run.run_id}"), "bold"),
        Line(f"task: {one_line(run.task, _LONGEST_TASK)}"),
        Line(f"state: {state_words(run.standing, run.reason)}", _STYLES.get(run.standing, "")),
    ]
    if run.request != run.task:
        lines.append(Line(f"last request: {one_line(run.request, _LONGEST_TASK)}"))
    if run.message:
        lines.append(Line(f"end: {one_line(run.message, _LONGEST_TASK)}"))
    lines.append(Line(f"begun: {when_words(run.created, now, zone)}, at work: {when_words(run.updated, now, zone)}"))
    if run.parent:
        lines.append(Line(f"forked from: run {short_id(run.parent)} after step {run.forked_at}"))
    lines.append(Line(f"folder: {one_line(str(stored.get('workspace', '')))}"))
    chosen = _chosen(stored)
    if chosen or run.durability != "sync":
        words = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in chosen.items()]
        words += [f"durability={run.durability}"] * (run.durability != "sync")
        lines.append(Line(f"context: {one_line(', '.join(words), 1_000)}"))
    return [*lines, Line(""), *_step_lines(steps)]


def _chosen(stored: JsonMap) -> JsonMap:
    """The fields of a stored context that are not as they are by default."""
    from graph.context import AgentContext

    default = json.loads(AgentContext().model_dump_json())
    return {name: value for name, value in stored.items() if name != "workspace" and value != default.get(name)}


def _step_lines(steps: Sequence["RunStep"]) -> list[Line]:
    if not steps:
        return [Line("No step of it is kept: it has made none yet, or was kept with --durability exit.")]
    size = max(4, *(len(str(step.number)) for step in steps))
    lines = [Line(f"{'STEP':>{size}}  FORK  CALLS AND FILES", "bold")]
    turn = 1
    for step in steps:
        if step.turn > turn:
            turn = step.turn
            lines.append(Line(f"{'':>{size}}        (request {turn})", "dim"))
        first, *more = _step_words(step)
        lines.append(Line(f"{step.number:>{size}}  {'yes ' if step.can_fork else '-   '}  {first}"))
        lines += [Line(f"{'':>{size}}        {each}") for each in more]
        lines += [Line(f"{'':>{size}}        changed: {one_line(path)}", "dim") for path in step.changed]
    return lines


def _step_words(step: "RunStep") -> list[str]:
    if step.calls:
        return [one_line(f"{call.tool or 'a malformed call'} {_target(call)}").rstrip() for call in step.calls]
    return [_KINDS[step.kind]]


_KINDS = {
    "start": "(the start)",
    "calls": "(no call)",
    "answer": "(the answer)",
    "unusable": "(a reply that could not be used)",
    "unknown": "(no checkpoint of it is left)",
}


def _target(call: Any) -> str:
    return target_of(call.arguments) if isinstance(call, ToolCall) else ""


# --- For programs


def run_object(run: "ListedRun") -> JsonMap:
    """A run with all that is known of it; `state` is where it stands now."""
    return {
        "run_id": run.run_id,
        "state": str(run.standing),
        "can_go_on": run.resumable,
        "task": run.task,
        "created": run.created,
        "updated": run.updated,
        "turns": run.turns,
        "request": run.request,
        "kind": run.kind,
        "reason": run.reason,
        "message": run.message,
        "answer": run.answer,
        "files": list(run.files),
        "context": json.loads(run.stored_context),
        "durability": run.durability,
        "parent": run.parent,
        "forked_at": run.forked_at,
    }


def step_object(step: "RunStep") -> JsonMap:
    """A step; of its calls the tool, and what it was aimed at."""
    calls = [{"tool": call.tool, "target": _target(call)} for call in step.calls]
    return {
        "step": step.number,
        "turn": step.turn,
        "kind": str(step.kind),
        "calls": calls,
        "changed": list(step.changed),
        "can_fork": step.can_fork,
    }


def bytes_words(count: int) -> str:
    """`12 bytes`, `3.4 kB`, `5.6 MB`."""
    for size, unit in ((1_000_000, "MB"), (1_000, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return count_of(count, "byte")
