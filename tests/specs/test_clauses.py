"""Each clause of the five documents has a test: the tables `spec_<n>.md` name it, and say how the clause holds.

A row is `| clause | what the document says | tests | verdict |`. The tests are names as pytest takes them, without
parameters, or transcripts of scenarios, separated by blanks; the verdict is `exact`, or `stricter: ...` or `other: ...`
with the reason.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

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
    says: str
    tests: tuple[str, ...]
    verdict: str


def clauses(document: int) -> list[Clause]:
    lines = (HERE / f"spec_{document}.md").read_text(encoding="utf-8").splitlines()
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines if line.startswith("|")]
    return [
        Clause(number.strip(), says.strip(), tuple(_NAMED_TEST.findall(tests)), verdict.strip())
        for number, says, tests, verdict in rows[2:]
    ]


@lru_cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file: `test_name`, or `TestClass::test_name`. Empty where there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    found = set[str]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if _is_test(each)}
        elif _is_test(node):
            found.add(node.name)
    return frozenset(found)


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test"):
        return False
    return not any("skip" in ast.unparse(mark) or "xfail" in ast.unparse(mark) for mark in node.decorator_list)


@pytest.mark.parametrize("document", CLAUSES)
def test_every_clause_of_a_document_has_tests_that_exist_and_a_verdict(document: int) -> None:
    found = clauses(document)
    untested = [clause.number for clause in found if not clause.tests]
    unknown = [test for clause in found for test in clause.tests if not _exists(test)]
    unjudged = [clause.number for clause in found if not _VERDICT.fullmatch(clause.verdict)]
    assert (untested, unknown, unjudged) == ([], [], [])


@pytest.mark.parametrize("document", CLAUSES)
def test_no_clause_is_missing_and_none_stands_twice(document: int) -> None:
    numbers = [clause.number for clause in clauses(document)]
    assert len(set(numbers)) == len(numbers) >= CLAUSES[document]


def test_every_test_of_a_document_is_named_by_one_of_its_clauses() -> None:
    named = {test for document in CLAUSES for clause in clauses(document) for test in clause.tests}
    files = sorted(each.name for each in HERE.glob("test_spec_*.py"))
    assert [f"{file}::{test}" for file in files for test in sorted(names_in(f"tests/specs/{file}"))
            if f"tests/specs/{file}::{test}" not in named] == []  # fmt: skip


def _exists(test: str) -> bool:
    if test.endswith(".md"):
        return Path(test).stem in {scenario.name for scenario in SCENARIOS}
    file, _, name = test.partition("::")
    return name in names_in(file)
