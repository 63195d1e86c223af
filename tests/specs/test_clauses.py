"""Each clause of the five documents has a test: the tables `spec_<n>.md` name it, and say how the clause holds.

A row is `| clause | what the document says | tests | verdict |`. The tests are separated by blanks; the verdict is
`exact`, or `stricter: ...` or `other: ...` with the reason.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.specs.tables import is_there, named_tests, names_in, table_rows

HERE = Path(__file__).parent
CLAUSES = {1: 147, 2: 83, 3: 50, 4: 121, 5: 41}
"""How many clauses each document has: a row that goes missing is noticed."""

_VERDICT = re.compile(r"exact|(stricter|other): \S.*")


class Clause(NamedTuple):
    number: str
    tests: tuple[str, ...]
    verdict: str


def clauses(document: int) -> list[Clause]:
    rows = table_rows(HERE / f"spec_{document}.md")
    return [Clause(number, named_tests(tests), verdict) for number, _, tests, verdict in rows]


@pytest.mark.parametrize("document", CLAUSES)
def test_clause_of_a_document_has_tests_that_exist_and_a_verdict(document: int) -> None:
    found = clauses(document)
    numbers = [clause.number for clause in found]
    assert len(set(numbers)) == len(numbers) >= CLAUSES[document]
    untested = [clause.number for clause in found if not clause.tests]
    unknown = [test for clause in found for test in clause.tests if not is_there(test)]
    unjudged = [clause.number for clause in found if not _VERDICT.fullmatch(clause.verdict)]
    assert (untested, unknown, unjudged) == ([], [], [])


def test_test_of_a_document_is_named_by_one_of_its_clauses() -> None:
    named = {test for document in CLAUSES for clause in clauses(document) for test in clause.tests}
    files = [f"tests/specs/{path.name}" for path in sorted(HERE.glob("test_spec_*.py"))]
    assert {f"{file}::{name}" for file in files for name in names_in(file)} - named == set()
