"""Is a text that is to replace a file really the whole file?"""

import re
from collections.abc import Iterator

from nodes.execute_tools.tools.elisions import is_elision
from nodes.execute_tools.tools.text_files import count_lines

SMALLEST_SHARE = 0.3
"""A shorter text than this share of the old one is taken for an excerpt, once the old one is long enough to judge."""
JUDGED_LINES = 20

_COMMENT = re.compile(r"[ \t]*(?:#|//|/\*|--|<!--|;|%)(.*?)(?:\*/|-->)?[ \t]*", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)


def why_not_whole(old: str, new: str) -> str:
    """What gives `new` away as a part of `old`, as a clause ("it ..."); "" if it may be whole."""
    known = {line.strip() for line in old.splitlines()}
    for line in _elisions(new):
        if line not in known:
            return f"it says `{line}` in place of text"
    if count_lines(old) > JUDGED_LINES and len(new) < SMALLEST_SHARE * len(old):
        return f"it has {count_lines(new)} lines where the file has {count_lines(old)}"
    return ""


def lost_definitions(old: str, new: str) -> tuple[str, ...]:
    """Top-level Python functions and classes that `old` has and `new` lacks; neither has to parse."""
    kept = set(_DEFINITION.findall(new))
    return tuple(dict.fromkeys(name for name in _DEFINITION.findall(old) if name not in kept))


def _elisions(text: str) -> Iterator[str]:
    """Lines that are nothing but a comment, or three dots, standing for other text."""
    for line in text.splitlines():
        comment = _COMMENT.fullmatch(line)
        if line.strip() in {"...", "…"} or (comment and is_elision("# " + comment[1].strip())):
            yield line.strip()
