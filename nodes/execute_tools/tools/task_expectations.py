"""What the words of a request ask of names: that one is gone, that another is defined. Pure; strict in doubt."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from nodes.execute_tools.tools.python_units import Function, SyntaxProblem, parse

MOST_LINES: Final = 5
"""Lines that a sentence names."""

_NAME = r"[`'\"]?(?P<{}>[^\W\d]\w*)(?:\(\))?[`'\"]?"
_KIND = r"(?:function|method|class|constant|helper)"
_ADJECTIVES = (
    r"(?:(?:dead|unused|obsolete|old|private|deprecated|duplicate[d]?|redundant|helper|no\s+longer\s+(?:used|needed)"
    r"|legacy|module-level|top-level|global)[\s,]+(?:and\s+)?)*"
)
_RENAME = re.compile(
    rf"\brename\s+(?:the\s+)?{_ADJECTIVES}(?:{_KIND}\s+)?(?:called\s+|named\s+)?{_NAME.format('old')}"
    rf"(?:\s+{_KIND})?\s+(?:to|into|as)\s+{_NAME.format('new')}(?![\w(/]|\.\w)",
    re.IGNORECASE,
)
_DELETE = re.compile(
    rf"\b(?:delete|remove|drop)\s+(?:the\s+)?{_ADJECTIVES}(?:{_KIND}\s+(?:called\s+|named\s+)?{_NAME.format('named')}"
    rf"|{_NAME.format('before')}\s+{_KIND}\b)(?![\w(/]|\.\w)",
    re.IGNORECASE,
)
_INSIDE = re.compile(
    r"\s*+,?\s*+(?:in|inside|within|of|from)\s+(?:the\s+|its\s+)?"
    r"(?:(?:function|method|class|body|call|list|docs?|docstring|comments?|import)\b|[`'\"]?\w+\(\)"
    r"|[`'\"]?\w+[`'\"]?(?![\w./-]))",
    re.IGNORECASE,
)
_FOLLOWED = re.compile(
    r"\s*(?:$|[.,;:!)\n]|(?:in|from|of|and|as|is|it|with|which|that|because|since|everywhere|throughout|across|but|for)\b)",
    re.IGNORECASE,
)
_KEPT = re.compile(
    r"\b(?:alias(?:es)?|backwards?|compatib\w+|keep(?:ing)?\s+the\s+old|still\s+work|deprecat\w+\s+the\s+old)\b",
    re.IGNORECASE,
)
_NOT = re.compile(r"\b(?:not|don'?t|never|without|instead\s+of|how\s+to|why)\b[^.;\n]{0,400}$", re.IGNORECASE)
_NO_NAMES = frozenset(
    {
        *(
            "the",
            "a",
            "an",
            "it",
            "its",
            "this",
            "that",
            "all",
            "any",
            "every",
            "each",
            "and",
            "or",
            "to",
            "from",
            "in",
        ),
        *("of", "is", "file", "files", "module", "variable", "parameter", "argument", "attribute", "column", "key"),
        *("field", "option", "flag", "function", "method", "class", "constant", "helper", "local"),
    }
)


class Expectation(NamedTuple):
    """`gone` is to be defined and used nowhere any more, and `defined` somewhere, where it is not ""."""

    gone: str
    defined: str = ""


def expectations(request: str) -> tuple[Expectation, ...]:
    """What a request asks of names, in its order."""
    if _KEPT.search(request):
        return ()
    found = [
        *((match, Expectation(match["old"], match["new"])) for match in _RENAME.finditer(request)),
        *((match, Expectation(match["named"] or match["before"])) for match in _DELETE.finditer(request)),
    ]
    usable = (
        (match.start(), each)
        for match, each in found
        if _FOLLOWED.match(request, match.end())
        and not _INSIDE.match(request, match.end())
        and not _NOT.search(request[: match.start()])
        and not {each.gone.lower(), each.defined.lower()} & _NO_NAMES
        and each.gone != each.defined
    )
    return tuple(dict.fromkeys(each for _, each in sorted(usable)))


def unmet(request: str, texts: Mapping[str, str]) -> list[str]:
    """What is not as the request asks, in sentences.

    They read like `load is still in app.py, line 3, 7.`. `texts` are the Python files that it was about, by path; what
    is in others is not known here.
    """
    trees = {path: tree for path, text in texts.items() if not isinstance(tree := parse(text), SyntaxProblem)}
    modules = {path.rpartition("/")[2].removesuffix(".py") for path in trees}
    told: list[str] = []
    for each in expectations(request) if trees else ():
        for path, tree in trees.items():
            lines = sorted(set(_lines(tree, each.gone, frozenset(modules))))
            if lines:
                told.append(f"{each.gone} is still in {path}, line {', '.join(map(str, lines[:MOST_LINES]))}.")
        if each.defined and not any(each.defined in _defined(tree) for tree in trees.values()):
            told.append(f"{each.defined} is not defined in {' or '.join(trees)}.")
    return told


def _lines(tree: ast.Module, name: str, modules: frozenset[str]) -> Iterator[int]:
    """Where the name is defined, imported or used; not where a function has a variable of its own of that name."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.Lambda) and name in _own_variables(node):
            continue
        waiting.extend(ast.iter_child_nodes(node))
        match node:
            case ast.Name(id=found) if found == name:
                yield node.lineno
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
                if found == name:
                    yield node.lineno
            case ast.ImportFrom(names=aliases):
                if any(alias.name == name for alias in aliases):
                    yield node.lineno
            case ast.Attribute(value=ast.Name(id=owner), attr=found) if found == name:
                if owner in modules or owner in {"self", "cls"}:
                    yield node.lineno


def _own_variables(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    arguments = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    if isinstance(node, ast.Lambda):
        return arguments
    outer = {name for each in ast.walk(node) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
    stored = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return arguments | (stored - outer)


def _defined(tree: ast.Module) -> set[str]:
    """All names that are defined or assigned anywhere in it."""
    names = {each.name for each in ast.walk(tree) if isinstance(each, Function | ast.ClassDef)}
    stored = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    taken = {
        each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }
    return names | stored | taken
