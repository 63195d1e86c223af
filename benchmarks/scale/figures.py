"""What the measured figures say: lines of growth, and where they bend. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import correlation, linear_regression, median
from typing import Final

SLOWER: Final = 0.85
"""Throughput falls where it is less than this part of what fewer runs at once have reached."""
STEEPER: Final = 1.5
"""Memory bends where the last runs take so many times what the line of the others says."""
LARGER: Final = 1.25
"""A process of a batch grows with the tasks where its peak is so many times what fewer tasks have come to."""
LEAST_MEMORY: Final = 8_000_000
"""Bytes of memory that a bend must come to: less is what an allocator does with its arenas."""


@dataclass(frozen=True)
class Point:
    """So many runs at once, and what they took together; figures that nobody could measure are 0.

    `memory` is what they took over `base`, which the warm processes have without them; both in bytes. The store's
    bytes are those that are left when all is closed. What the database server took is only known of a server of this
    machine; `commits` are its transactions that wrote, `log_bytes` what they put into its log.

    Of a batch `runs` are its tasks, `peak` is the memory of its largest process, `copies_bytes` what copies and patches
    take on the disk, `kills` how often something was killed, and `again` how many tasks were taken up again.
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
        """Runs a second."""
        return self.runs / self.wall_s


@dataclass(frozen=True)
class Line:
    """A straight line by least squares; `residual` is how far the worst point is from it."""

    slope: float
    start: float
    residual: float
    r_squared: float

    def at(self, x: float) -> float:
        """What it says there."""
        return self.start + self.slope * x


def line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """The line through these points, of which there are two at least."""
    slope, start = linear_regression(xs, ys)
    residual = max(abs(y - start - slope * x) for x, y in zip(xs, ys, strict=True))
    flat = len(set(ys)) == 1
    return Line(slope, start, residual, 1.0 if flat else correlation(xs, ys) ** 2)


def middle(points: Sequence[Point]) -> Point:
    """The medians of several measurements of as many runs."""
    fields = [vars(point) for point in points]
    return Point(**{name: median(each[name] for each in fields) for name in fields[0]})


def falling(points: Sequence[Point]) -> str | None:
    """Where more runs at once come to fewer runs a second, in words; None where that is nowhere."""
    best = 0.0
    for point in points:
        if point.rate < SLOWER * best:
            return f"{point.runs} runs at once come to {point.rate:.2f} runs/s, fewer ones to {best:.2f}"
        best = max(best, point.rate)
    return None


def bending(points: Sequence[Point]) -> str | None:
    """Where the last runs take more memory than the others, in words; None where it grows by a line or less."""
    *before, last = points
    if last.peak and before and last.peak > LARGER * before[-1].peak:
        return f"a process of {last.runs} tasks had {last.peak / 1e6:.0f} MB, of fewer {before[-1].peak / 1e6:.0f} MB"
    if last.peak or len(before) < 2:
        return None
    expected = line([point.runs for point in before], [point.memory for point in before])
    added = last.memory - before[-1].memory
    allowed = STEEPER * max(0.0, expected.slope) * (last.runs - before[-1].runs)
    if added <= max(allowed, LEAST_MEMORY):
        return None
    return (
        f"the last {last.runs - before[-1].runs} runs took {added / 1e6:.0f} MB, where the line of the others says"
        f" {allowed / STEEPER / 1e6:.0f} MB"
    )
