"""Where in a TOML document each key stands: the standard library reads the values and forgets the lines. Pure."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

Path = tuple[str, ...]
"""The keys that lead to a value, outermost first."""

_TOKEN: Final = re.compile(
    r'#[^\n]*|"""(?:\\.|[^\\])*?"""(?!")|\'\'\'.*?\'\'\'(?!\')|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|[\[\]{}\n]', re.DOTALL
)
_DEPTH: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
_NUMBER: Final = re.compile(r"\d+")
_TOO_DEEP: Final = "arrays or tables are nested too deep"
MOST_NESTED: Final = 64
"""Tables and arrays in each other. pydantic's reader gives up at about 200, and then judges nothing at all."""


class SyntaxProblem(NamedTuple):
    """Why a text is no TOML. Line and column count from 1; 0 where nobody knows."""

    message: str
    line: int = 0
    column: int = 0


class Document(NamedTuple):
    """The values of a TOML document, and the line in which each key stands."""

    values: Mapping[str, Any]
    lines: Mapping[Path, int]


def read_document(text: str) -> Document | SyntaxProblem:
    """The document, or the first place at which it is none."""
    try:
        values = tomllib.loads(text)
        json.dumps(values, default=str)  # which refuses the numbers that tomllib reads and nobody can write
        return SyntaxProblem(_TOO_DEEP) if _is_deep(values, MOST_NESTED) else Document(values, _lines(text))
    except tomllib.TOMLDecodeError as error:
        return _problem(str(error), text)
    except RecursionError:
        return SyntaxProblem(_TOO_DEEP)
    except ValueError:  # a number of thousands of digits
        return SyntaxProblem("a number in it is too long")


def _is_deep(value: Any, left: int) -> bool:
    """Whether tables and arrays stand in each other more often than this."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left < 0 or any(_is_deep(each, left - 1) for each in inner)


def _problem(said: str, text: str) -> SyntaxProblem:
    """What tomllib said: a message, and "(at line 1, column 2)" or "(at end of document)" after it."""
    message, _, place = said.rpartition(" (at ")
    numbers = [int(each) for each in _NUMBER.findall(place)]
    if not numbers:
        return SyntaxProblem(f"{message} at the end of the file", text.count("\n") + 1)
    return SyntaxProblem(message, *numbers)


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
