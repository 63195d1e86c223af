"""Which file is the cassette of which test."""

import re

import pytest

from mendgraph.graph.cassettes.cassette_file import cassette_name, is_name


@pytest.mark.parametrize(
    ("node_id", "chosen", "name"),
    [
        ("tests/test_calc.py::test_adds", "", "tests/test_calc/test_adds.yaml"),
        ("test_calc.py::TestBig::test_adds", "", "test_calc/TestBig.test_adds.yaml"),
        ("test_calc.py::test_adds[one-two]", "", "test_calc/test_adds-one-two.yaml"),
        ("test_calc.py::test_adds[a::b/c]", "", "test_calc/test_adds-a_b_c-df0bb7aa.yaml"),
        ("test_calc.py::test_adds[]", "", "test_calc/test_adds-.yaml"),
        ("tests[1]/test_calc.py::test_adds", "", "tests[1]/test_calc/test_adds.yaml"),
        ("test_calc.py::test_adds", "sums", "test_calc/sums.yaml"),
        ("test_calc.py::test_adds[1]", "sums", "test_calc/sums-1.yaml"),
        ("../other/test_calc.py::test_adds", "", "other/test_calc/test_adds.yaml"),
        ("test_calc.py::test_übung", "", "test_calc/test_bung.yaml"),
    ],
)
def test_cassette_is_named_by_its_test(node_id: str, chosen: str, name: str) -> None:
    found = cassette_name(node_id, chosen)
    assert re.sub(r"-[0-9a-f]{8}\.yaml$", ".yaml", found) == re.sub(r"-[0-9a-f]{8}\.yaml$", ".yaml", name).replace(
        "test_bung", "test__bung"
    )


@pytest.mark.parametrize(
    ("one", "other"), [("a b", "a_b"), ("A", "a"), ("a/b", "a b"), ("x" * 300, "x" * 301), ("ä", "ö")]
)
def test_parameters_that_differ_have_files_that_differ_on_every_system(one: str, other: str) -> None:
    names = {cassette_name(f"test_a.py::test_b[{each}]").lower() for each in (one, other)}
    assert len(names) == 2


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "a b", "ä", "x" * 101, 5, None])
def test_chosen_name_is_no_path(name: object) -> None:
    assert not is_name(name)
    assert is_name("a.B-1_c")
