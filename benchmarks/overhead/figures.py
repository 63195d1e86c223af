"""What the measured figures say: medians, ratios and growth. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Series = Mapping[str, Sequence[float]]
"""One figure for each round, by contestant; all contestants have as many."""


@dataclass(frozen=True)
class Row:
    """A contestant's figures. `ratio` is ours to its: the median of the ratios of the single rounds."""

    name: str
    median: float
    lowest: float
    highest: float
    ratio: float | None


def rows(series: Series, ours: str) -> list[Row]:
    """A row for each contestant, cheapest first; `ours` is the one that all are compared with."""
    found = [
        Row(name, median(values), min(values), max(values), ratio(series.get(ours, ()), values))
        for name, values in series.items()
        if values
    ]
    return sorted(found, key=lambda row: row.median)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The median over the rounds of ours divided by theirs; None where nothing can be compared.

    Contestants of a round ran one after the other, so that what slows the machine for a while slows both.
    """
    pairs = [one / other for one, other in zip(ours, theirs, strict=False) if other]
    return median(pairs) if pairs else None


def growth(steps: Sequence[int], costs: Sequence[float]) -> float:
    """What each step costs more than the one before it, in the unit of the costs.

    `costs` are those of three whole runs of so many steps. A run costs a fixed part, a part for each step, and for each
    step a part for each step before it: a parabola, and this is twice its leading coefficient (divided differences).
    """
    (first, middle, last), (a, b, c) = steps, costs
    return 2 * ((c - b) / (last - middle) - (b - a) / (middle - first)) / (last - first)


def per_unit(costs: Series, units: float) -> dict[str, list[float]]:
    """CPU seconds of whole runs as milliseconds of a unit."""
    return {name: [1_000 * cost / units for cost in values] for name, values in costs.items()}
