r"""Characters that are invisible or look like others: where a text stands but for them, and how a model writes them.

A model copies such characters as plain ones. They are named and shown as escapes (`\u00a0`), which it can write in
their place. Pure.
"""

import re
from collections.abc import Collection
from itertools import accumulate, pairwise
from posixpath import commonprefix
from typing import Final, NamedTuple
from unicodedata import combining, name, normalize

from mendgraph.nodes.execute_tools.files.text_files import to_unix

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
_MOST_DIFFERENCES: Final = 5
_MOST_NAMES: Final = 3


class LookAlike(NamedTuple):
    """Lines of a file, `first` to `last` counted from 1, that hold a text but for the `differences`, in words."""

    first: int
    last: int
    differences: str


def look_alike(text: str, wanted: str, source: str) -> LookAlike | None:
    """The first place of `text` that `wanted` fits but for such characters; `source` is what holds `wanted`."""
    plain_text = _plain(to_unix(text))
    plain_wanted = _plain(to_unix(wanted))
    at = plain_text.find(plain_wanted) if plain_wanted.strip() else -1

    if at < 0:
        return None

    first = plain_text.count("\n", 0, at)
    last = first + plain_wanted.count("\n")
    clusters_there = _clusters("\n".join(to_unix(text).split("\n")[first : last + 1]))
    clusters_wanted = _clusters(to_unix(wanted))
    column = at - plain_text.rfind("\n", 0, at) - 1
    ends = accumulate(len(_plain(cluster)) for cluster in clusters_there)
    start = next((index for index, end in enumerate(ends) if end > column), len(clusters_there))

    differences: list[str] = []
    line = first + 1

    for theirs, ours in [("", clusters_wanted[0]), *zip(clusters_there[start:], clusters_wanted[1:], strict=False)]:
        line += theirs.startswith("\n")
        shared = len(commonprefix([theirs, ours]))
        if theirs != ours:
            differences.append(f"line {line} has {_names(theirs[shared:])} where {source} has {_names(ours[shared:])}")

    if not differences:
        return None

    listed = list(dict.fromkeys(differences))
    more = ["and more"] if len(listed) > _MOST_DIFFERENCES else []
    return LookAlike(first + 1, last + 1, ", ".join(listed[:_MOST_DIFFERENCES] + more))


def escaped(text: str) -> str:
    r"""The text with such characters as `\u` and four hexadecimal digits."""
    return "".join(map(_escaped_cluster, _clusters(text)))


def escapes_in(text: str) -> frozenset[str]:
    """The escapes in a text that stand for characters beyond ASCII."""
    codes = {escape[0]: int(escape[1], 16) for escape in _ESCAPE.finditer(text)}
    return frozenset(escape for escape, code in codes.items() if code > 127 and not 0xD800 <= code <= 0xDFFF)


def unescaped(text: str, escapes: Collection[str]) -> str:
    """The text with characters in place of these escapes."""
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[0] in escapes else escape[0], text)


def _plain(text: str) -> str:
    return normalize("NFC", _INVISIBLE.sub("", text.translate(TYPOGRAPHY)))


def _clusters(text: str) -> list[str]:
    """The characters of a text, each with the marks and invisible ones behind it; before the first one, "" or those."""
    starts = [at for at, character in enumerate(text) if not _continues(character)]
    return [text[start:end] for start, end in pairwise([0, *starts, len(text)])]


def _continues(character: str) -> bool:
    jamo = "\u1160" <= character <= "\u11ff"
    return jamo or combining(character) > 0 or _INVISIBLE.match(character) is not None


def _escaped_cluster(cluster: str) -> str:
    composed = normalize("NFC", cluster) == cluster
    return "".join(
        _escape(character) if _plain(character) != character or not composed else character for character in cluster
    )


def _escape(character: str) -> str:
    if character.isascii() or character > "\uffff":
        return character
    return f"\\u{ord(character):04x}"


def _names(text: str) -> str:
    plain = {"": "nothing", " ": "a space"}
    more = ["more"] if len(text) > _MOST_NAMES else []
    return plain.get(text) or " + ".join([*map(_name, text[:_MOST_NAMES]), *more])


def _name(character: str) -> str:
    if character.isascii():
        return repr(character)
    return f"U+{ord(character):04X} {name(character, '')}".rstrip()
