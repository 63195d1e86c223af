"""Text from elsewhere (a model, a file, an endpoint) made fit for a terminal: nothing in it can steer the screen.

Pure.
"""

from unicodedata import category

_KEPT = frozenset("\n\t\u200c\u200d")
"""Line ends, tabs, and the two joiners that scripts and emojis need."""

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of control and format characters (bidi ones among them), surrogates, and line separators."""


def plain(text: str) -> str:
    """The text with each control, bidi or format character written as its escape; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if _is_safe(character) else _escaped(character) for character in text)


def one_line(text: str, limit: int = 200) -> str:
    """The same on one line: runs of white space are one space, and what is longer than `limit` ends in `...`."""
    words = plain(" ".join(text.split()))
    return words if len(words) <= limit else words[: limit - 3] + "..."


def _is_safe(character: str) -> bool:
    return character in _KEPT or category(character) not in _UNSAFE


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
