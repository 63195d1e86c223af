"""The scenarios of the benchmark: what is run, and which figures come of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.overhead.figures import growth, per_unit
from benchmarks.overhead.imports import import_costs
from benchmarks.overhead.script import Script
from benchmarks.overhead.workers import CREATE_AGENT_STORED, OURS, OURS_STORED, Entrant, Ran, Times, Workers

FLOOR = "httpx loop"
PIECES = 25
"""Chunks of text in a streamed reply; with those around it and those of the call, about 32."""
PARALLEL = 8
TURNS = 10
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Figures:
    """One table: a figure for each contestant and round. `ours` is the row that all are compared with, if any."""

    title: str
    unit: str
    series: Mapping[str, Sequence[float]]
    ours: str = OURS
    digits: int = 2


@dataclass(frozen=True)
class Setting:
    """What the command line says. `workers` are the contestants that take part."""

    workers: Workers
    steps: int = 200
    rounds: int = 5
    at_once: int = 64

    def lengths(self) -> tuple[int, int, int]:
        """The numbers of steps of the runs that growth is computed from: two short ones and the whole."""
        return max(2, self.steps // 10), max(4, self.steps // 4), max(8, self.steps)


def steps(setting: Setting) -> list[Figures]:
    """Reading files, one after the other: CPU for each step, and how it grows with the history."""
    lengths = setting.lengths()
    ran = setting.workers.take_turns(_plain, [Script(length) for length in lengths], setting.rounds)
    costs = {name: [[run.cpu_s for run in turn] for turn in turns] for name, turns in ran.items()}
    tables = [
        Figures(f"CPU per step, {length} steps", "ms", per_unit(_at(costs, place), length))
        for place, length in enumerate(lengths)
    ]
    grown = {name: [1e6 * growth(lengths, turn) for turn in turns] for name, turns in costs.items()}
    return [*tables, Figures(f"Growth of a step, up to {lengths[2]} steps", "us per step", grown, digits=1)]


def store(setting: Setting) -> list[Figures]:
    """The same with every step on the disk before the next one begins."""
    length = setting.lengths()[2]
    ran = setting.workers.take_turns(lambda entrant: entrant.stored, [Script(length)], setting.rounds)
    kept = {name: [turn[0].kept / MEGABYTE for turn in turns] for name, turns in ran.items()}
    return [
        Figures(f"CPU per step with a store, {length} steps", "ms", per_unit(_first(ran), length), OURS_STORED),
        Figures(f"Kept on the disk, {length} steps", "MB", kept, OURS_STORED),
    ]


def parallel(setting: Setting) -> list[Figures]:
    """Several calls in each reply."""
    ran = setting.workers.take_turns(_plain, [Script(TURNS, parallel=PARALLEL)], setting.rounds)
    return [Figures(f"CPU per turn of {PARALLEL} calls, {TURNS} turns", "ms", per_unit(_first(ran), TURNS))]


def stream(setting: Setting) -> list[Figures]:
    """Replies that come in many pieces, with somebody who listens: one run, one with the store, and many at once."""
    _, length, whole = setting.lengths()

    def ran(who: Callable[[Entrant], bool], steps: int, at_once: int = 1) -> dict[str, list[float]]:
        times = Times(stream=True, at_once=at_once)
        return _first(setting.workers.take_turns(who, [Script(steps, pieces=PIECES)], setting.rounds, times))

    chunks, stored = "replies of about 32 chunks", ran(lambda entrant: entrant.stored, whole)
    title = f"CPU per run of {TURNS} steps, {setting.at_once} at once (async), {chunks}"
    return [
        Figures(f"CPU per step, {chunks}, {length} steps", "ms", per_unit(ran(_plain, length), length)),
        Figures(f"CPU per step with a store, {chunks}, {whole} steps", "ms", per_unit(stored, whole), OURS_STORED),
        Figures(title, "ms", per_unit(ran(_plain, TURNS, setting.at_once), setting.at_once), digits=1),
    ]


def concurrent(setting: Setting) -> list[Figures]:
    """Many runs at once in one event loop."""
    ran = setting.workers.take_turns(_plain, [Script(TURNS)], setting.rounds, Times(at_once=setting.at_once))
    title = f"CPU per run of {TURNS} steps, {setting.at_once} at once (async)"
    return [Figures(title, "ms", per_unit(_first(ran), setting.at_once), digits=1)]


def prefix(setting: Setting) -> list[Figures]:
    """What an endpoint's cache can reuse, and how long the first request is."""
    length = setting.lengths()[2]
    ran = setting.workers.take_turns(_plain, [Script(length, recorded=True)], 1, Times(warm=False))
    seen = {name: turns[0][0].seen for name, turns in ran.items()}
    floor = seen[FLOOR]["first"] if FLOOR in seen else 0
    percent = {name: [each["percent"]] for name, each in seen.items()}
    longer = {name: [each["first"] - floor] for name, each in seen.items()}
    return [
        Figures(f"Cacheable prefix, {length} steps", "%", percent, ""),
        Figures("First request, over the floor's", "bytes", longer, "", 0),
    ]


def imports(setting: Setting) -> list[Figures]:
    """What importing costs."""
    return [Figures("CPU to import", "s", import_costs(setting.rounds), "import mendgraph")]


def first_run(setting: Setting) -> list[Figures]:
    """What a new process costs that makes one run."""
    costs = setting.workers.first_runs(_plain, Script(1), setting.rounds)
    return [Figures("CPU of a new process: imports and a first run of one step", "s", costs)]


SCENARIOS: Mapping[str, Callable[[Setting], list[Figures]]] = {
    each.__name__: each for each in (imports, first_run, steps, store, parallel, stream, concurrent, prefix)
}


def _plain(entrant: Entrant) -> bool:
    return entrant.name not in {OURS_STORED, CREATE_AGENT_STORED}


def _first(ran: Mapping[str, list[list[Ran]]]) -> dict[str, list[float]]:
    return {name: [turn[0].cpu_s for turn in turns] for name, turns in ran.items()}


def _at(costs: Mapping[str, list[list[float]]], place: int) -> dict[str, list[float]]:
    return {name: [turn[place] for turn in turns] for name, turns in costs.items()}
