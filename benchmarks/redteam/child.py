"""One contestant in its process: `python -m benchmarks.redteam.child CONTESTANT PLACE FIRST STEP` prints a row a goal.

It works on every STEP-th goal from FIRST on, each in a folder of its own below PLACE, and prints JSON lines.
"""

import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.redteam.catalogue import GOALS
from benchmarks.redteam.goal import WORKS, Evidence, Goal
from benchmarks.redteam.layout import Layout, laid_out, project_repository, take_out
from benchmarks.redteam.model import Obedient
from benchmarks.redteam.outcome import Ended, Row

Run = Callable[[Obedient, Layout, list[object]], Ended]
"""One run to its end; the list is the conversation, which a second turn goes on with."""

MODULES = {
    "plain loop": ("plain_loop", "run"),
    "ours": ("ours", "run_defaults"),
    "ours, strict": ("ours", "run_strict"),
    "ours, paths": ("ours", "run_paths"),
    "ours, programs": ("ours", "run_programs"),
    "ours, shell": ("ours", "run_shell"),
    "ours, network": ("ours", "run_network"),
    "ours, ask": ("ours", "run_ask"),
    "create_agent": ("langchain_agents", "run_create_agent"),
    "deepagents": ("langchain_agents", "run_deepagents"),
    "mini-swe-agent": ("mini_swe_agent", "run"),
}
"""The module and the function of each contestant."""


_KINDS = ("asked", "ran", "refused")


def load(contestant: str) -> Run:
    """How a contestant runs."""
    module, name = MODULES[contestant]
    found: Run = getattr(import_module(f"benchmarks.redteam.contestants.{module}"), name)
    return found


def attack(contestant: str, run: Run, goal: Goal, project: Path, base: Path) -> Row:
    """One goal against one contestant."""
    started, row = time.monotonic(), Row(contestant, goal.name, goal.family)
    with laid_out(goal, project, base) as layout:
        first, conversation = Obedient(goal, layout.places), list[object]()
        minds = [first]
        ends = [run(first, layout, conversation)]
        worked = WORKS[goal.work].done(evidence(layout, minds, ends))
        if goal.later:
            take_out(goal, layout.workspace)
            minds.append(Obedient(goal, layout.places, second=True))
            ends.append(run(minds[-1], layout, conversation if goal.same_thread else []))
        row.seen, row.achieved = first.obeyed, bool(goal.achieved(evidence(layout, minds, ends)))
    row.work = worked if goal.works else None
    row.lines = "\n".join(end.lines for end in ends)
    row.told, row.calls = goal.told(row.lines), sum(mind.calls for mind in minds)
    row.marked = goal.told("\n".join(end.marks for end in ends))
    row.first = goal.told("\n".join(end.first for end in ends))
    row.asked, row.ran, row.refused = ([each for end in ends for each in getattr(end, kind)] for kind in _KINDS)
    row.shown = goal.told("\n".join(row.asked))
    row.seconds = round(time.monotonic() - started, 3)
    return row


def evidence(layout: Layout, minds: Sequence[Obedient] = (), ends: Sequence[Ended] = ()) -> Evidence:
    """What is left of the runs."""
    return Evidence(
        layout.workspace,
        Path(layout.places["other"]),
        Path(layout.places["home"]),
        tuple(layout.docs.paths),
        tuple(layout.evil.paths),
        "\n".join(end.answer for end in ends),
        max((mind.calls for mind in minds), default=0),
        sum(mind.sent for mind in minds),
        bool(ends) and ends[-1].ended,
    )


def main(contestant: str, place: str, first: str, step: str, only: str = "") -> None:
    """Attack with some of the goals."""
    run, project = load(contestant), project_repository(Path(place, "project"))
    names = [name for name in only.split(",") if name]
    goals = [goal for goal in GOALS if not names or goal.name in names]
    for number, goal in list(enumerate(goals))[int(first) :: int(step)]:
        base = Path(place, f"{number:03}")
        base.mkdir()
        try:
            row = attack(contestant, run, goal, project, base)
        except Exception as error:  # noqa: BLE001 - what a contestant raises is a result of the table
            traceback.print_exc()
            row = Row(contestant, goal.name, goal.family, failure=f"{type(error).__name__}: {error}")
        print(f"ROW {json.dumps(row.as_map())}", flush=True)
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
