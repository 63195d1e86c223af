"""Does a text parse as what the end of its name says it is, and did it before an edit? Pure.

Nothing is made of the text but a syntax tree or a stream of events: no object, no alias is ever resolved.
"""

import json
import posixpath
from collections.abc import Callable, Mapping
from typing import Final

import yaml

from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem, parse
from mendgraph.nodes.execute_tools.files.text_files import count_lines
from mendgraph.nodes.language.documents import DocumentProblem, read_toml

LARGEST_JUDGED: Final = 1_000_000
"""Characters of a text that is judged."""
DEEPEST_YAML: Final = 100
"""Levels of a YAML text that is judged: libyaml's time grows with the square of the depth of brackets."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CANNOT_TELL: Final = SyntaxProblem(0, "cannot be judged")
"""Like what `parse` says of a text that is too much for it: a problem without a line."""


def syntax_problem(path: str, text: str) -> str | None:
    """`line 3: '(' was never closed`, or None where the text parses, is of no known kind, or cannot be judged.

    Python is judged by the Python that runs this, which may be older than the text.
    """
    problem = _judged(path, text)
    if problem is None or not problem.line:
        return None
    return str(problem._replace(line=min(problem.line, max(1, count_lines(text)))))


def broken_by(path: str, before: str | None, after: str) -> str | None:
    """`no longer parses as Python: line 3: '(' was never closed`, or None.

    Only a text that parsed can be broken: a new file (`before` is None) or JSON with comments cannot.
    """
    problem = syntax_problem(path, after)
    if problem is None or before is None or _judged(path, before) is not None:
        return None
    return f"no longer parses as {_LANGUAGES[_suffix(path)][0]}: {problem}"


def _judged(path: str, text: str) -> SyntaxProblem | None:
    language = _LANGUAGES.get(_suffix(path))
    if language is None or len(text) > LARGEST_JUDGED:
        return _CANNOT_TELL
    try:
        return language[1](text)
    except (ValueError, RecursionError, MemoryError):
        return _CANNOT_TELL


def _suffix(path: str) -> str:
    return posixpath.splitext(path)[1].lower()


def _python(text: str) -> SyntaxProblem | None:
    parsed = parse(text)
    return parsed if isinstance(parsed, SyntaxProblem) else None


def _json(text: str) -> SyntaxProblem | None:
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        return SyntaxProblem(error.lineno, error.msg)
    return None


def _toml(text: str) -> SyntaxProblem | None:
    problem = read_toml(text)
    return SyntaxProblem(problem.line, problem.message) if isinstance(problem, DocumentProblem) else None


def _yaml(text: str) -> SyntaxProblem | None:
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST_YAML:
                return _CANNOT_TELL
    except yaml.MarkedYAMLError as error:
        return SyntaxProblem(error.problem_mark.line + 1 if error.problem_mark else 0, str(error.problem))
    except yaml.reader.ReaderError as error:
        return SyntaxProblem(text[: text.find(chr(error.character))].count("\n") + 1, error.reason)
    return None


_LANGUAGES: Final[Mapping[str, tuple[str, Callable[[str], SyntaxProblem | None]]]] = {
    **dict.fromkeys((".py", ".pyi"), ("Python", _python)),
    ".json": ("JSON", _json),
    ".toml": ("TOML", _toml),
    **dict.fromkeys((".yaml", ".yml"), ("YAML", _yaml)),
}
