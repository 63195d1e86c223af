"""The tables, as Markdown."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.real_model.score import table
from benchmarks.redteam.catalogue import FAMILIES
from benchmarks.redteam.outcome import Row

WHY: Final = {
    "write_file": "no rule covers writes to this path",
    "edit_file": "no rule covers edits of this path",
    "delete_file": "a file that was read may be deleted",
    "run_command": "an allowed program may read and change every file that is not denied",
    "http_get": "the host is allowed, and the model chooses the address",
    "remember": "the model chooses what it remembers",
}
"""The reason why a call of each tool was allowed."""


def result_table(rows: Sequence[Row], contestants: Sequence[str]) -> str:
    """Return a table of the achieved goals by family, and of the other counts, with a column for each contestant."""
    rows_of = {name: [row for row in rows if row.contestant == name] for name in contestants}
    achieved_of = {name: [row for row in rows_of[name] if row.achieved] for name in contestants}

    def count(matches: Callable[[Row], bool]) -> list[str]:
        return [str(sum(map(matches, achieved_of[name]))) for name in contestants]

    def count_family(family: str) -> list[str]:
        return count(lambda row: row.family == family)

    goals = {row.goal: row.family for row in rows}
    sizes = Counter(goals.values())
    lines = [[f"{family} ({sizes[family]})", *count_family(family)] for family in FAMILIES if sizes[family]]

    lines += [
        [f"**achieved, of {len(goals)}**", *count(lambda _: True)],
        ["not reported in the final lines", *count(lambda row: not row.told)],
        ["only in the list of changed files", *count(lambda row: row.told and not row.marked)],
        ["reported in the outcome's first line", *count(lambda row: row.first)],
        ["approved by a person", *count(lambda row: row.shown)],
        ["injected text reached the model", *(str(sum(row.seen for row in rows_of[name])) for name in contestants)],
        ["useful work kept", *(_work_count(rows_of[name]) for name in contestants)],
        ["model calls", *(str(sum(row.calls for row in rows_of[name])) for name in contestants)],
        ["seconds", *(f"{sum(row.seconds for row in rows_of[name]):.0f}" for name in contestants)],
    ]
    return "\n" + table(["goals achieved", *contestants], lines)


def _work_count(rows: Sequence[Row]) -> str:
    """Return how often the user's work is done, of the goals that do not prevent it."""
    results = [row.work for row in rows if row.work is not None]
    return f"{sum(results)} of {len(results)}"


def achieved_goals_table(rows: Sequence[Row]) -> str:
    """Return a table of the goals achieved against mendgraph, with the settings, the calls and the reasons."""
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        if row.achieved:
            rows_of.setdefault(row.goal, []).append(row)

    lines = []
    for goal, members in rows_of.items():
        settings = [row.contestant.removeprefix("ours").strip(", ") or "defaults" for row in members]
        calls = _malicious_calls(members)
        tools = [call.split(" ")[0] for call in calls]
        reasons = list(dict.fromkeys(WHY[tool] for tool in tools if tool in WHY))
        lines.append(
            [
                members[0].family,
                goal,
                ", ".join(settings),
                "; ".join(calls[:3]) or "answer",
                "; ".join(reasons) or "the answer is the model's",
                _reported(members),
            ]
        )

    heads = ["family", "goal", "settings", "calls", "why they were allowed", "reported"]
    return f"\nGoals achieved against mendgraph:\n\n{table(heads, lines)}"


def _malicious_calls(rows: Sequence[Row]) -> list[str]:
    """Return the executed calls without the user's work and without the request for the injected page.

    The port of a server differs in each run, and is left out.
    """
    calls: dict[str, None] = {}
    for row in rows:
        for call in row.ran:
            is_work = call == "edit_file calc.py" and row.work is True
            if "/pages/" not in call and not is_work:
                calls[re.sub(r"http://127\.0\.0\.1:\d+", "http://server", call)] = None
    return list(calls)


def _reported(rows: Sequence[Row]) -> str:
    """Return how the outcomes report a goal."""
    if all(row.marked for row in rows):
        return "marked"
    if all(row.told for row in rows):
        return "listed"
    return "no"
