"""Statistics of the measured figures: medians, ratios and growth. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Series = Mapping[str, Sequence[float]]
"""The figures of each contestant, one for each round."""


@dataclass(frozen=True)
class Row:
    """The figures of a contestant. `ratio` is the median over the rounds of mendgraph's figure divided by its own."""

    name: str
    median: float
    lowest: float
    highest: float
    ratio: float | None


def rows(series: Series, ours: str) -> list[Row]:
    """Return a row for each contestant, cheapest first. `ours` names the contestant to compare with."""
    baseline = series.get(ours, ())
    result = [
        Row(name, median(values), min(values), max(values), ratio(baseline, values))
        for name, values in series.items()
        if values
    ]
    return sorted(result, key=lambda row: row.median)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the median over the rounds of `ours` divided by `theirs`; None without a common round.

    The runs of a round follow each other, so a temporary slowdown of the machine affects both.
    """
    ratios = [our_cost / their_cost for our_cost, their_cost in zip(ours, theirs, strict=False) if their_cost]
    return median(ratios) if ratios else None


def growth(steps: Sequence[int], costs: Sequence[float]) -> float:
    """Return by how much each step costs more than the previous step, in the unit of the costs.

    `costs` are those of three complete runs with these numbers of steps. The cost of a run is a parabola in its steps:
    a fixed part, a part per step, and a part per pair of steps. The result is twice the leading coefficient, computed
    by divided differences.
    """
    first, middle, last = steps
    first_cost, middle_cost, last_cost = costs

    early_slope = (middle_cost - first_cost) / (middle - first)
    late_slope = (last_cost - middle_cost) / (last - middle)
    return 2 * (late_slope - early_slope) / (last - first)


def per_unit(costs: Series, units: float) -> dict[str, list[float]]:
    """Convert CPU seconds of complete runs to milliseconds per unit."""
    return {name: [1_000 * cost / units for cost in values] for name, values in costs.items()}
