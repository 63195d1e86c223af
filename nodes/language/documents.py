"""Untrusted TOML and YAML, read in linear time and memory or refused; and helpers for Python source.

The libraries alone do not protect against a hostile file. PyYAML's C parser recurses without a limit and crashes the
interpreter, aliases of aliases multiply, and tomllib stores each prefix of a dotted key.
"""

import ast
import functools
import json
import re
import threading
import tomllib
import warnings
from typing import Any, Final, NamedTuple

DEEPEST: Final = 64
"""The maximum nesting of a document: tables, arrays and the parts of a dotted key."""

MOST_VALUES: Final = 100_000
"""The maximum number of values in a YAML document. A conversation of 1,000 exchanges has a quarter of that."""

_LONGEST_NUMBER: Final = 40
"""Characters of a number or date in YAML; parsing base 60 takes quadratic time."""
_TEXT_TAGS: Final = frozenset({None, "!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:binary"})
"""The tags that are accepted; other types follow from the notation."""
_TOO_DEEP: Final = "arrays or tables are nested too deep"
_TOML_TEXT: Final = re.compile(
    r'#[^\n]*+|"""(?:\\.|[^\\])*?(?:"""(?!")|\Z)|\'\'\'.*?(?:\'\'\'(?!\')|\Z)'
    r'|"(?:\\.|[^"\\\n])*+"?+|\'[^\'\n]*+\'?+',
    re.DOTALL,
)
"""Comments and strings, closed or not."""
_MANY_PARTS: Final = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")
_NUMBER: Final = re.compile(r"\d+")


class DocumentProblem(NamedTuple):
    """Why a text is not a valid document. Line and column count from 1; 0 if unknown."""

    message: str
    line: int = 0
    column: int = 0


def read_toml(text: str) -> dict[str, Any] | DocumentProblem:
    """Return the values of a TOML document, or the first problem."""
    if _MANY_PARTS.search(_TOML_TEXT.sub("s", text)):
        return DocumentProblem(f"a key in it has more than {DEEPEST} parts")

    try:
        values = tomllib.loads(text)
        json.dumps(values, default=str)  # which refuses the numbers that tomllib reads and nobody can write
    except tomllib.TOMLDecodeError as error:
        return _toml_problem(str(error), text)
    except RecursionError:
        return DocumentProblem(_TOO_DEEP)
    except ValueError:  # a number of thousands of digits
        return DocumentProblem("a number in it is too long")

    if is_deep(values, DEEPEST):
        return DocumentProblem(_TOO_DEEP)

    return values


def read_yaml(text: str) -> Any:
    """Return the value of a YAML document, or a `DocumentProblem`.

    Aliases, duplicate keys, tags other than those of strings and bytes, and several documents are refused.
    """
    import yaml

    try:
        loader = _yaml_loader()
        problem = _yaml_problem(yaml.parse(text, Loader=loader))
        return problem or yaml.load(text, Loader=loader)  # noqa: S506 - a safe one
    except UnicodeEncodeError:
        return DocumentProblem("it holds half a character")
    except yaml.YAMLError as error:
        said = str(getattr(error, "problem", None) or error).strip().partition("\n")[0][:200]
        return DocumentProblem(said, *_place(getattr(error, "problem_mark", None)))


def _toml_problem(said: str, text: str) -> DocumentProblem:
    """Split tomllib's message into the message and the position, "(at line 1, column 2)" or "(at end of document)"."""
    message, _, place = said.rpartition(" (at ")
    numbers = [int(number) for number in _NUMBER.findall(place)]
    if not numbers:
        return DocumentProblem(f"{message} at the end of the file", text.count("\n") + 1)

    return DocumentProblem(message, *numbers)


def is_deep(value: Any, left: int) -> bool:
    """Return whether tables and arrays nest deeper than `left` levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left < 0 or any(is_deep(item, left - 1) for item in inner)


def _yaml_problem(events: Any) -> DocumentProblem | None:
    """Return the first event that may not be loaded. Events are generated lazily, so nothing after it is parsed."""
    import yaml

    depth = 0

    for number, event in enumerate(events):
        if number > MOST_VALUES:
            return DocumentProblem(f"it has more than {MOST_VALUES:,} values", *_place(event.start_mark))

        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            return DocumentProblem(_TOO_DEEP, *_place(event.start_mark))
        if isinstance(event, yaml.AliasEvent):
            return DocumentProblem(f"an alias, *{str(event.anchor)[:40]}, is not read", *_place(event.start_mark))
        if getattr(event, "tag", None) not in _TEXT_TAGS:
            return DocumentProblem(f"the tag {str(event.tag)[:80]} is not read", *_place(event.start_mark))

    return None


def _place(mark: Any) -> tuple[int, int]:
    if mark is not None:
        return (mark.line + 1, mark.column + 1)
    return (0, 0)


@functools.cache
def _yaml_loader() -> Any:
    """Return a safe loader class, in C if available, whose failures are all `YAMLError` with a position."""
    import yaml

    kind: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(kind):  # type: ignore[misc]
        def construct_object(self, node: Any, deep: bool = False) -> Any:
            is_text = not isinstance(node, yaml.ScalarNode) or node.tag in _TEXT_TAGS
            if not is_text and len(node.value) > _LONGEST_NUMBER:
                raise yaml.constructor.ConstructorError(None, None, "a number in it is too long", node.start_mark)

            try:
                return super().construct_object(node, deep)
            except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
                raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            mapping = super().construct_mapping(node, deep)
            if len(mapping) < len(node.value):
                values = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
                twice = next((value for value in values if values.count(value) > 1), "")
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {twice[:60]!r} is there twice", node.start_mark
                )

            return mapping

    return Loader


_PARSING = threading.Lock()
"""Suppressing warnings changes a setting of the whole process."""


def parse_quietly(text: str) -> ast.Module:
    """Return the syntax tree of Python source without emitting SyntaxWarnings; raises what `ast.parse` raises."""
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, "/dev/null")  # by default an error's line is read from a file '<unknown>' in this folder


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names of all functions and classes, and of everything that is assigned to."""
    nodes = [*ast.walk(tree)]
    stored = (node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}

    return names | {getattr(node, "id", "") or getattr(node, "attr", "") for node in stored}


def storable(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates, which no checkpoint can store.

    A resumed run must see the same text. Surrogates come from endpoints that split a reply between two UTF-16 units,
    and from terminals.
    """
    if text.isascii():
        return text

    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
