"""What `make mutants` prints. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.mutants.choice import interval
from benchmarks.mutants.explanations import Explanation
from benchmarks.mutants.mutation import Mutant
from benchmarks.mutants.verdicts import Judged, Verdict

WANTED: Final = 0.85
"""The share of mutants that has to be killed."""


@dataclass(frozen=True)
class Row:
    """The figures of a file, of a folder or of all."""

    name: str
    mutants: int
    killed: int
    """Noticed by a test, those included that ran out of their time."""
    timeouts: int
    survived: int
    explained: int

    @property
    def counted(self) -> int:
        """The mutants that a test should notice."""
        return self.mutants - self.explained

    @property
    def score(self) -> float:
        """The share of them that one does."""
        return self.killed / self.counted if self.counted else 1.0


def row(name: str, judged: Sequence[Judged], explained: Mapping[Mutant, Explanation]) -> Row:
    """The figures of these mutants. An explained survivor counts neither for the tests nor against them."""
    survived = [each for each in judged if each.verdict is Verdict.SURVIVED]
    timeouts = sum(each.verdict is Verdict.TIMEOUT for each in judged)
    known = sum(each.mutant in explained for each in survived)
    return Row(name, len(judged), len(judged) - len(survived), timeouts, len(survived), known)


def rows(judged: Sequence[Judged], explained: Mapping[Mutant, Explanation]) -> list[Row]:
    """A row for each file, one for each folder of more than one, and the last for all."""
    files = sorted({each.mutant.file for each in judged})
    folders = sorted({file.rpartition("/")[0] for file in files})
    found = [row(file, [each for each in judged if each.mutant.file == file], explained) for file in files]
    if len(folders) > 1:
        found += [
            row(f"{folder}/", [each for each in judged if each.mutant.file.rpartition("/")[0] == folder], explained)
            for folder in folders
        ]
    return [*found, row("all", judged, explained)]


def table(found: Sequence[Row]) -> str:
    """The rows, below their headings."""
    width = max(len(each.name) for each in found)
    head = f"{'':{width}}  mutants  killed  timeout  survived  explained   score"
    return "\n".join([head, *(_line(each, width) for each in found)])


def verdict(total: Row, *, sampled: bool) -> str:
    """The last line: the score, for a sample between which bounds it lies, and whether that is enough."""
    low, high = interval(total.killed, total.counted)
    bounds = f" (95 % confidence: {low:.1%} to {high:.1%})" if sampled else ""
    word = "enough" if total.score >= WANTED else "too few"
    return f"{total.score:.1%} of {total.counted} mutants are killed{bounds}: {word}, {WANTED:.0%} are wanted"


def survivors(judged: Iterable[Judged], sources: Mapping[str, str], explained: Mapping[Mutant, Explanation]) -> str:
    """The survivors that nobody has explained, as the lines of a diff."""
    return "\n".join(
        _diff(each.mutant, sources[each.mutant.file])
        for each in judged
        if each.verdict is Verdict.SURVIVED and each.mutant not in explained
    )


def staleness(found: Sequence[tuple[Explanation, str]]) -> str:
    """The explanations to take out of `explained.toml`."""
    return "\n".join(f"explained.toml, {each.file}: {reason}: {each.line}" for each, reason in found)


def _line(each: Row, width: int) -> str:
    figures = f"{each.mutants:9}{each.killed:8}{each.timeouts:9}{each.survived:10}{each.explained:11}"
    return f"{each.name:{width}}{figures}{each.score:8.1%}"


def _diff(mutant: Mutant, source: str) -> str:
    number, before, after = mutant.lines(source)
    lines = [*(f"- {line}" for line in before.splitlines()), *(f"+ {line}" for line in after.splitlines())]
    return "\n".join([f"{mutant.file}:{number} {mutant.function or ''}".rstrip(), *lines])
