"""A reader can hold each file, and each function, in mind at once."""

import ast

from tests.architecture.product import PACKAGES, sources, text_of, walk

FILE_LINES = 600
NODE_LINES = 60
FUNCTION_LINES = 60


def lines(path: str) -> int:
    return len(text_of(path).splitlines())


def test_no_file_is_longer_than_its_limit() -> None:
    assert {path: lines(path) for path in sources(*PACKAGES, "tests", "benchmarks") if lines(path) > FILE_LINES} == {}


def test_no_node_does_more_than_connect() -> None:
    nodes = [path for path in sources("nodes") if path.endswith("/node.py")]
    assert {path: lines(path) for path in nodes if lines(path) > NODE_LINES} == {}


def test_no_function_is_longer_than_its_limit() -> None:
    long = {
        f"{path}:{node.lineno} {node.name}": length
        for path in sources(*PACKAGES)
        for node in walk(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    }
    assert long == {}
