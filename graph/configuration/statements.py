"""Where in a TOML document each key stands: the standard library reads the values and forgets the lines. Pure."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from nodes.language.documents import DocumentProblem, read_toml

Path = tuple[str, ...]
"""The keys that lead to a value, outermost first."""

_TOKEN: Final = re.compile(
    r'#[^\n]*|"""(?:\\.|[^\\])*?(?:"""(?!")|\Z)|\'\'\'.*?(?:\'\'\'(?!\')|\Z)'
    r'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|[\[\]{}\n]',
    re.DOTALL,
)
"""What counts in a TOML text; a text of several lines that nobody ends goes on to the end."""
_DEPTH: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


class Document(NamedTuple):
    """The values of a TOML document, and the line in which each key stands."""

    values: Mapping[str, Any]
    lines: Mapping[Path, int]


def read_document(text: str) -> Document | DocumentProblem:
    """The document, or the first place at which it is none."""
    values = read_toml(text)
    return values if isinstance(values, DocumentProblem) else Document(values, _lines(text))


def _lines(text: str) -> dict[Path, int]:
    """The line of each key, and of each table, where it is named first."""
    found: dict[Path, int] = {}
    table: Path = ()
    for line, statement in _statements(text):
        inner = tomllib.loads(statement)
        if statement.startswith("["):
            table = _only_path(inner)
            found.setdefault(table, line)
        else:
            for path in _paths(inner):
                found.setdefault((*table, *path), line)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each table's head and each key with its value, with the line in which it begins."""
    start, line, first, depth = 0, 1, 1, 0
    for token in (*_TOKEN.finditer(text), None):
        said = token.group() if token else "\n"
        if said == "\n" and depth <= 0:
            statement = text[start : token.start() if token else len(text)].strip()
            if statement and not statement.startswith("#"):
                yield first, statement
            start = token.end() if token else len(text)
            first = line + 1
        depth += _DEPTH.get(said, 0)
        line += said.count("\n")


def _only_path(nested: Mapping[str, Any]) -> Path:
    """The path of the one table that a head names."""
    path: list[str] = []
    here: Any = nested
    while here:
        if isinstance(here, list):
            here = here[0]
            continue
        [(key, here)] = here.items()
        path.append(key)
    return tuple(path)


def _paths(nested: Mapping[str, Any]) -> Iterator[Path]:
    for key, value in nested.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *path) for path in _paths(value))
