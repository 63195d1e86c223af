r"""Characters that are invisible or look like others: where a text stands but for them, and how a model writes them.

A model copies such characters as plain ones. They are named and shown as escapes (`\u00a0`), which it can write in
their place. Pure.
"""

import re
from collections.abc import Collection
from itertools import pairwise
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


def look_alike(text: str, old: str, source: str) -> LookAlike | None:
    """The first place of `text` that `old` fits but for such characters; `source` is the argument that holds `old`."""
    plain_text = _plain(to_unix(text))
    plain_old = _plain(to_unix(old))
    if not plain_old.strip() or plain_old not in plain_text:
        return None

    at = plain_text.index(plain_old)
    first = plain_text.count("\n", 0, at)
    last = first + plain_old.count("\n")
    column = at - plain_text.rfind("\n", 0, at) - 1
    clusters_in_text = _clusters("\n".join(to_unix(text).split("\n")[first : last + 1]))
    clusters_in_old = _clusters(to_unix(old))
    start = _cluster_at(clusters_in_text, column)

    differences: list[str] = []
    line = first + 1
    pairs = zip(clusters_in_text[start:], clusters_in_old[1:], strict=False)

    for theirs, ours in [("", clusters_in_old[0]), *pairs]:
        if theirs.startswith("\n"):
            line += 1
        if theirs != ours:
            shared = len(commonprefix([theirs, ours]))
            differences.append(f"line {line} has {_names(theirs[shared:])} where {source} has {_names(ours[shared:])}")

    if not differences:
        return None

    distinct = list(dict.fromkeys(differences))
    if len(distinct) > _MOST_DIFFERENCES:
        distinct[_MOST_DIFFERENCES:] = ["and more"]

    return LookAlike(first + 1, last + 1, ", ".join(distinct))


def _cluster_at(clusters: list[str], column: int) -> int:
    """The index of the cluster with the plain character at this column."""
    end = 0
    for index, cluster in enumerate(clusters):
        end += len(_plain(cluster))
        if end > column:
            return index

    return len(clusters)


def escaped(text: str) -> str:
    r"""The text with such characters as `\u` and four hexadecimal digits."""
    return "".join(map(_escaped_cluster, _clusters(text)))


def escapes_in(text: str) -> frozenset[str]:
    """The escapes in a text that stand for characters beyond ASCII."""
    codes = {escape[0]: int(escape[1], 16) for escape in _ESCAPE.finditer(text)}
    return frozenset(escape for escape, code in codes.items() if code > 127 and not 0xD800 <= code <= 0xDFFF)


def unescaped(text: str, escapes: Collection[str]) -> str:
    """The text with characters in place of these escapes."""

    def character(escape: re.Match[str]) -> str:
        if escape[0] in escapes:
            return chr(int(escape[1], 16))
        return escape[0]

    return _ESCAPE.sub(character, text)


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
    if normalize("NFC", cluster) != cluster:
        return "".join(map(_escape, cluster))

    return "".join(_escape(character) if _plain(character) != character else character for character in cluster)


def _escape(character: str) -> str:
    if character.isascii() or character > "\uffff":
        return character
    return f"\\u{ord(character):04x}"


def _names(text: str) -> str:
    if not text:
        return "nothing"
    if text == " ":
        return "a space"

    names = list(map(_name, text[:_MOST_NAMES]))
    if len(text) > _MOST_NAMES:
        names.append("more")

    return " + ".join(names)


def _name(character: str) -> str:
    if character.isascii():
        return repr(character)
    return f"U+{ord(character):04X} {name(character, '')}".rstrip()
