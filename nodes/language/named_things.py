"""The files and definitions that a request speaks of, as its words spell them, and what a path says by its form."""

import re
from itertools import chain

TEXT_SUFFIXES = frozenset(
    {
        *("c", "cfg", "cpp", "css", "go", "h", "html", "ini", "java", "js", "json", "md", "py", "pyi"),
        *("rb", "rs", "sh", "sql", "toml", "ts", "txt", "xml", "yaml", "yml"),
    }
)
"""Ends of the names of text files that people work on."""

_QUOTED = re.compile(r"([`'\"])(?P<path>[^`'\"\n]{1,200})\1")
_PATH = re.compile(
    r"(?<![\w@+/.\\-])(?:\./)?[\w@+-][\w@.+-]*(?:/[\w@.+-]+)*(?:\.[A-Za-z]\w*)|(?<![\w@+/.\\-])\.[\w.-]+"
    r"|(?<![\w@+/.\\:~<>-])/(?:[\w@.+-]+/)*[\w@.+-]*\.[A-Za-z]\w*"
)
_IDENTIFIER = re.compile(
    r"`(?P<quoted>[A-Za-z_]\w{2,60})(?:\(\))?`"
    r"|(?<![\w./-])(?P<plain>[A-Za-z]\w*_\w+|[a-z]+[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*|[A-Za-z_]\w+(?=\())(?![\w/-]|\.\w)"
)

_ELSEWHERE = re.compile(r"~(?:[\w.-]*/|\Z)|[A-Za-z]:[\\/]|\\\\|[A-Za-z][\w+.-]+:/")
"""The form of a path that names a place outside of every workspace."""


def named_paths(request: str) -> list[str]:
    """What may be paths in a request, absolute ones too, each once, in order; those in quotes may hold spaces."""
    plain = (match.group() for match in _PATH.finditer(request))
    quoted = (match["path"] for match in _QUOTED.finditer(request) if " " in match["path"])
    found = dict.fromkeys(path.removeprefix("./").rstrip(".") for path in chain(quoted, plain))
    return [path for path in found if path]


def named_identifiers(request: str) -> list[str]:
    """Words that are names in code, each once, in order: in backquotes, with `_` or inner capitals, or called."""
    found = (match["quoted"] or match["plain"] for match in _IDENTIFIER.finditer(request))
    return list(dict.fromkeys(found))


def names_elsewhere(path: str) -> bool:
    r"""Whether a path is no relative one, though POSIX would take it for one: `~/a`, `C:\a`, `\\host\a`, `file:///a`.

    A file or folder that is there under such a name is the one that is named.
    """
    return _ELSEWHERE.match(path) is not None
