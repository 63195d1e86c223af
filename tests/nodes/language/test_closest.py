import pytest
from hypothesis import given, strategies as st

from nodes.language.names import SUGGESTIONS, closest_names

KNOWN = frozenset({"read_file", "list_files", "edit_file"})


@pytest.mark.parametrize(
    ("wanted", "names", "closest"),
    [
        ("read", ["read_file", "list_files", "unread"], ("read_file", "unread")),
        ("FILE", ["read_file", "file_b", "FILE_A"], ("FILE_A", "file_b", "read_file")),
        ("raed_file", ["read_file", "write_file"], ("read_file", "write_file")),
        ("calc.txt", ["calc.py", "zebra.md"], ("calc.py",)),
        ("zzz", ["read_file"], ()),
        ("", ["a"], ()),
        ("a", [], ()),
        ("a", ["a1", "a2", "a3", "a4"], ("a1", "a2", "a3")),
        ("ab", ["abcdef", "abc"], ("abc", "abcdef")),
    ],
)
def test_the_closest_names_come_first(wanted: str, names: list[str], closest: tuple[str, ...]) -> None:
    assert closest_names(wanted, names) == closest


@given(wanted=st.text(max_size=8), names=st.lists(st.text(max_size=8), max_size=8))
def test_suggestions_are_few_existing_and_do_not_depend_on_order(wanted: str, names: list[str]) -> None:
    found = closest_names(wanted, names)
    assert (set(found) <= set(names), len(found) <= SUGGESTIONS) == (True, True)
    assert found == closest_names(wanted, reversed(names))


@given(wanted=st.text(min_size=1, max_size=8))
def test_a_name_that_exists_is_the_first_suggestion(wanted: str) -> None:
    assert closest_names(wanted, [f"{wanted}x", wanted])[0] == wanted


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("read", ("read_file",)),
        ("readFile", ("read_file", "edit_file")),
        ("functions.list-files", ("list_files",)),
        ("raed_file", ("read_file", "edit_file")),
        ("files", ("list_files",)),
        ("zzz", ()),
        ("", ()),
        ("_", ()),
    ],
)
def test_the_closest_tools_come_first(name: str, expected: tuple[str, ...]) -> None:
    assert closest_names(name, KNOWN)[: len(expected) or None] == expected


def test_at_most_three_names_are_close() -> None:
    assert closest_names("read", frozenset({"read_a", "read_b", "read_cc", "read_ddd"})) == (
        "read_a",
        "read_b",
        "read_cc",
    )
