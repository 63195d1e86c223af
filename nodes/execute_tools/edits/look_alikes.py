r"""Characters that are invisible or look like others, which a model copies as plain ones. Pure.

They are shown to the model as escapes (`\u00a0`), which it can write in their place.
"""

import re
from collections.abc import Collection
from typing import Final
from unicodedata import combining, normalize

from mendgraph.nodes.workspace.files.text_files import to_unix

TYPOGRAPHY: Final = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    }
)
"""Quotes, dashes and spaces that a model writes in place of plain ones, or the other way round. Source: codex."""
_INVISIBLE: Final = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")


def similar_lines(text: str, old: str) -> tuple[int, int] | None:
    """Return the first and the last line, counted from 1, that hold `old` except for such characters."""
    plain_text = _plain(to_unix(text))
    plain_old = _plain(to_unix(old))
    if not plain_old.strip() or plain_old not in plain_text:
        return None

    first = plain_text.count("\n", 0, plain_text.index(plain_old)) + 1
    return first, first + plain_old.count("\n")


def _plain(text: str) -> str:
    return normalize("NFC", _INVISIBLE.sub("", text.translate(TYPOGRAPHY)))


def escaped(text: str) -> str:
    r"""Return the text with such characters as `\u` and four hexadecimal digits."""
    characters: list[str] = []
    for character in text:
        if "\x7f" < character <= "\uffff" and (combining(character) or _plain(character) != character):
            characters.append(f"\\u{ord(character):04x}")
        else:
            characters.append(character)

    return "".join(characters)


def escapes_in(text: str) -> frozenset[str]:
    """Return the escapes in a text that stand for characters beyond ASCII."""
    codes = {escape[0]: int(escape[1], 16) for escape in _ESCAPE.finditer(text)}
    return frozenset(escape for escape, code in codes.items() if code > 127 and not 0xD800 <= code <= 0xDFFF)


def unescaped(text: str, escapes: Collection[str]) -> str:
    """Return the text with characters in place of these escapes."""
    for escape in escapes:
        text = text.replace(escape, chr(int(escape.removeprefix("\\u"), 16)))

    return text
