"""The functions that may use absolute paths of a workspace; `tests/conftest.py` checks this in each test."""

import ast

from tests.architecture.product import text_of
from tests.workspace_watch import ALLOWED


def test_every_allowed_function_exists() -> None:
    for place in ALLOWED:
        file, _, function = place.partition(":")
        tree = ast.parse(text_of(file))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert function in {node.name for node in functions}, place
