"""New functions that leave out what they have to do: `pass`, a docstring alone, `# Your implementation here`."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from nodes.execute_tools.tools.elisions import is_elision, is_placeholder, is_stub
from nodes.execute_tools.tools.python_units import Function, PythonText

_TO_BE_WRITTEN: Final = re.compile(
    r"\b(?:TODO|FIXME|placeholder|stub|not (?:yet )?implemented|implement(?:ation)?|your (?:\w+ )?(?:code|logic))\b",
    re.IGNORECASE,
)
_EMPTY_BY_DESIGN: Final = frozenset(
    {
        "overload",
        "abstractmethod",
        "abstractproperty",
        "abstractclassmethod",
        "abstractstaticmethod",
        "group",
        "callback",
        "hookspec",
    }
)
"""Decorators of functions that need no body: those of `abc` and `typing`, and what groups commands or names hooks."""
_INTERFACES: Final = frozenset({"Protocol", "ABC", "ABCMeta", "Interface"})
_NOTHING_TO_DO: Final = frozenset({"__init__", "__exit__", "__aexit__", "__del__"})
_ASKED: Final = re.compile(
    r"\b(?:stubs?|stubbed|placeholders?|skeletons?|boilerplate|scaffold\w*|no-?ops?|(?:do|does|doing) nothing"
    r"|dummy|dummies|mock\w*|fakes?|protocols?|abstract|NotImplementedError|unimplemented|hooks?"
    r"|(?<!line )(?<!user )(?<!graphical )(?<!web )(?<!text )interfaces?"
    r"|empty (?:function|method|class|bod(?:y|ies))s?|without (?:an? |any )?(?:body|bodies|implementations?))\b",
    re.IGNORECASE,
)
_REFUSED: Final = re.compile(
    r"\b(?:no|not|never|without|avoid|instead of|rather than|replac(?:e|ing)|fill(?:ing)?(?: in| out)?)\b"
    r"[^.;\n]{0,40}\Z|n['\u2019]t\b[^.;\n]{0,40}\Z",
    re.IGNORECASE,
)


def unwritten_bodies(text: PythonText, known: Collection[str], task: str = "", path: str = "") -> list[str]:
    """The functions and methods (`Cart.total`) of a text that are not `known` and leave out their body.

    None in a stub file, and where the `task` asks for stubs, placeholders, an interface or the like. What is abstract,
    an overload or a member of a protocol has no body to give, and a class may be `pass` alone.
    """
    if path.endswith(".pyi") or _asks_for_stubs(task):
        return []
    return [name for name in _unwritten(text, _statements(text), "") if name not in known]


def function_names(text: PythonText) -> set[str]:
    """All functions and methods of a text; methods also without their class, as they may stand alone in a block."""
    names = set(_functions(_statements(text), ""))
    return names | {name.rpartition(".")[2] for name in names}


def left_out(names: Sequence[str]) -> str:
    """How a block with these unwritten bodies is refused."""
    if len(names) == 1:
        return f"The block leaves out the body of {names[0]}: send it whole."
    return f"The block leaves out the bodies of {', '.join(names)}: send them whole."


def _asks_for_stubs(task: str) -> bool:
    return any(_REFUSED.search(task, 0, match.start()) is None for match in _ASKED.finditer(task))


def _statements(text: PythonText) -> Iterator[ast.stmt]:
    return (node for unit in text.units for node in unit.nodes)


def _functions(nodes: Iterable[ast.stmt], prefix: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Function):
            yield f"{prefix}{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _unwritten(text: PythonText, nodes: Iterable[ast.stmt], prefix: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Function):
            if _leaves_out(text, node) and not _last_names(node.decorator_list) & _EMPTY_BY_DESIGN:
                yield f"{prefix}{node.name}"
        elif isinstance(node, ast.ClassDef):
            parents = [*node.bases, *(keyword.value for keyword in node.keywords)]
            if not any(name in _INTERFACES or name.endswith("Protocol") for name in _last_names(parents)):
                yield from _unwritten(text, node.body, f"{prefix}{node.name}.")


def _leaves_out(text: PythonText, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether nothing is there but a docstring and placeholders, or a comment says so of a plain value."""
    promised = any(_is_promise(text.comments.get(line, "")) for line in _lines(node))
    if is_stub(node) and not any(isinstance(each, ast.Raise) for each in node.body):
        return promised or node.name not in _NOTHING_TO_DO
    return promised and all(_says_nothing(each) for each in node.body)


def _is_promise(comment: str) -> bool:
    return bool(comment) and (is_elision(comment) or _TO_BE_WRITTEN.search(comment) is not None)


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _says_nothing(node: ast.stmt) -> bool:
    """Whether a statement is a placeholder, a lone string, or a plain value that is returned."""
    match node:
        case ast.Return(value=None | ast.Constant()) | ast.Expr(value=ast.Constant()):
            return True
        case ast.Return(value=ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[])):
            return True
        case _:
            return is_placeholder(node)


def _last_names(nodes: Iterable[ast.expr]) -> set[str]:
    """`abstractmethod` of `@abc.abstractmethod`, `group` of `@click.group()`, `Protocol` of `Protocol[T]`."""
    return {_last_name(node) for node in nodes}


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""
