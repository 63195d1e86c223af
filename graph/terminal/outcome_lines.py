"""Lines for people: outcomes, usage and diffs of a run, and tables of runs, steps and replays. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, tzinfo
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size

from mendgraph.graph.runs.run_words import state_words, when_words
from mendgraph.graph.terminal.output import LONGEST_LINE, Line, table
from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats, format_usage_stats
from mendgraph.nodes.language.display import listed, one_line, output_words, short_id, target_of, usd
from mendgraph.nodes.records import CallError, JsonMap, Outcome, OutcomeKind, ToolCall

if TYPE_CHECKING:
    from mendgraph.graph.fleet.replay import Replay, RunFigures
    from mendgraph.graph.runs.runs import ListedRun, RunStep
    from mendgraph.graph.terminal.run_view import Account

OUTCOME_STYLES: Final = {
    OutcomeKind.FINISHED: "bold green",
    OutcomeKind.BUDGET_STOP: "bold yellow",
    OutcomeKind.SYSTEM_ERROR: "bold red",
}
_DIFF_STYLES: Final = {"---": "bold", "+++": "bold", "@": "cyan", "-": "red", "+": "green", "\\": "dim", "[": "dim"}


def diff_lines(diffs: Iterable[str]) -> Iterator[Line]:
    """Yield the lines of unified diffs, coloured."""
    for diff in diffs:
        for number, line in enumerate(diff.removesuffix("\n").split("\n")):
            mark = line[:1]
            if number < 2:  # the names of the files
                mark = line[:3]

            yield Line(line, _DIFF_STYLES.get(mark, ""), verbatim=True)


def outcome_lines(outcome: Outcome) -> Iterator[Line]:
    """Yield the outcome in one line; for a run that did not finish also its diagnostics and how to continue."""
    style = OUTCOME_STYLES[outcome.kind]
    head = f"{outcome.kind.value} ({outcome.reason.value}): "

    if outcome.kind is OutcomeKind.FINISHED:
        if outcome.value is not None:
            yield Line(f"value: {json.dumps(outcome.value, ensure_ascii=False)}", verbatim=True)

        yield Line(head + outcome.message, style)
        return

    yield Line(head + " ".join(outcome.message.split()), style)
    yield from (Line(f"  - {' '.join(line.split())}", "dim") for line in outcome.diagnostics)
    yield Line(f"How to continue: {outcome.how_to_go_on}")


def usage_lines(usage: JsonMap, limits: APILimits, account: "Account") -> Iterator[Line]:
    """Yield the usage of the turn, then that of a session with more turns; nothing where no model was called."""
    calls = usage.get("calls_in_current_turn", 0)
    if not calls:
        return

    is_first_turn = calls == usage.get("total_calls", calls)
    details: Mapping[str, int] = {}
    cost: list[str] = []
    if is_first_turn:
        details = usage
        cost = cost_words(usage.get("cost_usd"), account.unpriced)

    words = [
        f"{calls}/{limits.max_calls_per_turn} calls",
        _input_words(usage.get("input_tokens_in_current_turn", 0), details),
        output_words(usage.get("output_tokens_in_current_turn", 0), details.get("reasoning_tokens", 0)),
        f"{usage.get('seconds_in_current_turn', 0):.1f} s",
        *cost,
    ]
    yield Line(f"usage: {', '.join(words)}", "dim")

    if not is_first_turn:
        words = [
            f"{usage.get('total_calls', 0)}/{limits.max_calls_per_session} calls",
            _input_words(usage.get("total_input_tokens", 0), usage),
            output_words(usage.get("total_output_tokens", 0), usage.get("reasoning_tokens", 0)),
            *cost_words(usage.get("cost_usd"), account.unpriced),
        ]
        yield Line(f"session: {', '.join(words)}", "dim")


def usage_block(usage: JsonMap, limits: APILimits) -> Iterator[Line]:
    """Yield the lines of `format_usage_stats`. Source: spec 1 section 4.3."""
    stats = APIUsageStats(*(usage.get(name, 0) for name in APIUsageStats._fields))
    return (Line(line) for line in format_usage_stats(stats, limits).splitlines())


def cost_words(cost_usd: float | None, unpriced: list[str]) -> list[str]:
    """Return the cost as the end of a line: nothing for 0, and no estimate where a price is unknown."""
    if cost_usd is None:
        return [f"cost unknown: prices.toml has no price for {', '.join(unpriced) or 'the model'}"]
    if cost_usd > 0:
        return [usd(cost_usd)]

    return []


def _input_words(tokens: int, details: Mapping[str, int]) -> str:
    cached = details.get("cached_tokens", 0)
    written = details.get("cache_write_tokens", 0)
    parts = []
    if cached:
        parts.append(f"{cached:,} cached")
    if written:
        parts.append(f"{written:,} written to the cache")

    words = f"{tokens:,} tokens in"
    if parts:
        words += f" ({', '.join(parts)})"

    return words


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


def run_lines(
    runs: Sequence["ListedRun"],
    width: int | None,
    now: datetime,
    zone: tzinfo | None = None,
    branches: Mapping[str, str] = MappingProxyType({}),
) -> list[Line]:
    """Return a table with a line for each run, of `width` cells if that is possible; None: as wide as needed.

    `branches` are those of unattended runs, by id; each is in a line of its own.
    """
    if not runs:
        return [Line("This folder has no runs yet.")]

    cells = [("RUN", "WHEN", "STATE", "FILES")]
    for run in runs:
        state = state_words(run.standing, run.reason)
        cells.append((one_line(short_id(run.run_id)), when_words(run.updated, now, zone), state, str(len(run.files))))

    rows = table(cells)
    room = _MAX_TASK
    if width is not None:
        room = max(width - cell_len(rows[0]) - 2, _MIN_TASK_CELLS)

    indent = " " * (max(cell_len(run_id) for run_id, *_ in cells) + 2)
    lines = [Line(f"{rows[0]}  TASK", "bold")]
    for row, run in zip(rows[1:], runs, strict=True):
        task = one_line(run.task, _MAX_TASK)
        if cell_len(task) > room:
            task = set_cell_size(task, room - 3).rstrip() + "..."

        lines.append(Line(f"{row}  {task}", _STYLES.get(run.standing, "")))
        if branches.get(run.run_id):
            lines.append(Line(f"{indent}branch {branches[run.run_id]}", "dim"))

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
        "outcome": one_line(run.message, _MAX_TASK),
        "answer": one_line(run.answer, _MAX_TASK),
        "started": f"{when_words(run.created, now, zone)}, last active: {when_words(run.updated, now, zone)}",
        "folder": one_line(str(stored.get("workspace", ""))),
        "settings": one_line(", ".join(chosen), 1_000),
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
    "unknown": "(it has no checkpoint)",
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


# --- A run beside its replay


def replay_lines(replay: "Replay") -> list[Line]:
    """Return the table of a run beside its replay, with their paths, and where the copy is."""
    original = _column(replay.original)
    replayed = _column(replay.replay)
    rows = [("", "ORIGINAL", "REPLAY")]
    rows += [(name, original[name], replayed[name]) for name in original]
    lines = [Line(row.rstrip()) for row in table(rows)]
    paths = [path_words(replay.original.nodes), path_words(replay.replay.nodes)]

    if paths[0] == paths[1]:
        lines.append(Line(f"path: {paths[0]}; the same"))
    else:
        lines += [Line(f"path of the original: {paths[0]}"), Line(f"path of the replay: {paths[1]}")]

    if replay.is_worse:
        lines.append(Line("the replay is worse", "bold red"))

    lines += [Line(one_line(note, LONGEST_LINE), "yellow") for note in replay.notes]
    if replay.copy:
        lines.append(Line(one_line(f"the copy is in {replay.copy}", LONGEST_LINE)))

    return lines


def _column(figures: "RunFigures") -> dict[str, str]:
    checks = figures.checks
    if figures.ran:
        checks += f": {listed(figures.ran, 2)}"

    return {
        "outcome": f"{figures.kind} ({figures.reason})",
        "checks": one_line(checks, 60),
        "files": one_line(listed(figures.changed_files, 3), 60) or "none",
        "model": one_line(figures.model, 60) or "-",
        "calls": str(figures.calls),
        "tokens": f"{figures.input_tokens:,} in, {figures.output_tokens:,} out",
        "cost": "unknown" if figures.cost_usd is None else usd(figures.cost_usd),
    }


def path_words(nodes: Sequence[str]) -> str:
    """Return the visited nodes in one line, with the number of equal rounds in a row."""
    rounds = " ".join(nodes).replace(" call_model", "\ncall_model").split("\n")
    parts = []
    for words, equal in groupby(rounds):
        times = len([*equal])
        parts.append(words if times == 1 else f"{times} x ({words})")

    return ", ".join(parts) or "it has no checkpoint"
