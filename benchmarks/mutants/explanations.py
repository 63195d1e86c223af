"""The explanations of survivors that do not show a gap in the tests: `explained.toml`."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.mutants.mutation import Mutant

FILE: Final = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True)
class Explanation:
    """The reason why a mutant survives: it is equivalent to the original, or it changes no promised behaviour."""

    file: str
    line: str
    """The mutated lines, without indentation."""
    becomes: str
    """The lines of the mutant; empty for all mutants of these lines."""
    why: str

    def matches(self, mutant: Mutant, source: str) -> bool:
        """Whether this explanation is for a mutant."""
        if mutant.file != self.file:
            return False

        _, before, after = mutant.lines(source)
        return before == self.line and self.becomes in {"", after}


def read_explanations(file: Path = FILE) -> list[Explanation]:
    """Read the explanations: tables `[[survivor]]` with `file`, `line`, `becomes` (optional) and `why`.

    Raises:
        ValueError: The file is not TOML, or a table has a missing or unknown key. The message names it.
    """
    tables = tomllib.loads(file.read_text(encoding="utf-8")).get("survivor", [])
    try:
        explanations = [Explanation(**{"becomes": "", **table}) for table in tables]
    except TypeError as error:
        raise ValueError(f"{file.name}: {error}") from None

    for explanation in explanations:
        if not (explanation.file and explanation.line and explanation.why):
            raise ValueError(f"{file.name}: an explanation needs a file, a line and a reason, unlike {explanation}")
    return explanations


def match_explanations(
    explanations: Sequence[Explanation], survivors: Iterable[Mutant], sources: Mapping[str, str]
) -> dict[Mutant, Explanation]:
    """Return the survivors that have an explanation."""
    matches = {}
    for mutant in survivors:
        for explanation in explanations:
            if explanation.matches(mutant, sources[mutant.file]):
                matches[mutant] = explanation
    return matches


def stale(
    explanations: Sequence[Explanation],
    sources: Mapping[str, str],
    mutants: Mapping[str, Sequence[Mutant]],
    survivors: Sequence[Mutant],
) -> list[tuple[Explanation, str]]:
    """Return the explanations that no longer apply, with the reasons.

    Args:
        explanations: All explanations.
        sources: The text of each tested file. Explanations of other files are skipped.
        mutants: The tested mutants of each file.
        survivors: The tested mutants that no test noticed.
    """
    problems: list[tuple[Explanation, str]] = []
    for explanation in explanations:
        source = sources.get(explanation.file)
        if source is None:
            continue

        lines = [line.strip() for line in source.splitlines()]
        if not _contains(lines, explanation.line.splitlines()):
            problems.append((explanation, "its line is missing"))
            continue

        matches = [mutant for mutant in mutants.get(explanation.file, ()) if explanation.matches(mutant, source)]
        if matches and not any(mutant in survivors for mutant in matches):
            problems.append((explanation, "its mutant is killed"))
    return problems


def _contains(lines: Sequence[str], part: Sequence[str]) -> bool:
    """Whether these lines occur one after the other."""
    slices = (list(lines[start : start + len(part)]) for start in range(len(lines)))
    return list(part) in slices
