"""Texts as PostgreSQL can hold them: without NUL and half characters, and back again to the letter."""

import re
from typing import Final

_MARK: Final = "\ue000"
"""A character for private use, which is in next to no text; where it is, it is written as `_MARK` and "e"."""

MARK_BYTES: Final = _MARK.encode()
"""In the bytes of whatever has to be read back."""

_REFUSED: Final = re.compile("[\0\ud800-\udfff\ue000]")
_HELD: Final = re.compile(f"{_MARK}(0|e|d[89a-f][0-9a-f]{{2}})")


def held_text(text: str) -> str:
    """The text in the form in which it is stored."""
    return _REFUSED.sub(_told, text)


def plain_text(held: str) -> str:
    """The text from its stored form."""
    return _HELD.sub(_meant, held)


def _told(found: re.Match[str]) -> str:
    character = found[0]
    if character == _MARK:
        return f"{_MARK}e"
    return f"{_MARK}0" if character == "\0" else f"{_MARK}{ord(character):x}"


def _meant(found: re.Match[str]) -> str:
    code = found[1]
    if code == "e":
        return _MARK
    return "\0" if code == "0" else chr(int(code, 16))
