"""The figures as Markdown tables, and as the JSON values that `plan.py` reads. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.scale.figures import Line, Point, line, memory_problem, throughput_problem
from benchmarks.scale.script import CALLS
from mendgraph.nodes.records import JsonMap

_LEAST_POINTS: Final = 3
"""The minimum of points for a line of growth."""


@dataclass(frozen=True)
class SeriesFigures:
    """The points of a series, by increasing numbers of runs. `latency_s` is the time before each reply of the model."""

    name: str
    latency_s: float
    points: tuple[Point, ...]

    @property
    def shared(self) -> bool:
        """Whether the series has the shared store."""
        return any(point.commits for point in self.points)

    @property
    def is_batch(self) -> bool:
        """Whether the points are batches of tasks."""
        return any(point.peak for point in self.points)

    def problems(self) -> list[str]:
        """Return a sentence for each figure that gets worse with more runs."""
        problems = (throughput_problem(self.points), memory_problem(self.points))
        return [f"{self.name}: {problem}" for problem in problems if problem]

    def lines(self) -> dict[str, Line]:
        """Return the lines of memory in MB, CPU seconds and store MB over the number of runs, if they were measured."""
        memory = "MB of a process" if self.is_batch else "memory MB"
        values = {
            memory: [(point.peak or point.memory) / 1e6 for point in self.points],
            "CPU s": [point.cpu_s for point in self.points],
            "store MB": [point.store_bytes / 1e6 for point in self.points],
        }
        runs = [point.runs for point in self.points]
        return {name: line(runs, ys) for name, ys in values.items() if any(ys)}


_RUN_COLUMNS: Final = (
    "runs/s",
    "wall s",
    "of the least",
    "CPU ms/run",
    "memory MB",
    "threads",
    "handles",
    "KB/run",
)
_BATCH_COLUMNS: Final = (
    "tasks/s",
    "wall s",
    "CPU ms/task",
    "MB of a process",
    "store KB/task",
    "copies KB/task",
    "kills",
    "taken up again",
)
_SHARED_COLUMNS: Final = ("connections", "server CPU ms/run", "writes/run")


def points_table(series: SeriesFigures) -> str:
    """Return a table with a row for each number of runs."""
    columns = [series.name]
    columns += _BATCH_COLUMNS if series.is_batch else _RUN_COLUMNS
    if series.shared:
        columns += _SHARED_COLUMNS

    rows = [_row(series, point) for point in series.points]
    return table(columns, rows)


def _row(series: SeriesFigures, point: Point) -> list[str]:
    cells = _batch_cells(point) if series.is_batch else _run_cells(point, series.latency_s)
    if series.shared:
        cells += [
            f"{point.connections:.0f}",
            f"{1e3 * point.database_cpu_s / point.runs:.0f}",
            f"{point.commits / point.runs:.0f}",
        ]
    return cells


def _batch_cells(point: Point) -> list[str]:
    return [
        f"{point.runs}",
        f"{point.rate:.2f}",
        f"{point.wall_s:.2f}",
        f"{1e3 * point.cpu_s / point.runs:.0f}",
        f"{point.peak / 1e6:.0f}",
        f"{point.store_bytes / point.runs / 1e3:.0f}",
        f"{point.copies_bytes / point.runs / 1e3:.0f}",
        f"{point.kills:.0f}",
        f"{point.again:.0f}",
    ]


def _run_cells(point: Point, latency_s: float) -> list[str]:
    least_s = CALLS * latency_s
    return [
        f"{point.runs}",
        f"{point.rate:.2f}",
        f"{point.wall_s:.2f}",
        f"{point.wall_s / least_s:.2f} x" if least_s else "-",
        f"{1e3 * point.cpu_s / point.runs:.0f}",
        f"{point.memory / 1e6:.0f}" if point.base else "-",
        f"{point.threads:.0f}" if point.base else "-",
        f"{point.handles:.0f}" if point.base else "-",
        f"{point.store_bytes / point.runs / 1e3:.0f}",
    ]


def lines_table(all_series: Iterable[SeriesFigures]) -> str:
    """Return a table of the lines of growth, with the cost of one more run and the largest distance of a point."""
    rows = []
    for series in all_series:
        if len(series.points) < _LEAST_POINTS:
            continue
        for quantity, growth in series.lines().items():
            formula = f"{growth.start:.2f} + {growth.slope:.4f} n"
            rows.append([series.name, quantity, formula, f"{growth.residual:.2f}", f"{growth.r_squared:.4f}"])
    return table(["growth with n runs at once, or n tasks", "of", "line", "worst point off by", "R²"], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose numbers are aligned to the right."""
    alignment = ["---"] + ["---:"] * (len(head) - 1)
    lines = [head, alignment, *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def document(all_series: Iterable[SeriesFigures]) -> list[JsonMap]:
    """Return all figures as JSON values."""
    return [{**asdict(series), "points": [asdict(point) for point in series.points]} for series in all_series]


def read_document(records: Iterable[Mapping[str, Any]]) -> list[SeriesFigures]:
    """Read the figures that `document` returned."""
    all_series = []
    for record in records:
        points = tuple(Point(**point) for point in record["points"])
        all_series.append(SeriesFigures(record["name"], record["latency_s"], points))
    return all_series
