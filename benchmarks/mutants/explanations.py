"""Survivors that are no gap in the tests, and why: `explained.toml`. Pure but for the reading of that file."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.mutants.mutation import Mutant

FILE: Final = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True)
class Explanation:
    """Why a mutant survives: it does the same as the original, or what differs is nobody's promise."""

    file: str
    line: str
    """The lines that are mutated, without indentation."""
    becomes: str
    """What they are mutated to; empty for all mutants of these lines."""
    why: str

    def fits(self, mutant: Mutant, source: str) -> bool:
        """Whether it is this mutant that is explained."""
        if mutant.file != self.file:
            return False
        _, before, after = mutant.lines(source)
        return before == self.line and self.becomes in {"", after}


def read_explanations(file: Path = FILE) -> list[Explanation]:
    """What the file explains; a list of tables `[[survivor]]` with `file`, `line`, `becomes` (optional) and `why`.

    Raises:
        ValueError: the file is no TOML, or a table lacks a key or has another one; the message says which.
    """
    found = tomllib.loads(file.read_text(encoding="utf-8")).get("survivor", [])
    try:
        explanations = [Explanation(**{"becomes": "", **table}) for table in found]
    except TypeError as error:
        raise ValueError(f"{file.name}: {error}") from None
    silent = next((each for each in explanations if not all((each.file, each.line, each.why))), None)
    if silent:
        raise ValueError(f"{file.name}: an explanation has a file, a line and a reason, unlike {silent}")
    return explanations


def explained(
    explanations: Sequence[Explanation], survivors: Iterable[Mutant], sources: Mapping[str, str]
) -> dict[Mutant, Explanation]:
    """The survivors that are explained, each with its explanation."""
    return {
        mutant: each
        for mutant in survivors
        for each in explanations
        if each.file == mutant.file and each.fits(mutant, sources[mutant.file])
    }


def stale(
    explanations: Sequence[Explanation],
    sources: Mapping[str, str],
    judged: Mapping[str, Sequence[Mutant]],
    survivors: Sequence[Mutant],
) -> list[tuple[Explanation, str]]:
    """Explanations of what is no longer so, each with the reason.

    Args:
        explanations: what `explained.toml` says.
        sources: the text of each file that was looked at; others are not spoken of.
        judged: by file, its mutants that the tests were run against.
        survivors: those of them that no test noticed.
    """
    found: list[tuple[Explanation, str]] = []
    for each in explanations:
        source = sources.get(each.file)
        if source is None:
            continue
        lines = [line.strip() for line in source.splitlines()]
        if not _holds(lines, each.line.splitlines()):
            found.append((each, "its line is gone"))
            continue
        fitting = [mutant for mutant in judged.get(each.file, ()) if each.fits(mutant, source)]
        if fitting and not any(mutant in survivors for mutant in fitting):
            found.append((each, "it is killed now"))
    return found


def _holds(lines: Sequence[str], part: Sequence[str]) -> bool:
    return any(list(lines[start : start + len(part)]) == list(part) for start in range(len(lines)))
