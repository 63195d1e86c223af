"""Paths as text: where a name points inside the workspace, and what it is called when spelling is ignored.

No disk is asked here. What a name means on the disk (links, mounts) is decided by the sandbox on the handle that it
opened, and it asks guard's rules again about that handle's real name.
"""

import posixpath
import re
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath
from unicodedata import normalize

from mendgraph.nodes.language.names import names_elsewhere

MAX_PATH_CHARS = 4096
"""Longer names cannot be opened. Source: Linux `PATH_MAX`."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_SEPARATOR = re.compile(r"[/\\]")
_TRAILING = " .\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u1680\u2028\u2029"
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that some file systems skip when they compare names. Source: Unicode's Default_Ignorable_Code_Point."""


class PathProblem(StrEnum):
    """Why a text cannot be a path at all; each value completes the sentence "the path ..."."""

    EMPTY = "is empty"
    TOO_LONG = f"is longer than {MAX_PATH_CHARS} characters"
    NUL = "contains a NUL character"
    SURROGATE = "contains a lone surrogate, which is not text"


def path_problem(path: str) -> PathProblem | None:
    """What makes this text unusable as a path, or None. Source: spec 2, section "Resolution Rules", for EMPTY."""
    if not path.strip():
        return PathProblem.EMPTY
    if len(path) > MAX_PATH_CHARS:
        return PathProblem.TOO_LONG
    if "\0" in path:
        return PathProblem.NUL
    return PathProblem.SURROGATE if _SURROGATE.search(path) else None


def workspace_relative(path: str, root: str) -> str | None:
    """Where the path points, seen from `root`: POSIX, without `.` and `..`; "." is the workspace itself.

    `path` is relative to `root`, or absolute; `root` is absolute, and the real name of the workspace. None for a path
    outside, for one that `path_problem` refuses, for one that `names_elsewhere`, such as `~/a`, and for every path when
    `root` is not absolute.
    """
    if path_problem(path) is not None or not root.startswith("/") or names_elsewhere(path):
        return None
    base = _absolute(root)
    target = _absolute(posixpath.join(base, path))
    if target == base:
        return "."
    prefix = base.rstrip("/") + "/"
    return target.removeprefix(prefix) if target.startswith(prefix) else None


def _absolute(path: str) -> str:
    # normpath keeps two leading slashes, which mean the same as one on every system that we run on.
    return "/" + posixpath.normpath(path).lstrip("/")


def folded(component: str) -> str:
    """One component as the most forgiving file system would compare it.

    Case, Unicode's compatible forms, invisible characters, and dots or spaces at the end make no difference.
    """
    if component.isascii():
        return component.lower().rstrip(_TRAILING)
    visible = _IGNORABLE.sub("", component)
    return normalize("NFKC", normalize("NFKC", visible).casefold()).rstrip(_TRAILING)


@lru_cache(maxsize=256)  # every rule asks for the same path in turn
def folded_parts(path: PurePath) -> tuple[str, ...]:
    """The path's components, `.` and `..` resolved as text, each folded.

    Leading `..` are dropped (see `climbs`), as are components of which nothing is visible.
    """
    return tuple(seen for part in _resolved_parts(path) if part != ".." and (seen := folded(part)))


def climbs(path: PurePath) -> bool:
    """Does this relative path leave its starting point?"""
    return _resolved_parts(path)[:1] == ("..",)


def _resolved_parts(path: PurePath) -> tuple[str, ...]:
    text = posixpath.normpath(_SEPARATOR.sub("/", str(path)))
    return tuple(part for part in text.split("/") if part not in {"", "."})


def shown(path: str, limit: int = 200) -> str:
    """The path for a message: one line, printable characters only, at most `limit` characters and an ellipsis."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "..."
