"""Which names come closest to one that does not exist."""

from collections.abc import Iterable

from rapidfuzz.distance import DamerauLevenshtein

SUGGESTIONS = 3
"""How many names are offered. Source: spec 2 section 5."""

LEAST_SIMILARITY = 0.5
"""Below this share of letters in common, a name is another name and not a misspelling."""


def closest_names(wanted: str, names: Iterable[str], limit: int = SUGGESTIONS) -> tuple[str, ...]:
    """Up to `limit` of `names`, best first, or none where nothing is close.

    Names that begin with the wanted one come first, then those that contain it, then those that are few edits away;
    case never counts. Source: spec 2 section 5.
    """
    folded = wanted.casefold()
    ranked = sorted((*_rank(folded, name.casefold()), name) for name in set(names) if folded)
    return tuple(name for tier, _, name in ranked if tier < _FAR)[:limit]


_PREFIX, _SUBSTRING, _EDITS, _FAR = range(4)


def _rank(wanted: str, name: str) -> tuple[int, float]:
    distance = 1.0 - DamerauLevenshtein.normalized_similarity(wanted, name)
    if name.startswith(wanted):
        return _PREFIX, distance
    if wanted in name:
        return _SUBSTRING, distance
    return (_EDITS if distance <= 1.0 - LEAST_SIMILARITY else _FAR), distance
