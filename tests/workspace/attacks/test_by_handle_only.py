"""The functions that may use the absolute name of a workspace. `tests/conftest.py` holds every test to this list."""

import ast

from tests.architecture.product import text_of
from tests.workspace_watch import EXCUSED


def test_every_excused_function_exists() -> None:
    for place in EXCUSED:
        file, _, function = place.partition(":")
        tree = ast.parse(text_of(file))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert function in {node.name for node in functions}, place
