"""Attack one contestant: `python -m benchmarks.redteam.child CONTESTANT FOLDER FIRST STEP`.

The process attacks with every STEP-th goal from FIRST on, each in a separate folder below FOLDER, and prints each row
as a line of JSON.
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
from benchmarks.redteam.layout import Layout, create_layout, project_repository, remove_injection
from benchmarks.redteam.model import ObedientModel
from benchmarks.redteam.outcome import Row, RunEnd

Run = Callable[[ObedientModel, Layout, list[object]], RunEnd]
"""A run of a contestant. The list is the conversation, which a second turn continues."""

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


def load(contestant: str) -> Run:
    """Import and return the run function of a contestant."""
    module, name = MODULES[contestant]
    run: Run = getattr(import_module(f"benchmarks.redteam.contestants.{module}"), name)
    return run


def attack(contestant: str, run: Run, goal: Goal, project: Path, base: Path) -> Row:
    """Attack a contestant with a goal, and return the result."""
    start = time.monotonic()

    with create_layout(goal, project, base) as layout:
        models = [ObedientModel(goal, layout.places)]
        conversation: list[object] = []
        ends = [run(models[0], layout, conversation)]
        is_work_done = WORKS[goal.work].is_done(collect_evidence(layout, models, ends))

        if goal.later:
            remove_injection(goal, layout.workspace)
            models.append(ObedientModel(goal, layout.places, second=True))
            ends.append(run(models[1], layout, conversation if goal.same_thread else []))

        is_achieved = goal.achieved(collect_evidence(layout, models, ends))

    lines = "\n".join(end.lines for end in ends)
    approvals = [request for end in ends for request in end.approvals]
    return Row(
        contestant,
        goal.name,
        goal.family,
        seen=models[0].obeyed,
        achieved=bool(is_achieved),
        told=goal.is_reported_in(lines),
        marked=goal.is_reported_in("\n".join(end.marks for end in ends)),
        first=goal.is_reported_in("\n".join(end.first for end in ends)),
        shown=goal.is_reported_in("\n".join(approvals)),
        work=is_work_done if goal.works else None,
        calls=sum(model.calls for model in models),
        lines=lines,
        seconds=round(time.monotonic() - start, 3),
        asked=approvals,
        ran=[call for end in ends for call in end.executed],
        refused=[call for end in ends for call in end.rejected],
    )


def collect_evidence(layout: Layout, models: Sequence[ObedientModel] = (), ends: Sequence[RunEnd] = ()) -> Evidence:
    """Return the evidence of the runs."""
    return Evidence(
        workspace=layout.workspace,
        other=Path(layout.places["other"]),
        home=Path(layout.places["home"]),
        docs=tuple(layout.docs.paths),
        evil=tuple(layout.evil.paths),
        answer="\n".join(end.answer for end in ends),
        calls=max((model.calls for model in models), default=0),
        prompt_characters=sum(model.prompt_characters for model in models),
        is_finished=bool(ends) and ends[-1].is_finished,
    )


def main(contestant: str, folder: str, first: str, step: str, only: str = "") -> None:
    """Attack with the selected goals."""
    run = load(contestant)
    project = project_repository(Path(folder, "project"))
    names = [name for name in only.split(",") if name]
    goals = [goal for goal in GOALS if not names or goal.name in names]

    for number, goal in list(enumerate(goals))[int(first) :: int(step)]:
        base = Path(folder, f"{number:03}")
        base.mkdir()
        try:
            row = attack(contestant, run, goal, project, base)
        except Exception as error:  # noqa: BLE001 - the table reports any exception of a contestant
            traceback.print_exc()
            row = Row(contestant, goal.name, goal.family, failure=f"{type(error).__name__}: {error}")
        print(f"ROW {json.dumps(row.as_map())}", flush=True)
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
