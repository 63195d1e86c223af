"""Which of many words a text holds, found quickly where it holds none: most texts do. Pure."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias, TypeVar

Meaning = TypeVar("Meaning")
Hints: TypeAlias = tuple[tuple[str, tuple[tuple[str, Meaning], ...]], ...]
"""For each hint the words that hold it, each with what it means."""


def hinted(words: Iterable[tuple[str, Meaning]], hints: Iterable[str]) -> Hints[Meaning]:
    """The words, each under the first hint that it holds, or under itself where it holds none of them."""
    grouped: dict[str, list[tuple[str, Meaning]]] = {}
    known = tuple(hints)
    for word, meaning in words:
        hint = next((hint for hint in known if hint in word), word)
        grouped.setdefault(hint, []).append((word, meaning))
    return tuple((hint, tuple(group)) for hint, group in grouped.items())


def told(hints: Hints[Meaning], text: str) -> Iterator[Meaning]:
    """What the words mean that the text holds; one that several of them mean comes several times."""
    for group in [group for hint, group in hints if hint in text]:  # a list comprehension: no frame for each hint
        for word, meaning in group:
            if word in text:
                yield meaning
