"""Literals under secret names in text: code, settings, headers, logs, command lines. Pure, and in linear time.

Only single characters repeat possessively: Python before 3.11.5 is wrong about groups that do (gh-106052). A group
that is found in a lookahead, as in `(?=(?P<value>...))(?P=value)`, gives nothing back either.
"""

import re
from collections.abc import Iterator
from typing import Final

from nodes.execute_tools.secrets.hints import hinted, told
from nodes.execute_tools.secrets.keys import SECRET_WORDS, looks_secret, names_a_literal

_LONGEST_PREFIX: Final = 60
"""Characters of a name before its secret word."""

_LONG_VALUE: Final = 64
"""Characters of a value from which on no further names are looked for in it."""

_HINTED_WORDS: Final = hinted(((word, word) for word in SECRET_WORDS), ("pass", "key"))

_NAME_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

_REST = re.compile(r"[A-Za-z0-9_-]{0,60}+")
_LINK = re.compile(
    r"""
    (?P<close>\\{0,7}+["'`])? \]? [ \t]{0,8}+       # a quoted name ends
    (?P<sign>
        :[ \t]{0,8}+[A-Za-z][\w.|\[\]]{0,60}+[ \t]{0,8}+=(?!=)   # name: type = value
        | :=|=>|[?+:]?=(?![=>~])|:(?!:)
        | (?P<comma>,)                                # "name", "value"
        | (?P<element>>)                              # <name>value</name>
        | (?P<option>(?<=[ \t]))                      # --name value
    )
    [ \t]{0,8}+
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(
    r"""(?:[bBrRuUfF]{1,2}(?=["'`\\]))?\\{0,7}+(?P<quote>["'`])"""
    r"""(?P<value>(?:(?!(?P=quote))[^\s\\\u2e80-\U0010ffff]|\\[^\s"'`nrt\\]){8,4096})(?=\\{0,7}(?P=quote))"""
)
_BARE = re.compile(
    r"(?=(?P<value>(?:[A-Za-z0-9+/_.~!@#$%^*=?:-]|&(?![A-Za-z_][A-Za-z0-9_.-]{0,40}+=)){8,4096}))(?P=value)"
    r"(?![(\[{]|<(?!/))"
)
_ATTRIBUTES = re.compile(r"[A-Za-z_]\w*+(?:\.[A-Za-z_]\w*+)+")


def has_secret_word(folded: str) -> bool:
    """Whether a lower-case text holds a word that a secret's name is made of."""
    return next(told(_HINTED_WORDS, folded), None) is not None


def fold(text: str) -> str:
    """The text in lower case, character by character, so that positions stay as they are."""
    folded = text.lower()
    if len(folded) == len(text):
        return folded
    return re.sub(r"[A-Z]+", lambda found: found[0].lower(), text)


def assignment_spans(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """Where the literals under secret names stand. `folded` is the same text in lower case."""
    for word in told(_HINTED_WORDS, folded):
        at = folded.find(word)
        while at >= 0:
            end, span = _assigned(text, at, at + len(word))
            if span is not None:
                yield span
            at = folded.find(word, max(end, at + 1))


def _assigned(text: str, at: int, end: int) -> tuple[int, tuple[int, int] | None]:
    """Where to go on after the name with the word at `at`, and where the secret literal stands that is assigned to it.

    That is after the name, and after what was assigned where it is long: so each sign is looked at a few times only.
    """
    rest = _REST.match(text, end)
    end = rest.end() if rest else end
    link = _LINK.match(text, end)
    if link is None:
        return end, None
    start = _name_start(text, at)
    if not names_a_literal(text[start:end]):
        return end, None
    found = _QUOTED.match(text, link.end())
    if found is None and not link["comma"]:
        found = _BARE.match(text, link.end())
    if found is None or not _is_link(text, start, link, found):
        return end, None
    span = found.span("value")
    go_on = span[1] if span[1] - span[0] > _LONG_VALUE else end
    return go_on, span if looks_secret(found["value"]) else None


def _name_start(text: str, at: int) -> int:
    start = at
    while start > 0 and at - start < _LONGEST_PREFIX and text[start - 1] in _NAME_CHARACTERS:
        start -= 1
    escaped = start > 0 and text[start - 1] == "\\" and text[start] in "nrt" and start < at
    return start + 1 if escaped else start


def _is_link(text: str, start: int, link: re.Match[str], found: re.Match[str]) -> bool:
    """Whether what stands between the name and the value makes an assignment of them."""
    if link["comma"] is not None:
        return link["close"] is not None
    if link["element"] is not None:
        return text[start - 1 : start] == "<" and text[found.end() : found.end() + 2] == "</"
    if link["option"] is not None:
        return text[start : start + 2] == "--"
    return found.re is _QUOTED or not _ATTRIBUTES.fullmatch(found["value"])
