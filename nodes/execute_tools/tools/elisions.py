"""Code that stands for other code: `...`, `# rest unchanged`, `pass` where there was a body."""

import ast
import re

from nodes.execute_tools.tools.python_units import PythonText, Unit, statements_in

_SHOWN_CHARACTERS = 60
_LEFT_OUT = r"(?:the )?(?:rest|remainder|remaining|existing|previous|original|other)"
_CODE = r"(?:code|function|method|class|file|body|implementation|logic|unchanged|same|remains?|here|before)"
_ELISION = re.compile(
    rf"#\W*(?:{_LEFT_OUT} (?:\w+ ){{0,6}}?{_CODE}"
    r"|unchanged|same as (?:before|above)|no changes?(?: needed)?(?: here)?|(?:code )?omitted(?: for brevity)?"
    r"|(?:your|add|implementation|implement) (?:\w+ ){0,3}?here"
    r")\W*",
    re.IGNORECASE,
)


def is_elision(comment: str) -> bool:
    """Whether a whole comment says that code was left out, or is still to be written."""
    return comment.lstrip("# ").startswith(("...", "…")) or _ELISION.fullmatch(comment) is not None


def elision_in(old: tuple[PythonText, Unit], new: tuple[PythonText, Unit]) -> str:
    """What in `new` stands for code of `old` that it does not repeat, in words; "" where it is complete.

    What stands for nothing because `old` says it too, or has no code, is complete.
    """
    (old_text, old_unit), (new_text, new_unit) = old, new
    if is_stub(old_unit.node):
        return ""
    if is_stub(new_unit.node) and "NotImplementedError" not in new_unit.meaning:
        return f"line {new_unit.first} gives {new_unit.key or 'the statement'} no body"
    known = {old_text.comments.get(line) for line in _extent(old_text, old_unit)}
    for line in _extent(new_text, new_unit):
        comment = new_text.comments.get(line, "")
        if comment and comment not in known and is_elision(comment):
            return f"line {line} says `{comment}`"
    dots = _ellipses(new_unit)
    return f"line {dots[-1]} says `...`" if len(dots) > len(_ellipses(old_unit)) else ""


def torn_statement(text: PythonText) -> str:
    """A `return` or `yield` outside of any function, which shows that the lines before it are missing; "" without."""
    for node in statements_in(node for unit in text.units for node in unit.nodes):
        lone = isinstance(node, ast.Return) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield))
        if lone:
            return f"line {node.lineno} `{text.lines[node.lineno - 1].strip()[:_SHOWN_CHARACTERS]}`"
    return ""


def is_stub(node: ast.stmt) -> bool:
    """Whether a statement with a body has nothing in it but a docstring, `pass`, `...` or NotImplementedError."""
    body: list[ast.stmt] = getattr(node, "body", [])
    return bool(body) and all(is_placeholder(each) or _is_text(each) or _is_unimplemented(each) for each in body)


def is_placeholder(node: ast.stmt) -> bool:
    """Whether a statement is `pass` or `...`."""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and _is_constant(node.value, type(...)))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_constant(node.value, str)


def _is_unimplemented(node: ast.stmt) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None and "NotImplementedError" in ast.dump(node.exc)


def _is_constant(node: ast.expr, kind: type) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, kind)


def _ellipses(unit: Unit) -> list[int]:
    inner = (node for each in unit.nodes for node in ast.walk(each))
    return sorted(node.lineno for node in inner if isinstance(node, ast.Expr) and is_placeholder(node))


def _extent(text: PythonText, unit: Unit) -> range:
    return range(unit.first, text.tail(unit) + 1)
