"""Python texts parsed without executing or warning, and parts of their syntax trees. Pure."""

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from mendgraph.nodes.language.documents import parse_quietly

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class SyntaxProblem(NamedTuple):
    """Why a text is not Python: the message of the parser, and the line that it names (0 for none)."""

    line: int
    message: str

    def __str__(self) -> str:
        """Return `line 3: invalid syntax`."""
        if self.line:
            return f"line {self.line}: {self.message}"
        return self.message


def parse(text: str) -> ast.Module | SyntaxProblem:
    """Return the syntax tree, or the problem, also of a text that is nested too deeply."""
    try:
        return parse_quietly(text)
    except SyntaxError as error:
        return SyntaxProblem(error.lineno or 0, error.msg)
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxProblem(0, str(error) or "nested too deeply")


class WithoutStrings(ast.NodeTransformer):
    """Removes docstrings and other strings that stand alone from a tree."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Return the node without such statements."""
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                block[:] = [statement for statement in block if string_of(statement) is None]

        return super().generic_visit(node)


def string_of(node: ast.stmt) -> str | None:
    """Return the string that a statement consists of, or None."""
    match node:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            return text
        case _:
            return None


def statements_in(nodes: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield these statements and those inside of them, except inside of functions and classes."""
    for node in nodes:
        yield node
        if isinstance(node, Function | ast.ClassDef):
            continue

        for part in (node, *getattr(node, "handlers", []), *getattr(node, "cases", [])):
            for name in ("body", "orelse", "finalbody"):
                yield from statements_in(getattr(part, name, []))


def comments_by_line(code: str) -> dict[int, str]:
    """Return the comments of a text by line number."""
    comments: dict[int, str] = {}
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                comments[token.start[0]] = token.string

    return comments


def idle_lines(text: str) -> set[int]:
    """Return the lines that are executed whether or not the code is used: heads of definitions and docstrings."""
    tree = parse(text)
    numbers: set[int] = set()
    if isinstance(tree, SyntaxProblem):
        return numbers

    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            first = node.body[0]
            head = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            end = first.lineno
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                end = (first.end_lineno or 0) + 1

            numbers.update(range(head, end))

    return numbers
