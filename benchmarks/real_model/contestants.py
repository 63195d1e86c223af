"""The contestants: mendgraph with several settings, and the rivals. Each runs a task in a separate process."""

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
"""The time after the limit in which a harness can notice the rejected calls and end by itself."""


@dataclass(frozen=True)
class Contestant:
    """A harness with its settings. `greedy` forces temperature 0. `environment` has additional variables."""

    harness: str
    label: str
    command: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    greedy: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


def our_contestants(label: str, options: Mapping[str, Any], *, ablate: bool) -> list[Contestant]:
    """Return mendgraph with these options, and with `ablate` also without each of its parts."""
    settings: list[tuple[str, Mapping[str, Any]]] = [(label, options)]
    if ablate:
        prefix = "" if label == "default" else f"{label},"
        settings += [(f"{prefix}{name}", {**options, **switch}) for name, switch in ours.SWITCHES]

    command = ours.command()
    return [Contestant(ours.NAME, name, command, fields, greedy=False) for name, fields in settings]


def rival_contestant(name: str) -> Contestant:
    """Return a rival with an existing environment."""
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
    """Run a task in a new workspace, check it, and return the record.

    A task with a second try has one if the check finds a problem. It has separate limits, and its result counts.

    Args:
        contestant: The harness.
        task: The task.
        endpoint: The endpoint of the model.
        limits: The limits of each try.
        prepare: A function that prepares the workspace.
        keep: A new folder for the workspace and the harness's home. By default, both are temporary.
    """
    with tempfile.TemporaryDirectory(prefix="mendgraph-eval-") if keep is None else nullcontext(str(keep)) as folder:
        workspace = Path(folder, "workspace")
        home = Path(folder, "home")
        workspace.mkdir(parents=True)
        home.mkdir()
        write_files(workspace, task.files)
        prepare(workspace)

        before = snapshot(workspace)
        request = task.request
        history: list[tuple[str, str]] = []
        calls: list[CallRecord] = []
        while True:
            run, base_url = endpoint.open_run(limits, greedy=contestant.greedy)
            message = {"request": request, "history": history, "base_url": base_url, "model": endpoint.model}
            try:
                end = _run_harness(contestant, task, workspace, home, message, limits)
            finally:
                endpoint.close_run(run)

            calls += run.calls
            end = adjust_end(end, run, typed=contestant.harness == ours.NAME)
            problem = task.check(workspace, end.answer)
            history.append((request, end.answer))
            if problem is None or not task.again or len(history) > 1:
                break
            request = f"{problem}\n\n{task.again}"

        changes = changed_files(before, snapshot(workspace))
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
        changed_files=changes,
        calls=tuple(calls),
        tries=len(history),
    )


def _run_harness(
    contestant: Contestant, task: Task, workspace: Path, home: Path, message: dict[str, Any], limits: Limits
) -> RunEnd:
    message |= {"workspace": str(workspace), "files": sorted(task.files), "limits": limits.model_dump()}
    if contestant.options:
        message["options"] = dict(contestant.options)

    variables = {"MENDGRAPH_DATA_DIR": str(home / "runs"), **contestant.environment}
    environment = clean_environment(os.environ, home, variables)
    return run_child(contestant.command, message, workspace, environment, limits.seconds + GRACE_S)


def adjust_end(end: RunEnd, run: MeasuredRun, *, typed: bool) -> RunEnd:
    """Add the original seconds of replayed replies, and the limit that rejected a call of a rival.

    `typed` outcomes already report the limit.
    """
    update: dict[str, Any] = {"seconds": round(end.seconds + run.saved_s, 3)}
    if run.limit_reached and not typed:
        update |= {"ended": run.limit_reached, "reason": ""}
    return end.model_copy(update=update)


def task_digest(task: Task) -> str:
    """Return a digest of the task and its check, which changes with each edit of the task."""
    return text_digest(repr(task))
