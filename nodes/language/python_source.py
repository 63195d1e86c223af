"""Python source as a syntax tree, without the parser's warnings, which are about a user's old lines."""

import ast
import threading
import warnings

_PARSING = threading.Lock()
"""Silencing warnings changes a setting of the whole process."""


def parse_quietly(text: str) -> ast.Module:
    """The syntax tree of a text.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does, where it is none or nests too deeply.
    """
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)
