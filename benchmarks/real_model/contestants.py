"""Who takes part: our harness under its labels, and the rivals. Each runs a task in a process of its own."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.real_model import harness_mendgraph as ours
from benchmarks.real_model.child import clean_environment, root_of_project, run_child, snapshot
from benchmarks.real_model.endpoint import MeasuredEndpoint
from benchmarks.real_model.measured_run import Limits, MeasuredRun
from benchmarks.real_model.record import CallRecord, RunEnd, RunRecord, changed_files, text_digest
from benchmarks.real_model.rivals import environments
from benchmarks.real_model.task import Task, write_files

GRACE_S = 30.0
"""How long a harness may go on after its time, to notice that its calls are refused and to end by itself."""


@dataclass(frozen=True)
class Contestant:
    """A harness with its settings. `greedy` forces temperature 0 on its calls; `environment` is added to its own."""

    harness: str
    label: str
    command: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    greedy: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


def our_contestants(label: str, options: Mapping[str, Any], *, ablate: bool) -> list[Contestant]:
    """Our harness with these fields of its context, and where asked for without each of its means in turn."""
    settings: list[tuple[str, Mapping[str, Any]]] = [(label, options)]
    if ablate:
        before = "" if label == "default" else f"{label},"
        settings += [(f"{before}{name}", {**options, **switch}) for name, switch in ours.SWITCHES]
    return [Contestant(ours.NAME, name, ours.command(), chosen, greedy=False) for name, chosen in settings]


def rival_contestant(name: str) -> Contestant:
    """A rival, whose environment is there."""
    environment = {"PYTHONPATH": str(root_of_project()), **environments.SETTINGS}
    return Contestant(name, "default", environments.adapter_command(name), environment=environment)


def run_task(
    contestant: Contestant,
    task: Task,
    endpoint: MeasuredEndpoint,
    limits: Limits = Limits(),  # noqa: B008 - a frozen record
    prepare: Callable[[Path], None] = lambda _: None,
    keep: Path | None = None,
) -> RunRecord:
    """One run in a fresh workspace, which `prepare` makes ready, and what the check says of it.

    A task with a second try has one where the check finds a problem, with limits of its own, and is judged after it.

    `keep` is a folder to be made, in which the workspace and the harness's home are kept.
    """
    with tempfile.TemporaryDirectory(prefix="mendgraph-eval-") if keep is None else nullcontext(str(keep)) as folder:
        workspace, home = Path(folder, "workspace"), Path(folder, "home")
        workspace.mkdir(parents=True)
        home.mkdir()
        write_files(workspace, task.files)
        prepare(workspace)
        before, said = snapshot(workspace), list[tuple[str, str]]()
        calls, request = list[CallRecord](), task.request
        while True:
            run, base_url = endpoint.open_run(limits, greedy=contestant.greedy)
            asked = {"request": request, "said": said, "base_url": base_url, "model": endpoint.model}
            try:
                end = _work(contestant, task, workspace, home, asked, limits)
            finally:
                endpoint.close_run(run)
            calls += run.calls
            end = settled_end(end, run, typed=contestant.harness == ours.NAME)
            problem = task.check(workspace, end.answer)
            said.append((request, end.answer))
            if problem is None or not task.again or len(said) > 1:
                break
            request = f"{problem}\n\n{task.again}"
        changed = changed_files(before, snapshot(workspace))
    return RunRecord(
        harness=contestant.harness,
        label=contestant.label,
        task=task.name,
        kind=task.kind,
        half=task.half,
        changes=task.changes,
        digest=task_digest(task),
        options=dict(contestant.options),
        problem=problem,
        end=end,
        changed_files=changed,
        calls=tuple(calls),
        tries=len(said),
    )


def _work(
    contestant: Contestant, task: Task, workspace: Path, home: Path, asked: dict[str, Any], limits: Limits
) -> RunEnd:
    asked |= {"workspace": str(workspace), "files": sorted(task.files), "limits": limits.model_dump()}
    if contestant.options:
        asked["options"] = dict(contestant.options)
    added = {"MENDGRAPH_DATA_DIR": str(home / "runs"), **contestant.environment}
    environment = clean_environment(os.environ, home, added)
    return run_child(contestant.command, asked, workspace, environment, limits.seconds + GRACE_S)


def settled_end(end: RunEnd, run: MeasuredRun, *, typed: bool) -> RunEnd:
    """The end of a run, with the seconds that replayed replies did not take.

    A rival that ended after a call was refused ended on that limit, whatever it says; `typed` outcomes stay.
    """
    ended = {} if typed or not run.refused else {"ended": run.refused, "reason": ""}
    return end.model_copy(update={"seconds": round(end.seconds + run.saved_s, 3), **ended})


def task_digest(task: Task) -> str:
    """What tells a task from an older one of its name, its check included."""
    return text_digest(repr(task))
