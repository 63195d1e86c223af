"""Text for people: from elsewhere made fit for a terminal, and counts and amounts in words. Pure."""

from typing import Final
from unicodedata import category

LEAST_USD: Final = 0.0001
"""What four decimals can show."""

_KEPT = frozenset("\n\t\u200c\u200d")
"""Line ends, tabs, and the two joiners that scripts and emojis need."""

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of control and format characters (bidi ones among them), surrogates, and line separators."""


def plain(text: str) -> str:
    """The text with each control, bidi or format character written as its escape; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in _KEPT or category(each) not in _UNSAFE else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def one_line(text: str, limit: int = 200) -> str:
    """The same on one line: runs of white space are one space, and what is longer than `limit` ends in `...`."""
    words = plain(" ".join(text.split()))
    return words if len(words) <= limit else words[: limit - 3] + "..."


def count_of(number: int, noun: str, plural: str = "") -> str:
    """`1 line`, `2 lines`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def usd(amount: float) -> str:
    """An amount of money, with four decimals."""
    return f"less than {LEAST_USD} USD" if 0 < amount < LEAST_USD else f"{amount:.4f} USD"


def output_words(tokens: int, reasoning: int) -> str:
    """Output tokens, and how many of them were reasoning, where any were."""
    return f"{tokens:,} out" + (f" ({reasoning:,} reasoning)" if reasoning else "")
