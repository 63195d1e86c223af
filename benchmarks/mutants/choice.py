"""Which mutants are looked at when not all are, and how sure the score is then. Pure."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.mutants.mutation import Mutant, is_another_program

CONFIDENCE_95: Final = 1.96
"""Standard deviations on each side that hold 95 % of a normal distribution."""


def shares(counts: Mapping[str, int], wanted: int) -> dict[str, int]:
    """How many mutants of each file are looked at, in proportion to how many it has (largest remainder).

    Args:
        counts: how many mutants each file has.
        wanted: how many are looked at, at most as many as there are.
    """
    total = sum(counts.values())
    wanted = min(wanted, total)
    exact = {file: wanted * count / (total or 1) for file, count in counts.items()}
    whole = {file: math.floor(share) for file, share in exact.items()}
    by_remainder = sorted(exact, key=lambda file: (whole[file] - exact[file], _rank(file)))
    more = set(by_remainder[: wanted - sum(whole.values())])
    return {file: count + (file in more) for file, count in whole.items()}


def chosen(mutants: Sequence[Mutant], source: str, wanted: int) -> list[Mutant]:
    """So many mutants of a file, the same ones each time as long as their lines and functions are the same."""
    data = source.encode()

    def rank(mutant: Mutant) -> str:
        line = data[data.rfind(b"\n", 0, mutant.start) + 1 : mutant.end].decode(errors="replace")
        return _rank(mutant.file, mutant.function or "", line, mutant.text)

    found: list[Mutant] = []
    for mutant in sorted(mutants, key=rank):
        if len(found) == wanted:
            break
        if is_another_program(mutant, source):
            found.append(mutant)
    return sorted(found, key=lambda each: (each.start, each.end))


def interval(successes: int, trials: int) -> tuple[float, float]:
    """Between which shares the true one lies, with a confidence of 95 %.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927. Drawing from
    each file in proportion makes the interval narrower, if anything.
    """
    if not trials:
        return 0.0, 1.0
    share, square = successes / trials, CONFIDENCE_95**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = CONFIDENCE_95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def _rank(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
