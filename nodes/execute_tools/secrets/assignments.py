"""Literals under secret names in text: code, settings, headers, logs. Pure, and in linear time.

Only single characters repeat possessively: Python before 3.11.5 is wrong about groups that do (gh-106052). A group
that is found in a lookahead, as in `(?=(?P<value>...))(?P=value)`, gives nothing back either.
"""

import re
from collections.abc import Iterator
from typing import Final

from mendgraph.nodes.execute_tools.secrets.keys import (
    SECRET_WORDS,
    hinted,
    is_secret_key,
    looks_secret_under,
    meanings_in,
    names_a_literal,
)

_LONGEST_PREFIX: Final = 60
"""Characters of a name before its secret word."""

_LONG_VALUE: Final = 64
"""Characters of a value from which on no further names are looked for in it."""

_BEFORE: Final = 96
"""Characters before a name in which a field is looked for that holds it."""
_VALUE_BEFORE: Final = 320
"""Characters before a name in which the field with its value is looked for."""

_HINTED_WORDS: Final = hinted(((word, word) for word in SECRET_WORDS), ("key",))

_NAME_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

_REST = re.compile(r"[A-Za-z0-9_-]{0,60}+")
_LINK = re.compile(
    r"""
    (?P<close>\\{0,7}+["'`])? (?:\[[0-9]{0,6}+)? \]? [ \t]{0,8}+       # a quoted name ends, or name[25]
    (?P<sign>
        :[ \t]{0,8}+[A-Za-z][\w.|\[\]]{0,60}+[ \t]{0,8}+=(?!=)   # name: type = value
        | :{1,3}=|=>|[?+:.]?=(?![=>~])|\?\?=|:(?!:)
        | (?P<element>>)                              # <name>value</name>
        | (?P<text>                                   # only before a value in quotes:
            (?P<comma>,(?:[ \t]{0,4}+(?:default|value)=)?)   # "name", "value"
            | [=!]==?                                 # name == "value"
            | (?:string|String|str)[ \t]{1,4}+=(?!=)  # name type = "value"
            | \(                                      # name("value")
          )
        | (?P<option>(?<=[ \t]))                      # --name value, or name "value"
    )
    [ \t]{0,8}+(?P<line>(?:[|>][+-]?|[(\\])?[ \t]{0,4}+\r?\n[ \t]{1,40}+)?   # on the next line
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(
    r"""(?:[bBrRuUfF@]{1,2}(?=["'`\\]))?\\{0,7}+(?P<quote>["'`])"""
    r"""(?P<value>(?:(?!(?P=quote))[^\s\\\u2e80-\U0010ffff]|\\[^\s"'`nrt\\]){8,4096})(?=\\{0,7}(?P=quote))"""
)
_BARE = re.compile(
    r"(?=(?P<value>(?:[A-Za-z0-9+/_.~!@#$%^*=?:-]|&(?![A-Za-z_][A-Za-z0-9_.-]{0,40}+=)){8,4096}))(?P=value)"
    r"(?![(\[{]|<(?!/))"
)
_QUERY_SIGNS = frozenset("?&")
_IN_QUERY = re.compile(r"(?P<value>[A-Za-z0-9+/_.~!@$%^*=:-]{8,4096}+)(?![(\[{<])")
_SCHEME = re.compile(r"(?:[Bb]earer|[Bb]asic|[Tt]oken|[Dd]igest)(?:[ \t]{1,4}+|[ \t]{0,4}+\r?\n[ \t]{1,8}+)")
_LINE_END = re.compile(r"[ \t]{0,8}+(?:\r?\n|\Z|</)")
_COMPARED = re.compile(r"""(?P<quote>["'`])(?P<value>[^\s"'`\\]{8,200}+)(?P=quote)[ \t]{0,4}+[=!]==?[ \t]{0,4}+\Z""")
_CLOSED = re.compile(r"\s{0,40}+</")
_ATTRIBUTES = re.compile(
    r"&?[A-Za-z_]\w*+(?:[!?]?\.#?[A-Za-z_]\w*+)+(?:[!?]|\+\+|--)?|[\w.]{1,40}+\?[\w.]{1,40}+:[\w.]{1,40}+"
)

_FIELD_NAME = r"(?:[Nn]ame|NAME|[Kk]ey|KEY|[Vv]ariable|[Hh]eader|[Ff]ield|[Oo]ption)"
_FIELD_VALUE = r"(?:[Vv]al(?:ue)?|VALUE|[A-Z][a-z]{2,12}Value)"
_IS = r"""\\{0,7}+["']?[ \t]{0,8}+[:=][ \t]{0,8}+"""
_NAME_FIELD = re.compile(rf"""{_FIELD_NAME}{_IS}\\{{0,7}}+["']?[\w.:/-]{{0,60}}\Z""")
_NEXT_FIELD = re.compile(rf"""\\{{0,7}}+["']?\s{{0,48}}+[,;]?\s{{0,48}}+\\{{0,7}}+["']?(?<![\w-]){_FIELD_VALUE}{_IS}""")
_FIELD_BEFORE = re.compile(
    rf"""(?<![\w-]){_FIELD_VALUE}{_IS}(?P<field>\S{{8,200}}+)\s{{0,48}}+\\{{0,7}}+["']?{_FIELD_NAME}{_IS}"""
    rf"""\\{{0,7}}+["']?[\w.:/-]{{0,60}}\Z"""
)


def has_secret_word(folded: str) -> bool:
    """Whether a lower-case text holds a word that a secret's name is made of."""
    return next(meanings_in(_HINTED_WORDS, folded), None) is not None


def fold(text: str) -> str:
    """The text in lower case, character by character, so that positions stay as they are."""
    folded = text.lower()
    if len(folded) == len(text):
        return folded
    return re.sub(r"[A-Z]+", lambda found: found[0].lower(), text)


def assignment_spans(text: str, folded: str) -> Iterator[tuple[int, int]]:
    """Where the literals under secret names stand. `folded` is the same text in lower case."""
    for word in meanings_in(_HINTED_WORDS, folded):
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
    link, start = _LINK.match(text, end), _name_start(text, at)
    name = text[start:end]
    if not names_a_literal(name):
        return end, None
    found = _value(text, start, link) if link else None
    span = found.span("value") if found else None
    if span is None or link is None or link["comma"]:
        span = _field(text, start, end) or _compared(text, start) or span
    if span is None:
        return end, None
    go_on = span[1] if span[1] - span[0] > _LONG_VALUE else end
    return max(go_on, end), span if looks_secret_under(name, text[span[0] : span[1]]) else None


def _value(text: str, start: int, link: re.Match[str]) -> re.Match[str] | None:
    """The literal behind a link, None where there is none or the link is none of an assignment."""
    if link["comma"] and link["line"]:
        return None
    scheme = _SCHEME.match(text, link.end())
    at = scheme.end() if scheme else link.end()
    found = _QUOTED.match(text, at)
    if found is None and link["text"] is None:
        found = (_IN_QUERY if text[start - 1 : start] in _QUERY_SIGNS else _BARE).match(text, at)
        if found and link["line"] and not (_LINE_END.match(text, found.end()) and _is_alone(found["value"])):
            return None
    return found if found and _is_link(text, start, link, found) else None


def _is_alone(value: str) -> bool:
    """Whether a line below a name is its value: no `name: value` or item of its own."""
    return value[-1] != ":" and value[0] not in "-#*"


def _compared(text: str, start: int) -> tuple[int, int] | None:
    """Where the literal stands that is compared with the name, as in `"..." == password`."""
    near = text[max(0, start - 3) : start].rstrip(" ")
    found = _COMPARED.search(text, max(0, start - _VALUE_BEFORE), start) if near.endswith("=") else None
    return found.span("value") if found else None


def _field(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Where the value stands in the other field of an object, one field of which holds the name."""
    if not _NAME_FIELD.search(text, max(0, start - _BEFORE), start):
        return None
    if follows := _NEXT_FIELD.match(text, end):
        found = _QUOTED.match(text, follows.end()) or _BARE.match(text, follows.end())
        return found.span("value") if found else None
    before = _FIELD_BEFORE.search(text, max(0, start - _VALUE_BEFORE), start)
    if before is None:
        return None
    found = _QUOTED.match(text, before.start("field")) or _BARE.match(text, before.start("field"), before.end("field"))
    return found.span("value") if found else None


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
        return text[start - 1 : start] == "<" and _CLOSED.match(text, found.end()) is not None
    if link["option"] is not None:
        told = found.re is _QUOTED and found["quote"] != "`" and link["close"] is None
        return text[start : start + 2] == "--" or (told and is_secret_key(text[start : link.start()]))
    return found.re is _QUOTED or not _ATTRIBUTES.fullmatch(found["value"])
