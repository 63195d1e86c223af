"""The scenarios of the benchmark, and the tables of figures that they produce."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.overhead.figures import growth, per_unit
from benchmarks.overhead.imports import import_costs
from benchmarks.overhead.script import Script
from benchmarks.overhead.workers import CREATE_AGENT_STORED, OURS, OURS_STORED, Entrant, JobCost, RunOptions, Workers

FLOOR = "httpx loop"
PIECES = 25
"""Text chunks of a streamed reply. With the opening, closing and tool-call chunks there are about 32."""
PARALLEL = 8
TURNS = 10
MEGABYTE = 1_000_000
MICROSECONDS = 1_000_000

JobCosts = Mapping[str, list[list[JobCost]]]
"""The costs of each contestant, by round and script."""


@dataclass(frozen=True)
class Figures:
    """One table: a figure for each contestant and round. `ours` names the row to compare with; "" compares nothing."""

    title: str
    unit: str
    series: Mapping[str, Sequence[float]]
    ours: str = OURS
    digits: int = 2


@dataclass(frozen=True)
class Setting:
    """The options of the command, and the workers of the contestants."""

    workers: Workers
    steps: int = 200
    rounds: int = 5
    at_once: int = 64

    def lengths(self) -> tuple[int, int, int]:
        """Return the numbers of steps of the three runs from which growth is computed."""
        return max(2, self.steps // 10), max(4, self.steps // 4), max(8, self.steps)


def steps(setting: Setting) -> list[Figures]:
    """Measure sequential file reads: the CPU time per step, and its growth with the history."""
    lengths = setting.lengths()
    scripts = [Script(length) for length in lengths]
    costs = setting.workers.run_rounds(_is_plain, scripts, setting.rounds)

    tables = []
    for index, length in enumerate(lengths):
        title = f"CPU per step, {length} steps"
        tables.append(Figures(title, "ms", per_unit(_cpu_of_script(costs, index), length)))

    growths: dict[str, list[float]] = {}
    for name, rounds in costs.items():
        cpu_rounds = [[cost.cpu_s for cost in job_costs] for job_costs in rounds]
        growths[name] = [MICROSECONDS * growth(lengths, cpu_s) for cpu_s in cpu_rounds]

    title = f"Growth of a step, up to {lengths[2]} steps"
    return [*tables, Figures(title, "us per step", growths, digits=1)]


def store(setting: Setting) -> list[Figures]:
    """Measure the same reads with a store, which writes each step to the disk before the next step begins."""
    length = setting.lengths()[2]
    costs = setting.workers.run_rounds(_is_stored, [Script(length)], setting.rounds)

    cpu = per_unit(_cpu_of_script(costs), length)
    sizes = {name: [job_costs[0].stored_bytes / MEGABYTE for job_costs in rounds] for name, rounds in costs.items()}
    return [
        Figures(f"CPU per step with a store, {length} steps", "ms", cpu, OURS_STORED),
        Figures(f"Kept on the disk, {length} steps", "MB", sizes, OURS_STORED),
    ]


def parallel(setting: Setting) -> list[Figures]:
    """Measure turns with several tool calls."""
    script = Script(TURNS, parallel=PARALLEL)
    costs = setting.workers.run_rounds(_is_plain, [script], setting.rounds)

    title = f"CPU per turn of {PARALLEL} calls, {TURNS} turns"
    return [Figures(title, "ms", per_unit(_cpu_of_script(costs), TURNS))]


def stream(setting: Setting) -> list[Figures]:
    """Measure streamed replies with a consumer of the events: one run, one run with a store, and concurrent runs."""
    _, short, long = setting.lengths()
    chunks = "replies of about 32 chunks"

    def measure(plays: Callable[[Entrant], bool], length: int, at_once: int = 1) -> dict[str, list[float]]:
        script = Script(length, pieces=PIECES)
        options = RunOptions(stream=True, at_once=at_once)
        return _cpu_of_script(setting.workers.run_rounds(plays, [script], setting.rounds, options))

    stored = per_unit(measure(_is_stored, long), long)
    single = per_unit(measure(_is_plain, short), short)
    concurrent_runs = per_unit(measure(_is_plain, TURNS, setting.at_once), setting.at_once)

    title = f"CPU per run of {TURNS} steps, {setting.at_once} at once (async), {chunks}"
    return [
        Figures(f"CPU per step, {chunks}, {short} steps", "ms", single),
        Figures(f"CPU per step with a store, {chunks}, {long} steps", "ms", stored, OURS_STORED),
        Figures(title, "ms", concurrent_runs, digits=1),
    ]


def concurrent(setting: Setting) -> list[Figures]:
    """Measure concurrent runs in one event loop."""
    options = RunOptions(at_once=setting.at_once)
    costs = setting.workers.run_rounds(_is_plain, [Script(TURNS)], setting.rounds, options)

    title = f"CPU per run of {TURNS} steps, {setting.at_once} at once (async)"
    return [Figures(title, "ms", per_unit(_cpu_of_script(costs), setting.at_once), digits=1)]


def prefix(setting: Setting) -> list[Figures]:
    """Measure the cacheable share of the requests, and the size of the first request."""
    length = setting.lengths()[2]
    script = Script(length, recorded=True)
    costs = setting.workers.run_rounds(_is_plain, [script], 1, RunOptions(warm=False))

    statistics = {name: rounds[0][0].statistics for name, rounds in costs.items()}
    floor = statistics[FLOOR]["first"] if FLOOR in statistics else 0
    percent = {name: [counts["percent"]] for name, counts in statistics.items()}
    overhead = {name: [counts["first"] - floor] for name, counts in statistics.items()}
    return [
        Figures(f"Cacheable prefix, {length} steps", "%", percent, ""),
        Figures("First request, over the floor's", "bytes", overhead, "", 0),
    ]


def imports(setting: Setting) -> list[Figures]:
    """Measure imports."""
    return [Figures("CPU to import", "s", import_costs(setting.rounds), "import mendgraph")]


def first_run(setting: Setting) -> list[Figures]:
    """Measure a new process that makes one run."""
    costs = setting.workers.first_runs(_is_plain, Script(1), setting.rounds)
    return [Figures("CPU of a new process: imports and a first run of one step", "s", costs)]


SCENARIOS: Mapping[str, Callable[[Setting], list[Figures]]] = {
    scenario.__name__: scenario for scenario in (imports, first_run, steps, store, parallel, stream, concurrent, prefix)
}


def _is_plain(entrant: Entrant) -> bool:
    return entrant.name not in {OURS_STORED, CREATE_AGENT_STORED}


def _is_stored(entrant: Entrant) -> bool:
    return entrant.stored


def _cpu_of_script(costs: JobCosts, index: int = 0) -> dict[str, list[float]]:
    """Return the CPU seconds of one script, by contestant and round."""
    return {name: [job_costs[index].cpu_s for job_costs in rounds] for name, rounds in costs.items()}
