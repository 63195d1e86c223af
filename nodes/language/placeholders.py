"""Words of a prompt that come back as if they were meant: placeholders for texts, and whole sentences.

A small model copies what it was shown. A text that only stands for one must reach no file. Source: 53 of 551
logged replies of a 1.5B model.

Nothing here is certain without its place: ask about a text that is to be written.
"""

import re
from collections.abc import Sequence
from typing import Final

SHORTEST_ECHO: Final = 16
"""Characters of a text that repeats a sentence of ours; a shorter one ("2") may stand in it by chance."""

_LONGEST = 200
"""Characters of a text that may be a placeholder."""

_KIND = r"(?:a|actual|complete|entire|exact|file|full|modified|new|old|original|replacement|the|updated|whole|your)"
_THING = r"(?:code|contents?|file|function|implementation|lines?|string|text|value)"
_PHRASE = re.compile(
    rf"(?:{_KIND} )*{_THING} (?:goes )?here"
    rf"|(?:the )?(?:whole|full|entire|complete) (?:new |updated |modified )?(?:file )?{_THING}(?: of the file)?"
)
_TAG = re.compile(
    rf"<(?:(?:{_KIND}[ _-])+{_THING}"
    r"|actions?|answer|arguments?|args|contents?|file|filename|lines|pattern|query|tool|value)>"
)
"""Without the names that are elements of HTML or SVG as well, such as `<text>` and `<code>`."""
_CAPITALS = frozenset({"CODE", "CONTENT", "NEW CODE", "NEW CONTENT", "NEW TEXT", "OLD TEXT", "TEXT"})
_ELLIPSIS = re.compile(r"\.{3,}|…+")


def is_placeholder_content(text: str) -> bool:
    """Whether a text is, as a whole, a placeholder for one: `whole new file`, `<action>`, `...`, `TEXT`.

    A text of which it is only a part, such as code with `...` in it, is none.
    """
    if len(text.strip()) > _LONGEST:
        return False
    said = _plain(text)
    words = said.strip("#/*-!<>[](){}\"'`:. …").lower()
    is_word = said.replace("_", " ") in _CAPITALS or _TAG.fullmatch(said.lower()) is not None
    return is_word or _ELLIPSIS.fullmatch(said) is not None or _PHRASE.fullmatch(words) is not None


def echoes(text: str, told: Sequence[str]) -> bool:
    """Whether one of these sentences stands in the text, or the text in one of them, white space apart.

    Only where the shorter of both has at least 16 characters.
    """
    said = _plain(text)
    return any(_stands_in(said, _plain(sentence)) for sentence in told)


def _stands_in(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    return len(shorter) >= SHORTEST_ECHO and shorter in longer


def _plain(text: str) -> str:
    return " ".join(text.split())
