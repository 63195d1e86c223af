"""Each clause of the five documents has a test: the tables `spec_<n>.md` name it, and say how the clause holds.

A row is `| clause | what the document says | tests | verdict |`. The tests are names as pytest takes them, without
parameters, or transcripts of scenarios, separated by blanks; the verdict is `exact`, or `stricter: ...` or `other: ...`
with the reason.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.scenarios.table import SCENARIOS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLAUSES = {1: 147, 2: 83, 3: 50, 4: 121, 5: 41}
"""How many clauses each document has: a row that goes missing is noticed."""

_VERDICT = re.compile(r"exact|(stricter|other): \S.*")
_NAMED_TEST = re.compile(r"`([^`\s]+\.py::[^`\s]+|tests/scenarios/transcripts/\w+\.md)`")


class Clause(NamedTuple):
    number: str
    tests: tuple[str, ...]
    verdict: str


def clauses(document: int) -> list[Clause]:
    lines = (HERE / f"spec_{document}.md").read_text(encoding="utf-8").splitlines()
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines if line.startswith("|")]
    return [Clause(row[0].strip(), tuple(_NAMED_TEST.findall(row[2])), row[3].strip()) for row in rows[2:]]


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file that are not skipped. Empty where there is no such file."""
    path = ROOT / file
    found = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef) and _is_test(node))


def _is_test(node: ast.FunctionDef) -> bool:
    marks = " ".join(map(ast.unparse, node.decorator_list))
    return node.name.startswith("test") and not re.search("skip|xfail|in_sweeps|nightly", marks)


def _exists(test: str) -> bool:
    if test.endswith(".md"):
        return Path(test).stem in {scenario.name for scenario in SCENARIOS}
    file, _, name = test.partition("::")
    return name in names_in(file)


@pytest.mark.parametrize("document", CLAUSES)
def test_clause_of_a_document_has_tests_that_exist_and_a_verdict(document: int) -> None:
    found = clauses(document)
    numbers = [clause.number for clause in found]
    assert len(set(numbers)) == len(numbers) >= CLAUSES[document]
    untested = [clause.number for clause in found if not clause.tests]
    unknown = [test for clause in found for test in clause.tests if not _exists(test)]
    unjudged = [clause.number for clause in found if not _VERDICT.fullmatch(clause.verdict)]
    assert (untested, unknown, unjudged) == ([], [], [])


def test_test_of_a_document_is_named_by_one_of_its_clauses() -> None:
    named = {test for document in CLAUSES for clause in clauses(document) for test in clause.tests}
    files = [f"tests/specs/{path.name}" for path in sorted(HERE.glob("test_spec_*.py"))]
    assert {f"{file}::{name}" for file in files for name in names_in(file)} - named == set()
