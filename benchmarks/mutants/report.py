"""The output of `make mutants`. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.mutants.choice import interval
from benchmarks.mutants.explanations import Explanation
from benchmarks.mutants.mutation import Mutant
from benchmarks.mutants.verdicts import MutantResult, Verdict

MINIMUM_SCORE: Final = 0.85
"""The minimum share of killed mutants."""


@dataclass(frozen=True)
class Row:
    """The figures of a file, of a folder or of all files."""

    name: str
    mutants: int
    killed: int
    """Mutants that a test noticed, including timeouts."""
    timeouts: int
    survivors: int
    explained: int

    @property
    def counted(self) -> int:
        """The number of mutants without the explained survivors."""
        return self.mutants - self.explained

    @property
    def score(self) -> float:
        """The share of killed mutants."""
        if not self.counted:
            return 1.0
        return self.killed / self.counted


def make_row(name: str, results: Sequence[MutantResult], explanations: Mapping[Mutant, Explanation]) -> Row:
    """Return the figures of these mutants. Explained survivors do not count."""
    survivors = [result for result in results if result.verdict is Verdict.SURVIVED]
    return Row(
        name=name,
        mutants=len(results),
        killed=len(results) - len(survivors),
        timeouts=sum(result.verdict is Verdict.TIMEOUT for result in results),
        survivors=len(survivors),
        explained=sum(result.mutant in explanations for result in survivors),
    )


def make_rows(results: Sequence[MutantResult], explanations: Mapping[Mutant, Explanation]) -> list[Row]:
    """Return a row for each file, one for each folder if there are several, and one for all files."""
    by_file: dict[str, list[MutantResult]] = {}
    by_folder: dict[str, list[MutantResult]] = {}
    for result in results:
        file = result.mutant.file
        by_file.setdefault(file, []).append(result)
        by_folder.setdefault(f"{file.rpartition('/')[0]}/", []).append(result)

    rows = [make_row(file, by_file[file], explanations) for file in sorted(by_file)]
    if len(by_folder) > 1:
        rows += [make_row(folder, by_folder[folder], explanations) for folder in sorted(by_folder)]
    return [*rows, make_row("all", results, explanations)]


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    width = max(len(row.name) for row in rows)
    head = f"{'':{width}}  mutants  killed  timeout  survived  explained   score"
    lines = [_line(row, width) for row in rows]
    return "\n".join([head, *lines])


def verdict(total: Row, *, sampled: bool) -> str:
    """Return the last line: the score, its bounds for a sample, and whether it reaches the minimum."""
    bounds = ""
    if sampled:
        low, high = interval(total.killed, total.counted)
        bounds = f" (95 % confidence: {low:.1%} to {high:.1%})"
    comparison = "enough" if total.score >= MINIMUM_SCORE else "too few"
    return (
        f"{total.score:.1%} of {total.counted} mutants are killed{bounds}: {comparison},"
        f" the minimum is {MINIMUM_SCORE:.0%}"
    )


def survivor_diffs(
    results: Iterable[MutantResult], sources: Mapping[str, str], explanations: Mapping[Mutant, Explanation]
) -> str:
    """Return the survivors without an explanation as the lines of a diff."""
    diffs = []
    for result in results:
        if result.verdict is Verdict.SURVIVED and result.mutant not in explanations:
            diffs.append(_diff(result.mutant, sources[result.mutant.file]))
    return "\n".join(diffs)


def stale_lines(problems: Sequence[tuple[Explanation, str]]) -> str:
    """Return a line for each explanation that should be removed from `explained.toml`."""
    lines = [f"explained.toml, {explanation.file}: {reason}: {explanation.line}" for explanation, reason in problems]
    return "\n".join(lines)


def _line(row: Row, width: int) -> str:
    figures = f"{row.mutants:9}{row.killed:8}{row.timeouts:9}{row.survivors:10}{row.explained:11}"
    return f"{row.name:{width}}{figures}{row.score:8.1%}"


def _diff(mutant: Mutant, source: str) -> str:
    number, before, after = mutant.lines(source)
    lines = [*(f"- {line}" for line in before.splitlines()), *(f"+ {line}" for line in after.splitlines())]
    return "\n".join([f"{mutant.file}:{number} {mutant.function or ''}".rstrip(), *lines])
