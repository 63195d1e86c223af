"""The figures as tables of Markdown, and as the plain data that `plan.py` reads. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.scale.figures import Line, Point, bending, falling, line
from benchmarks.scale.script import CALLS
from mendgraph.nodes.records import JsonMap

_MOST_ALIKE: Final = 2
"""Points through which no line says anything."""


@dataclass(frozen=True)
class Measured:
    """A series: its points by rising numbers of runs at once. `latency_s` is how long its model takes to begin."""

    name: str
    latency_s: float
    points: tuple[Point, ...]

    @property
    def shared(self) -> bool:
        """Whether it has the shared store."""
        return any(point.commits for point in self.points)

    @property
    def is_batch(self) -> bool:
        """Whether the points are tasks of a batch, a few of them at once."""
        return any(point.peak for point in self.points)

    def problems(self) -> list[str]:
        """Where it gets worse with more runs at once, a sentence each."""
        return [f"{self.name}: {said}" for said in (falling(self.points), bending(self.points)) if said]

    def lines(self) -> dict[str, Line]:
        """Memory in MB, CPU in seconds and MB in the store, over runs at once; none of what nobody could measure."""
        of: Mapping[str, Callable[[Point], float]] = {
            "MB of a process" if self.is_batch else "memory MB": lambda point: (point.peak or point.memory) / 1e6,
            "CPU s": lambda point: point.cpu_s,
            "store MB": lambda point: point.store_bytes / 1e6,
        }
        runs = [point.runs for point in self.points]
        values = {name: list(map(value, self.points)) for name, value in of.items()}
        return {name: line(runs, known) for name, known in values.items() if any(known)}


def points_table(measured: Measured) -> str:
    """A row for each number of runs at once."""
    of_runs = ("runs/s", "wall s", "of the least", "CPU ms/run", "memory MB", "threads", "handles", "KB/run")
    columns = [*(_OF_BATCHES if measured.is_batch else of_runs)]
    columns += ["connections", "server CPU ms/run", "writes/run"] if measured.shared else []
    return table([measured.name, *columns], [_row(measured, point) for point in measured.points])


_OF_BATCHES: Final = (
    *("tasks/s", "wall s", "CPU ms/task", "MB of a process", "store KB/task"),
    *("copies KB/task", "kills", "taken up again"),
)


def _row(measured: Measured, point: Point) -> list[str]:
    least, each = CALLS * measured.latency_s, point.runs
    of_batch = [
        f"{each}",
        f"{point.rate:.2f}",
        f"{point.wall_s:.2f}",
        f"{1e3 * point.cpu_s / each:.0f}",
        f"{point.peak / 1e6:.0f}",
        f"{point.store_bytes / each / 1e3:.0f}",
        f"{point.copies_bytes / each / 1e3:.0f}",
        f"{point.kills:.0f}",
        f"{point.again:.0f}",
    ]
    of_runs = [
        f"{each}",
        f"{point.rate:.2f}",
        f"{point.wall_s:.2f}",
        f"{point.wall_s / least:.2f} x" if least else "-",
        f"{1e3 * point.cpu_s / each:.0f}",
        f"{point.memory / 1e6:.0f}" if point.base else "-",
        f"{point.threads:.0f}" if point.base else "-",
        f"{point.handles:.0f}" if point.base else "-",
        f"{point.store_bytes / each / 1e3:.0f}",
    ]
    cells = of_batch if measured.is_batch else of_runs
    if measured.shared:
        cells += [
            f"{point.connections:.0f}",
            f"{1e3 * point.database_cpu_s / each:.0f}",
            f"{point.commits / each:.0f}",
        ]
    return cells


def lines_table(all_measured: Iterable[Measured]) -> str:
    """The line of growth of each series: what one more run takes, and how far the worst point is from the line."""
    rows = [
        [measured.name, of, f"{each.start:.2f} + {each.slope:.4f} n", f"{each.residual:.2f}", f"{each.r_squared:.4f}"]
        for measured in all_measured
        if len(measured.points) > _MOST_ALIKE
        for of, each in measured.lines().items()
    ]
    return table(["growth with n runs at once, or n tasks", "of", "line", "worst point off by", "R²"], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, its numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def document(all_measured: Iterable[Measured]) -> list[JsonMap]:
    """All figures as plain data."""
    return [{**asdict(each), "points": [asdict(point) for point in each.points]} for each in all_measured]


def measured_of(told: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """What `document` has told."""
    return [
        Measured(each["name"], each["latency_s"], tuple(Point(**point) for point in each["points"])) for each in told
    ]
