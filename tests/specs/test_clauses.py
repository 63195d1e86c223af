"""Each clause of the five documents has a test: the tables `spec_<n>.md` name it, and say how the clause holds.

A row is `| clause | what the document says | tests | verdict |`. The tests are separated by blanks; the verdict is
`exact`, or `stricter: ...` or `other: ...` with the reason.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.specs.tables import is_there, named_tests, names_in, table_rows

HERE = Path(__file__).parent
CLAUSES = {1: 147, 2: 83, 3: 50, 4: 121, 5: 41}
"""How many clauses each document has: a row that goes missing is noticed."""

CODE = {
    1: ("document_1", re.compile(r"(1\.|2\.[123]\.|3\.[123]\.|4\.[1-4]\.|6\.).*")),
    4: ("document_4", re.compile(r"4\.([78]\..*|9\.[1-8])")),
}
"""For each document that has code: the module that is its code, and the clauses that speak of it."""

_VERDICT = re.compile(r"exact|(stricter|other): \S.*")


class Clause(NamedTuple):
    number: str
    tests: tuple[str, ...]
    verdict: str


def clauses(document: int) -> list[Clause]:
    rows = table_rows(HERE / f"spec_{document}.md")
    return [Clause(number, named_tests(tests), verdict) for number, _, tests, verdict in rows]


@pytest.mark.parametrize("document", CLAUSES)
def test_clause_has_existing_tests_and_a_verdict(document: int) -> None:
    listed = clauses(document)
    numbers = [clause.number for clause in listed]
    assert len(set(numbers)) == len(numbers) >= CLAUSES[document]
    untested = [clause.number for clause in listed if not clause.tests]
    unknown = [test for clause in listed for test in clause.tests if not is_there(test)]
    unjudged = [clause.number for clause in listed if not _VERDICT.fullmatch(clause.verdict)]
    assert (untested, unknown, unjudged) == ([], [], [])


@cache
def backed_by(module: str) -> frozenset[str]:
    """The tests of this folder that use the code of this module, by themselves or by what they name in their file."""
    backed = set[str]()
    for path in HERE.glob("test_spec_*.py"):
        file = f"tests/specs/{path.name}"
        names_by_definition = _names_used(path)
        reaching = {module}
        while more := {name for name in names_by_definition.keys() - reaching if names_by_definition[name] & reaching}:
            reaching |= more
        backed |= {f"{file}::{name}" for name in reaching & names_in(file)}
    return frozenset(backed)


def _names_used(path: Path) -> dict[str, set[str]]:
    """For each name that a file defines at its top level, the names in its definition; fixtures are parameters."""
    names_by_definition: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = [*ast.walk(node)]
        names = {child.id for child in inner if isinstance(child, ast.Name)}
        names |= {child.arg for child in inner if isinstance(child, ast.arg)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names_by_definition[node.name] = names
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names_by_definition |= {
                child.id: names for child in inner if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
            }
    return names_by_definition


@pytest.mark.parametrize("document", CODE)
def test_exact_clause_on_code_is_compared_with_the_documents_own_code(document: int) -> None:
    """A test of it runs the code of the document beside ours."""
    module, spoken_of = CODE[document]
    exact = [clause for clause in clauses(document) if clause.verdict == "exact" and spoken_of.fullmatch(clause.number)]
    backed = backed_by(module)
    assert len(exact) > 20
    assert [clause.number for clause in exact if backed.isdisjoint(clause.tests)] == []


def test_test_of_a_document_is_listed_by_one_of_its_clauses() -> None:
    named = {test for document in CLAUSES for clause in clauses(document) for test in clause.tests}
    files = [f"tests/specs/{path.name}" for path in sorted(HERE.glob("test_spec_*.py"))]
    assert {f"{file}::{name}" for file in files for name in names_in(file)} - named == set()
