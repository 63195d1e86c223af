"""Statistics of the measured figures: lines of growth, and deviations from them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import correlation, linear_regression, median
from typing import Final

SLOWER: Final = 0.85
"""Throughput falls if it is below this share of the best throughput with fewer runs."""
STEEPER: Final = 1.5
"""Memory grows faster than a line if the last runs take more than this multiple of the line through the others."""
LARGER: Final = 1.25
"""A process of a batch grows if its peak is above this multiple of the peak with fewer tasks."""
LEAST_MEMORY: Final = 8_000_000
"""The minimum of excess memory in bytes. Less can be due to the arenas of the allocator."""


@dataclass(frozen=True)
class Point:
    """The total figures of a number of concurrent runs. Figures without a source are 0.

    `base` is the memory of the idle processes and `memory` the memory that the runs add, in bytes. `store_bytes` is
    measured when the store is closed. `database_cpu_s` is known only for a server on this machine. `commits` are
    transactions that write, and `log_bytes` the size of their write-ahead log.

    For a batch, `runs` are its tasks, `peak` is the memory of its largest process, `copies_bytes` the size of copies
    and patches, `kills` the number of kills, and `again` the number of interrupted tasks that were continued.
    """

    runs: int
    wall_s: float
    cpu_s: float
    base: float
    memory: float
    threads: float
    handles: float
    store_bytes: float
    calls: float
    input_tokens: float
    output_tokens: float
    connections: float = 0
    database_cpu_s: float = 0
    commits: float = 0
    log_bytes: float = 0
    peak: float = 0
    copies_bytes: float = 0
    kills: float = 0
    again: float = 0

    @property
    def rate(self) -> float:
        """The number of runs per second."""
        return self.runs / self.wall_s


@dataclass(frozen=True)
class Line:
    """A straight line by least squares. `residual` is the largest distance of a point."""

    slope: float
    start: float
    residual: float
    r_squared: float

    def at(self, x: float) -> float:
        """Return the value of the line at x."""
        return self.start + self.slope * x


def line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """Return the line through at least two points."""
    slope, start = linear_regression(xs, ys)
    residual = max(abs(y - start - slope * x) for x, y in zip(xs, ys, strict=True))
    is_flat = len(set(ys)) == 1
    r_squared = 1.0 if is_flat else correlation(xs, ys) ** 2
    return Line(slope, start, residual, r_squared)


def median_point(points: Sequence[Point]) -> Point:
    """Return the medians of several measurements of the same number of runs."""
    values = [vars(point) for point in points]
    medians = {name: median(value[name] for value in values) for name in values[0]}
    return Point(**medians)


def throughput_problem(points: Sequence[Point]) -> str | None:
    """Return a sentence if throughput falls with more concurrent runs; None otherwise."""
    best = 0.0
    for point in points:
        if point.rate < SLOWER * best:
            return f"{point.runs} concurrent runs reach {point.rate:.2f} runs/s, fewer runs {best:.2f}"
        best = max(best, point.rate)
    return None


def memory_problem(points: Sequence[Point]) -> str | None:
    """Return a sentence if memory grows faster than a line; None otherwise."""
    *earlier, last = points
    if not earlier:
        return None

    previous = earlier[-1]
    if last.peak:
        if last.peak <= LARGER * previous.peak:
            return None
        peak_mb = last.peak / 1e6
        return f"a process of {last.runs} tasks has {peak_mb:.0f} MB, with fewer tasks {previous.peak / 1e6:.0f} MB"

    if len(earlier) < 2:
        return None
    trend = line([point.runs for point in earlier], [point.memory for point in earlier])
    runs = last.runs - previous.runs
    memory = last.memory - previous.memory
    expected = max(0.0, trend.slope) * runs
    if memory <= max(STEEPER * expected, LEAST_MEMORY):
        return None
    return (
        f"the last {runs} runs take {memory / 1e6:.0f} MB, but the line through the others predicts"
        f" {expected / 1e6:.0f} MB"
    )
