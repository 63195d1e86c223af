"""A process that makes many concurrent runs, checks their work and reports their cost.

It first makes a run that is not counted, which loads all modules.
"""

import gc
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.real_model.child import FOREIGN_SETTINGS, PROXIES
from benchmarks.scale import process
from benchmarks.scale.script import files, work_problems
from benchmarks.scale.ways import WAYS, End, Place
from mendgraph.nodes.records import ToolError

SPENDING: Final = "spending"
"""The message that requests the calls and tokens in the spending database."""


@dataclass(frozen=True)
class Job:
    """The work of a process: one of `WAYS`, and additional environment variables."""

    way: str
    place: Place
    environment: Mapping[str, str]


@dataclass(frozen=True)
class ProcessCost:
    """The cost of some runs in one process.

    `start` and `end` are times of the system clock. `base` is the memory of the idle process in bytes, `memory` the
    peak above it. `threads` and `handles` are peaks. `problems` has a sentence for each part of the work that was not
    done.
    """

    start: float
    end: float
    cpu_s: float
    base: int
    memory: int
    threads: int
    handles: int
    problems: tuple[str, ...]


def serve(pipe: Connection, job: Job) -> None:
    """Make a first run, and then the runs whose names arrive through the pipe, until it closes.

    The first response is empty if the first run succeeds. A response with a text is an error.
    """
    _clean_environment(job.environment)
    try:
        name = f"warm-{os.getpid()}"
        _write_workspaces(job.place, [name])
        ends = WAYS[job.way](job.place, [name])
        pipe.send("".join(_problems(name, ends[name])))

        while True:
            message = pipe.recv()
            if message == SPENDING:
                pipe.send(_spending())
            else:
                pipe.send(_measure(job, message))
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001 - the parent process reports any exception
        pipe.send(f"{type(error).__name__}: {error}")


def _clean_environment(variables: Mapping[str, str]) -> None:
    """Remove settings and proxies from the environment, and add these variables."""
    for name in list(os.environ):
        if name.upper().startswith(FOREIGN_SETTINGS) or name.upper() in PROXIES:
            del os.environ[name]
    os.environ.update(variables)


def _write_workspaces(place: Place, names: Sequence[str]) -> None:
    for name in names:
        for path, text in files().items():
            file = Path(place.workspace(name), path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")


def _measure(job: Job, names: Sequence[str]) -> ProcessCost:
    """Make the runs and return their cost."""
    _write_workspaces(job.place, names)
    gc.collect()
    process.reset_peak()
    base = process.resident_bytes()
    cpu_s = process.cpu_s()
    start = time.time()

    with process.Peaks() as peaks:
        ends = WAYS[job.way](job.place, names)

    end = time.time()
    cpu_s = process.cpu_s() - cpu_s
    memory = max(0, process.peak_bytes() - base)

    problems: list[str] = []
    for name in names:
        problems += _problems(name, ends.get(name))
    return ProcessCost(start, end, cpu_s, base, memory, peaks.threads, peaks.handles, tuple(problems))


def _problems(name: str, end: End | None) -> list[str]:
    """Return a sentence for each part of its work that a run did not do."""
    if end is None:
        return [f"{name} did not end"]

    try:
        contents = {path: Path(end.root, path).read_text("utf-8") for path in files()}
    except OSError as error:
        return [f"{name} ended {end.kind}: {end.message} ({error})"]
    return work_problems(name, end.kind, end.message, contents)


def _spending() -> tuple[int, int, int] | str:
    """Return the calls, input tokens and output tokens in the spending database, or an error."""
    from mendgraph.graph.spending.store import spent_by_day

    days = spent_by_day(2)
    if isinstance(days, ToolError):
        return days.message

    calls = sum(day.calls for day in days)
    input_tokens = sum(day.input_tokens for day in days)
    output_tokens = sum(day.output_tokens for day in days)
    return calls, input_tokens, output_tokens
