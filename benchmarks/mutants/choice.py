"""A sample of the mutants, and the confidence interval of its score. Pure."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.mutants.mutation import Mutant, is_another_program

CONFIDENCE_95: Final = 1.96
"""The number of standard deviations on each side that include 95 % of a normal distribution."""


def sample_sizes(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Return the sample size of each file, in proportion to its number of mutants (largest remainder method).

    Args:
        counts: The number of mutants of each file.
        size: The size of the sample. The result has at most all mutants.
    """
    total = sum(counts.values())
    size = min(size, total)
    quotas = {file: size * count / (total or 1) for file, count in counts.items()}
    sizes = {file: math.floor(quota) for file, quota in quotas.items()}

    by_remainder = sorted(quotas, key=lambda file: (sizes[file] - quotas[file], _rank(file)))
    remaining = size - sum(sizes.values())
    for file in by_remainder[:remaining]:
        sizes[file] += 1
    return sizes


def sample(mutants: Sequence[Mutant], source: str, size: int) -> list[Mutant]:
    """Return a sample of a file's mutants. It is stable as long as their lines and functions do not change."""
    data = source.encode()

    def rank(mutant: Mutant) -> str:
        line_start = data.rfind(b"\n", 0, mutant.start) + 1
        line = data[line_start : mutant.end].decode(errors="replace")
        return _rank(mutant.file, mutant.function or "", line, mutant.text)

    selection: list[Mutant] = []
    for mutant in sorted(mutants, key=rank):
        if len(selection) == size:
            break
        if is_another_program(mutant, source):
            selection.append(mutant)
    return sorted(selection, key=lambda mutant: (mutant.start, mutant.end))


def interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the bounds of the true share with a confidence of 95 %.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927. Proportional
    sampling from the files can only make the interval narrower.
    """
    if not trials:
        return 0.0, 1.0

    share = successes / trials
    square = CONFIDENCE_95**2
    scale = 1 + square / trials
    centre = (share + square / (2 * trials)) / scale
    variance = share * (1 - share) / trials + square / (4 * trials**2)
    half_width = CONFIDENCE_95 * math.sqrt(variance) / scale
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


def _rank(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
