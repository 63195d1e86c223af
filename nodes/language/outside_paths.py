"""Paths that name a place outside of every workspace by their form alone."""

import re
from typing import Final

_ELSEWHERE: Final = re.compile(r"~(?:[\w.-]*/|\Z)|[A-Za-z]:[\\/]|\\\\|[A-Za-z][\w+.-]+:/")


def names_elsewhere(path: str) -> bool:
    r"""Whether a path is no relative one, though POSIX would take it for one: `~/a`, `C:\a`, `\\host\a`, `file:///a`.

    A file or folder that is there under such a name is the one that is named.
    """
    return _ELSEWHERE.match(path) is not None
