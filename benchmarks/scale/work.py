"""A process at work on many runs at once: it says what they cost, and whether each of them did its work.

It is warm before it is measured: one run that does not count has loaded what a run loads.
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
from benchmarks.scale.script import files, problems
from benchmarks.scale.ways import WAYS, End, Place
from mendgraph.nodes.records import ToolError

BOOKED: Final = "booked"
"""Asks how many calls and tokens are in the spending book."""


@dataclass(frozen=True)
class Job:
    """How a process works: its way is one of `WAYS`, `environment` is added to its own."""

    way: str
    place: Place
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Took:
    """What some runs took in one process.

    `began` and `ended` are seconds of the machine's clock, `memory` the most bytes over those of the warm process
    before (`base`), `threads` and `handles` the most at once. `problems` is what of their work the runs have not done.
    """

    began: float
    ended: float
    cpu_s: float
    base: int
    memory: int
    threads: int
    handles: int
    problems: tuple[str, ...]


def serve(pipe: Connection, job: Job) -> None:
    """Make the runs whose names come through the pipe, until it closes; the first answer says that all is loaded.

    An answer that is a text says what went wrong.
    """
    _clean_environment(job.environment)
    try:
        warm = f"warm-{os.getpid()}"
        _prepare(job.place, [warm])
        ended = WAYS[job.way](job.place, [warm])
        pipe.send("".join(_wrong(warm, ended[warm])))
        while True:
            wanted = pipe.recv()
            pipe.send(_booked() if wanted == BOOKED else _measured(job, wanted))
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is, the runs were not made
        pipe.send(f"{type(error).__name__}: {error}")


def _clean_environment(added: Mapping[str, str]) -> None:
    for name in list(os.environ):
        if name.upper().startswith(FOREIGN_SETTINGS) or name.upper() in PROXIES:
            del os.environ[name]
    os.environ.update(added)


def _prepare(place: Place, names: Sequence[str]) -> None:
    for name in names:
        for path, text in files().items():
            file = Path(place.workspace(name), path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")


def _measured(job: Job, names: Sequence[str]) -> Took:
    _prepare(job.place, names)
    gc.collect()
    process.forget_the_peak()
    memory, used, began = process.resident_bytes(), process.cpu_s(), time.time()
    with process.Peaks() as peaks:
        ended = WAYS[job.way](job.place, names)
    over, used = time.time(), process.cpu_s() - used
    grown = max(0, process.peak_bytes() - memory)
    wrong = tuple(said for name in names for said in _wrong(name, ended.get(name)))
    return Took(began, over, used, memory, grown, peaks.threads, peaks.handles, wrong)


def _wrong(name: str, end: End | None) -> list[str]:
    if end is None:
        return [f"{name} has no end"]
    try:
        found = {path: Path(end.root, path).read_text("utf-8") for path in files()}
    except OSError as error:
        return [f"{name} ended {end.kind}: {end.said} ({error})"]
    return problems(name, end.kind, end.said, found)


def _booked() -> tuple[int, int, int] | str:
    """Calls, input tokens and output tokens in the spending book, or why it cannot be read."""
    from mendgraph.graph.spending.store import spent_by_day

    days = spent_by_day(2)
    if isinstance(days, ToolError):
        return days.message
    return tuple(sum(getattr(day, of) for day in days) for of in ("calls", "input_tokens", "output_tokens"))
