"""The resources for a number of runs per day, computed from the figures of one run. Pure.

Each figure has a source. `per_run` reads the measured figures; `ASSUMED` has those that depend on the deployment.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from benchmarks.scale.figures import Point, line
from benchmarks.scale.script import CALLS
from benchmarks.scale.tables import SeriesFigures, table

RUNS_A_DAY: Final = (1_000, 100_000, 10_000_000)
SECONDS_A_DAY: Final = 86_400

ONE_MACHINE: Final = "batch over 4 processes"
SHARED: Final = "batch over 4 processes, PostgreSQL"
IN_ONE_PROCESS: Final = "threads"


@dataclass(frozen=True)
class PerRun:
    """The resources of one run in CPU seconds, bytes and tokens. `base` is the memory of an idle worker process.

    `server_cpu_s` is that of the database server. `connections` are those of all worker processes of the measurement.
    """

    cpu_s: float
    memory: float
    base: float
    store: float
    shared_store: float
    server_cpu_s: float
    commits: float
    log_bytes: float
    connections: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True)
class Assumed:
    """The assumptions about a deployment, which its operator replaces.

    `call_s` is the duration of a hosted model's reply. `peak` is the load of the busiest minute divided by the mean of
    the day, and `busy` the planned use of a core. A worker process makes `at_once` concurrent runs. `commits_a_server`
    and `gpu_tokens_s` are the planned load of a primary and of an accelerator, in commits and output tokens per second.
    """

    call_s: float = 6.0
    peak: float = 3.0
    busy: float = 0.7
    at_once: int = 50
    kept_days: int = 30
    commits_a_server: float = 5_000.0
    gpu_tokens_s: float = 2_000.0


@dataclass(frozen=True)
class Embedded:
    """A run on the embedded model: the medians of a task of `make eval`, and the speed of two cores.

    Source: benchmarks/details.md, "Real tasks on the embedded model" (2.1 calls, 338 uncached and 224 completion tokens
    a task); 100 tokens/s in and 28 tokens/s out on two cores.
    """

    calls: float = 2.1
    uncached_tokens: float = 338.0
    output_tokens: float = 224.0
    read_tokens_s: float = 100.0
    written_tokens_s: float = 28.0
    cores: int = 2

    @property
    def core_seconds(self) -> float:
        """The core seconds of one run."""
        reading_s = self.uncached_tokens / self.read_tokens_s
        writing_s = self.output_tokens / self.written_tokens_s
        return self.cores * (reading_s + writing_s)


ASSUMED: Final = Assumed()
EMBEDDED: Final = Embedded()


@dataclass(frozen=True)
class Need:
    """The resources for this number of runs per day at peak load, in bytes, bytes per second and tokens per second."""

    runs: int
    rate: float
    peak_rate: float
    at_once: float
    cores: float
    processes: int
    memory: float
    store_a_day: float
    store_kept: float
    commits_s: float
    log_s: float
    server_cores: float
    servers: int
    connections: int
    input_tokens_s: float
    output_tokens_s: float
    request_bytes_s: float
    gpus: int
    embedded_cores: int


def per_run(all_series: Iterable[SeriesFigures]) -> PerRun:
    """Return the figures of one run.

    They are those of the largest number of runs. CPU and memory, which have a fixed part, are slopes of a line.

    Raises:
        KeyError: A series was not measured.
    """
    series_by_name = {series.name: series for series in all_series}
    threads = series_by_name[IN_ONE_PROCESS]
    shared = series_by_name[SHARED]
    thread_point = threads.points[-1]
    local_point = series_by_name[ONE_MACHINE].points[-1]
    shared_point = shared.points[-1]

    return PerRun(
        cpu_s=_slope(shared, lambda point: point.cpu_s),
        memory=_slope(threads, lambda point: point.memory),
        base=thread_point.base,
        store=local_point.store_bytes / local_point.runs,
        shared_store=shared_point.store_bytes / shared_point.runs,
        server_cpu_s=shared_point.database_cpu_s / shared_point.runs,
        commits=shared_point.commits / shared_point.runs,
        log_bytes=shared_point.log_bytes / shared_point.runs,
        connections=shared_point.connections,
        input_tokens=thread_point.input_tokens / thread_point.runs,
        output_tokens=CALLS * EMBEDDED.output_tokens / EMBEDDED.calls,
    )


def _slope(series: SeriesFigures, value: Callable[[Point], float]) -> float:
    runs = [point.runs for point in series.points]
    values = [value(point) for point in series.points]
    return line(runs, values).slope


def need(runs: int, figures: PerRun, assumed: Assumed = ASSUMED, embedded: Embedded = EMBEDDED) -> Need:
    """Return the resources for this number of runs per day, by the formulas of the table."""
    rate = runs / SECONDS_A_DAY
    peak_rate = rate * assumed.peak
    at_once = peak_rate * (CALLS * assumed.call_s + figures.cpu_s)
    cores = peak_rate * figures.cpu_s / assumed.busy
    processes = max(1, ceil(cores), ceil(at_once / assumed.at_once))
    commits_s = peak_rate * figures.commits
    return Need(
        runs=runs,
        rate=rate,
        peak_rate=peak_rate,
        at_once=at_once,
        cores=cores,
        processes=processes,
        memory=processes * figures.base + at_once * figures.memory,
        store_a_day=runs * figures.shared_store,
        store_kept=runs * figures.shared_store * assumed.kept_days,
        commits_s=commits_s,
        log_s=peak_rate * figures.log_bytes,
        server_cores=peak_rate * figures.server_cpu_s / assumed.busy,
        servers=max(1, ceil(commits_s / assumed.commits_a_server)),
        connections=ceil(processes * figures.connections / 4),
        input_tokens_s=peak_rate * figures.input_tokens,
        output_tokens_s=peak_rate * figures.output_tokens,
        request_bytes_s=peak_rate * figures.input_tokens * 4,
        gpus=ceil(peak_rate * figures.output_tokens / assumed.gpu_tokens_s),
        embedded_cores=ceil(peak_rate * embedded.core_seconds / assumed.busy),
    )


_EMBEDDED: Final = "`make eval`, two cores: 338 tokens at 100/s, 224 at 28/s"


def figures_table(figures: PerRun) -> str:
    """Return a table of the figures of one run with their sources."""
    growth = f'growth of "{SHARED}"'
    rows = [
        ["`cpu`", "CPU time, with the copy of the workspace and the patch", f"{figures.cpu_s:.3f} s", growth],
        ["`memory`", "memory of a further run", f"{figures.memory / 1e6:.2f} MB", f'growth of "{IN_ONE_PROCESS}"'],
        ["`base`", "memory of an idle worker process", f"{figures.base / 1e6:.0f} MB", f'"{IN_ONE_PROCESS}"'],
        ["`sqlite`", "stored in SQLite", f"{figures.store / 1e3:.0f} KB", f'"{ONE_MACHINE}"'],
        ["`postgres`", "stored in PostgreSQL", f"{figures.shared_store / 1e3:.0f} KB", f'"{SHARED}"'],
        ["`db_cpu`", "CPU time of PostgreSQL", f"{figures.server_cpu_s:.3f} s", f'"{SHARED}"'],
        ["`commits`", "transactions that write", f"{figures.commits:.0f}", f'"{SHARED}"'],
        ["`log`", "write-ahead log", f"{figures.log_bytes / 1e3:.0f} KB", f'"{SHARED}"'],
        ["`connections`", "connections of four worker processes", f"{figures.connections:.0f}", f'"{SHARED}"'],
        ["`in`", "input tokens (bytes / 4)", f"{figures.input_tokens:,.0f}", f"{CALLS} calls of `make scale`"],
        ["`out`", "output tokens", f"{figures.output_tokens:,.0f}", f"`make eval`: {CALLS} x 224 / 2.1"],
        ["`embedded`", "core seconds of the embedded model", f"{EMBEDDED.core_seconds:.0f} s", _EMBEDDED],
    ]
    return _align_left(table(["Name", "Of one run", "Value", "Source"], rows)).replace(
        "---: | ---: |", "---: | --- |", 1
    )


def assumptions_table(assumed: Assumed = ASSUMED) -> str:
    """Return a table of the assumptions."""
    rows = [
        ["`call`", "duration of a hosted model's reply", f"{assumed.call_s:g} s"],
        ["`peak`", "load of the busiest minute, divided by the mean of the day", f"{assumed.peak:g}"],
        ["`busy`", "planned use of a core", f"{assumed.busy:g}"],
        ["`at_once`", "concurrent runs of a worker process", f"{assumed.at_once}"],
        ["`days`", "days until a run is deleted", f"{assumed.kept_days}"],
        ["`primary`", "commits per second of a PostgreSQL primary", f"{assumed.commits_a_server:,.0f}"],
        ["`gpu`", "output tokens per second of a GPU", f"{assumed.gpu_tokens_s:,.0f}"],
    ]
    return _align_left(table(["Name", "Assumption", "Value"], rows))


_ROWS: Final[tuple[tuple[str, str, Callable[[Need], str]], ...]] = (
    ("Runs per second, mean", "runs / 86,400", lambda need: f"{need.rate:.3g}"),
    ("Runs per second, peak", "mean x `peak`", lambda need: f"{need.peak_rate:.3g}"),
    ("Concurrent runs", f"rate x ({CALLS} x `call` + `cpu`)", lambda need: f"{need.at_once:,.0f}"),
    ("Cores", "rate x `cpu` / `busy`", lambda need: f"{need.cores:,.2f}"),
    ("Worker processes", "the larger of cores and concurrent runs / `at_once`", lambda need: f"{need.processes:,}"),
    ("Memory", "processes x `base` + concurrent runs x `memory`", lambda need: _bytes(need.memory)),
    ("Stored per day", "runs x `postgres`", lambda need: _bytes(need.store_a_day)),
    ("Stored in total", "stored per day x `days`", lambda need: _bytes(need.store_kept)),
    ("Commits per second", "rate x `commits`", lambda need: f"{need.commits_s:,.0f}"),
    ("Write-ahead log", "rate x `log`", lambda need: f"{_bytes(need.log_s)}/s"),
    ("Cores of PostgreSQL", "rate x `db_cpu` / `busy`", lambda need: f"{need.server_cores:,.2f}"),
    ("PostgreSQL primaries", "commits per second / `primary`", lambda need: f"{need.servers}"),
    ("Connections", "processes x `connections` / 4", lambda need: f"{need.connections:,}"),
    ("Input tokens per second", "rate x `in`", lambda need: f"{need.input_tokens_s:,.0f}"),
    ("Output tokens per second", "rate x `out`", lambda need: f"{need.output_tokens_s:,.0f}"),
    ("Traffic to the model", "input tokens x 4 bytes", lambda need: f"{_bytes(need.request_bytes_s)}/s"),
    ("Your own GPUs", "output tokens per second / `gpu`", lambda need: f"{need.gpus:,}"),
    ("Cores for the embedded model", "rate x `embedded` / `busy`", lambda need: f"{need.embedded_cores:,}"),
)


def needs_table(figures: PerRun, runs: Sequence[int] = RUNS_A_DAY) -> str:
    """Return a table of the resources for these numbers of runs per day, with their formulas."""
    needs = [need(count, figures) for count in runs]
    rows = [[name, formula, *map(cell, needs)] for name, formula, cell in _ROWS]
    heads = [f"{count:,}" for count in runs]
    return _align_left(table(["Runs per day", "Formula", *heads], rows))


def _align_left(markdown: str) -> str:
    """Align the second column, which has text, to the left."""
    return markdown.replace("| --- | ---: |", "| --- | --- |", 1)


def _bytes(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1_000:
            return f"{number:.3g} {unit}"
        number /= 1_000
    return f"{number:,.3g} TB"
