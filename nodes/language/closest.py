"""Which names come closest to one that does not exist: tools, arguments, files."""

import re
from collections.abc import Iterable

from rapidfuzz import fuzz

SUGGESTIONS = 3
"""How many names are offered. Source: spec 2 section 5."""

LEAST_LIKENESS = 50.0
"""Below this (of 100) a name is another name and not a misspelling."""

_LONGEST_NAME = 100
_SHORTEST = 3
"""A shorter name has too few letters to be half of another."""

_SAME, _PREFIX, _SUBSTRING, _EDITS, _UNLIKE = range(5)


def closest_names(wanted: str, names: Iterable[str], limit: int = SUGGESTIONS) -> tuple[str, ...]:
    """Up to `limit` of `names`, best first, or none where nothing is close.

    First come names that begin as the wanted one does, then those of which one is inside the other, then those that are
    few edits away. Case, `_`, `-` and spaces never count. Source of the order: spec 2 section 5.
    """
    folded = _folded(wanted[:_LONGEST_NAME])
    ranked = sorted((*_rank(folded, _folded(name)), name != wanted, name) for name in set(names) if wanted)
    return tuple(name for tier, _, _, name in ranked if tier < _UNLIKE)[:limit]


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold() or name


def _rank(wanted: str, name: str) -> tuple[int, float]:
    """Sorts the likest name first; the tier is `_UNLIKE` for a name that is not worth naming."""
    likeness = fuzz.ratio(wanted, name)
    if name == wanted:
        return _SAME, -likeness
    if name and (name.startswith(wanted) or wanted.startswith(name)):
        return _PREFIX, -likeness
    if wanted in name or (len(name) >= _SHORTEST and name in wanted):
        return _SUBSTRING, -likeness
    misspelt = len(name) >= _SHORTEST and likeness >= LEAST_LIKENESS
    return (_EDITS if misspelt else _UNLIKE), -likeness
