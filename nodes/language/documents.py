"""TOML and YAML that somebody else wrote: read in time and memory in proportion to the text, or refused. Pure.

The libraries alone are not enough for a file that was sent. PyYAML's C parser follows brackets without a limit and
takes the interpreter down with it, an alias of an alias multiplies, and tomllib stores each prefix of a dotted key.
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
"""Levels of a document: tables and arrays in each other, and the parts of a dotted key."""

MOST_VALUES: Final = 100_000
"""Of a YAML document. A conversation of a thousand exchanges has a quarter of that."""

_LONGEST_NUMBER: Final = 40
"""Characters of a number or a date in YAML; base 60 takes the square of them."""
_TEXT_TAGS: Final = frozenset({None, "!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:binary"})
"""What a document may say that a value is; all other types follow from how it is written."""
_TOO_DEEP: Final = "arrays or tables are nested too deep"
_TOML_TEXT: Final = re.compile(
    r'#[^\n]*+|"""(?:\\.|[^\\])*?(?:"""(?!")|\Z)|\'\'\'.*?(?:\'\'\'(?!\')|\Z)'
    r'|"(?:\\.|[^"\\\n])*+"?+|\'[^\'\n]*+\'?+',
    re.DOTALL,
)
"""Comments and strings, closed or not: after an open one nothing is read."""
_MANY_PARTS: Final = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")
_NUMBER: Final = re.compile(r"\d+")


class DocumentProblem(NamedTuple):
    """Why a text is no such document. Line and column count from 1; 0 where nobody knows."""

    message: str
    line: int = 0
    column: int = 0


def read_toml(text: str) -> dict[str, Any] | DocumentProblem:
    """The values of a TOML document, or the first reason why it is none."""
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
    """The value of a YAML document, or a `DocumentProblem`.

    Refused are aliases, keys that come twice, tags of Python and all others but those of texts and bytes, and more than
    one document.
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
    """What tomllib said: a message, and "(at line 1, column 2)" or "(at end of document)" after it."""
    message, _, place = said.rpartition(" (at ")
    numbers = [int(number) for number in _NUMBER.findall(place)]
    if not numbers:
        return DocumentProblem(f"{message} at the end of the file", text.count("\n") + 1)

    return DocumentProblem(message, *numbers)


def is_deep(value: Any, left: int) -> bool:
    """Whether tables and arrays stand in each other more often than this."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left < 0 or any(is_deep(item, left - 1) for item in inner)


def _yaml_problem(events: Any) -> DocumentProblem | None:
    """What may not be loaded. The events come one by one, so that nothing is made of what follows the first of it."""
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
    """A safe loader, of C where there is one, whose every failure is a `YAMLError` with its place."""
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
"""Silencing warnings changes a setting of the whole process."""


def parse_quietly(text: str) -> ast.Module:
    """The syntax tree of a text.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does, where it is none or nests too deeply.
    """
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, "/dev/null")  # by default an error's line is read from a file '<unknown>' in this folder


def defined_names(tree: ast.Module) -> set[str]:
    """The names of functions and classes in a tree, and of all that is assigned to."""
    nodes = [*ast.walk(tree)]
    stored = (node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}

    return names | {getattr(node, "id", "") or getattr(node, "attr", "") for node in stored}


def storable(text: str) -> str:
    """Join the halves of surrogate pairs, and replace single ones: no checkpoint can hold them.

    A resumed run must see what this one saw. Halves come from endpoints that cut a reply between two UTF-16 units, and
    from people whose terminal does.
    """
    if text.isascii():
        return text

    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
