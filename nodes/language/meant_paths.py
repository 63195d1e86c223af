"""Which file of the workspace a path can mean that does not exist: absolute, a placeholder, or a near miss.

A small model that is shown `src/report.py` writes `/path/to/report.py`, `your_file.py`, `Report.py` or `src/report`.
A path is read as another one only where exactly one file can be meant. Whether a file may be used is not judged here:
paths that climb, and names that look as if they were denied, are left to guard as they are.
"""

import re
from collections.abc import Callable, Sequence
from posixpath import basename, splitext
from typing import Final, NamedTuple

from rapidfuzz import fuzz

from nodes.language.closest import closest_names

LEAST_LIKENESS: Final = 80.0
"""Of 100, between the names without their extensions: what is less alike is another file, not a misspelling."""
_LONGEST: Final = 300

_DENIED: Final = re.compile(
    r"(?:\A|/)(?:\.(?!/|\Z)|id_(?:rsa|dsa|ecdsa|ed25519)|secrets?\b|credentials?\b)|\.(?:env|pem|key|crt|p12|pfx)\b|~\Z",
    re.IGNORECASE,
)
_SYSTEM: Final = re.compile(
    r"/(?:bin|boot|dev|etc|lib|library|private|proc|root|sbin|sys|system|usr|var)(?:/|\Z)", re.IGNORECASE
)
_ABSOLUTE: Final = re.compile(r"(?:/|[A-Za-z]:/|~/)")
_NO_FOLDER: Final = re.compile(r"(?:.*/)?(?:path[/_]to|your[_-]\w+|<[^<>/]+>|\{[^{}/]+\}|\.\.\.)/", re.IGNORECASE)
_ANY_FILE: Final = re.compile(
    r"(?:<[^<>]*>|\{[^{}]*\}|\[(?:file|path)[^\[\]]*\]|(?:path/to/)?(?:the_|your_|my_)?(?:file|path|script|code|module)"
    r"(?:_?name|_?path|_here)?|FILE|PATH|NAME|FILENAME)(\.\w{1,5})?",
    re.IGNORECASE,
)
_PLAIN_WORD: Final = re.compile(
    r"(?:my_)?(?:file|path|script|code|module|name)(?:_?name|_?path)?(?:\.\w{1,5})?", re.IGNORECASE
)


class Candidates(NamedTuple):
    """The files that a path may mean, in the order of the workspace; which of them, it does not say."""

    paths: tuple[str, ...]


def meant_path(named: str, files: Sequence[str], shown: Sequence[str], for_new: bool) -> str | Candidates | None:
    """The one of `files` that `named` means, several that it may mean, or None: it exists, or nothing is near.

    All are relative to the workspace. Among several, the one that was `shown` in this turn is meant. A tool that may
    create files (`for_new`) gets an existing one only for an absolute path or a placeholder: a new name is a new file.
    """
    path = _plain(named)
    known = frozenset(files)
    if not path or path in known or len(path) > _LONGEST or path.endswith("/") or ".." in path.split("/"):
        return None
    if _DENIED.search(path) or _SYSTEM.match(path) or any(file.startswith(f"{path}/") for file in files):
        return None
    usable = [file for file in files if not _DENIED.search(file)]
    bare = _NO_FOLDER.sub("", path, count=1)
    if _ABSOLUTE.match(path) or bare != path:
        found = _by_end(bare, usable)
        if found or not _ANY_FILE.fullmatch(bare):
            return _one(found, shown) if found or for_new else _near_miss(basename(bare), usable, shown)
    if _ANY_FILE.fullmatch(bare) and not (for_new and _PLAIN_WORD.fullmatch(path)):
        return _any_file(bare, usable, shown)
    return None if for_new else _near_miss(bare, usable, shown)


def _plain(named: str) -> str:
    """The path without quotes around it, with `/`, and without `./` before it."""
    path = named.strip().strip("'\"`*").replace("\\", "/")
    while path.startswith("./"):
        path = path[2:].lstrip("/")
    return re.sub(r"/{2,}", "/", path)


def _one(found: Sequence[str], shown: Sequence[str]) -> str | Candidates | None:
    if len(found) > 1:
        seen = [file for file in found if file in shown]
        found = seen if len(seen) == 1 else found
    if not found:
        return None
    return found[0] if len(found) == 1 else Candidates(tuple(found))


def _by_end(path: str, files: Sequence[str]) -> list[str]:
    """The files with which the path ends, the longest of them; else those with its last name."""
    whole = [file for file in files if f"/{path}".endswith(f"/{file}")]
    if whole:
        return [max(whole, key=len)]
    return [file for file in files if basename(file) == basename(path)]


def _any_file(placeholder: str, files: Sequence[str], shown: Sequence[str]) -> str | Candidates | None:
    """What stands for a file: the only one that was shown, or the only one that there is, of the same kind."""
    suffix = splitext(placeholder)[1]
    for among in ([file for file in files if file in shown], files):
        fitting = [file for file in among if not suffix or file.endswith(suffix)]
        if fitting:
            return _one(fitting, ())
    return None


def _near_miss(path: str, files: Sequence[str], shown: Sequence[str]) -> str | Candidates | None:
    """The file that differs in case, folder, `-` and `_`, extension or a letter: the first of these that any does."""
    name = basename(path)
    same: tuple[Callable[[str], bool], ...] = (
        lambda file: file.casefold() == path.casefold(),
        lambda file: file.endswith(f"/{path}"),
        lambda file: f"/{path}".endswith(f"/{file}"),
        lambda file: basename(file) == name,
        lambda file: _folded(basename(file)) == _folded(name),
        lambda file: "." not in name and _folded(splitext(basename(file))[0]) == _folded(name),
    )
    for is_same in same:
        found = [file for file in files if is_same(file)]
        if found:
            return _one(found, shown)
    suffix = splitext(name)[1]
    names = {basename(file) for file in files if splitext(file)[1] == suffix}
    close = [each for each in closest_names(name, names) if _likeness(name, each) >= LEAST_LIKENESS]
    return _one([file for file in files if basename(file) == close[0]], shown) if len(close) == 1 else None


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


def _likeness(one: str, other: str) -> float:
    return fuzz.ratio(_folded(splitext(one)[0]), _folded(splitext(other)[0]))
