"""Tables in Markdown whose rows name tests: reading them, and looking up the tests.

A test is named as pytest takes it, without parameters, or by the transcript of its scenario.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.scenarios.table import SCENARIOS

ROOT = Path(__file__).parents[2]
_NAMED_TEST = re.compile(r"`([^`\s]+\.py::[^`\s]+|tests/scenarios/transcripts/\w+\.md)`")


def table_rows(path: Path) -> Iterator[list[str]]:
    """Read the cells of each row of the table in a file, without its head."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]


def named_tests(cell: str) -> tuple[str, ...]:
    return tuple(_NAMED_TEST.findall(cell))


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file that `make test` does not skip. Empty where there is no such file."""
    path = ROOT / file
    statements = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return frozenset(node.name for node in statements if isinstance(node, ast.FunctionDef) and _is_test(node))


def _is_test(node: ast.FunctionDef) -> bool:
    marks = " ".join(map(ast.unparse, node.decorator_list))
    return node.name.startswith("test") and not re.search("skip|xfail|slow|nightly", marks)


def is_there(test: str) -> bool:
    if test.endswith(".md"):
        return Path(test).stem in {scenario.name for scenario in SCENARIOS}
    file, _, name = test.partition("::")
    return name in names_in(file)
