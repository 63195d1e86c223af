"""Which cassette file belongs to which test."""

import re

from mendgraph.graph.cassettes.cassette_file import NAME_PATTERN, cassette_name

NAMES = {
    ("tests/test_calc.py::test_adds", ""): "tests/test_calc/test_adds.yaml",
    ("test_calc.py::TestBig::test_adds", ""): "test_calc/TestBig.test_adds.yaml",
    ("test_calc.py::test_adds[one-two]", ""): "test_calc/test_adds-one-two.yaml",
    ("test_calc.py::test_adds[a::b/c]", ""): "test_calc/test_adds-a_b_c.yaml",
    ("test_calc.py::test_adds[]", ""): "test_calc/test_adds-.yaml",
    ("tests[1]/test_calc.py::test_adds", ""): "tests[1]/test_calc/test_adds.yaml",
    ("test_calc.py::test_adds", "sums"): "test_calc/sums.yaml",
    ("test_calc.py::test_adds[1]", "sums"): "test_calc/sums-1.yaml",
    ("../other/test_calc.py::test_adds", ""): "other/test_calc/test_adds.yaml",
    ("test_calc.py::test_übung", ""): "test_calc/test__bung.yaml",
}
DIFFERENT = (("a b", "a_b"), ("A", "a"), ("a/b", "a b"), ("x" * 300, "x" * 301), ("ä", "ö"))


def test_cassette_is_named_after_its_test() -> None:
    named = {arguments: re.sub(r"-[0-9a-f]{8}\.yaml$", ".yaml", cassette_name(*arguments)) for arguments in NAMES}
    assert named == NAMES
    for pair in DIFFERENT:  # also on a case-insensitive file system
        assert len({cassette_name(f"test_a.py::test_b[{name}]").lower() for name in pair}) == 2, pair


def test_chosen_name_must_not_be_a_path() -> None:
    assert [name for name in ("", "a/b", "..", ".a", "a b", "ä", "x" * 101) if re.fullmatch(NAME_PATTERN, name)] == []
    assert re.fullmatch(NAME_PATTERN, "a.B-1_c")
