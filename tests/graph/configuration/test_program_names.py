"""What can be the name of a program."""

import pytest

from graph.configuration.program_names import program_problem


@pytest.mark.parametrize("entry", ["make", ".venv/bin/pytest", "/usr/bin/python3.11", "g++", "a-b_c"])
def test_a_name_or_a_path_alone_is_a_program(entry: str) -> None:
    assert program_problem(entry) is None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("make all", "'make all' is not one program: give the program alone, 'make'"),
        ("-x", "'-x' is not one program: give a name such as make, or a path such as .venv/bin/pytest"),
        ("", "'' is not one program: give a name such as make, or a path such as .venv/bin/pytest"),
        ("a;b", "'a;b' is not one program: give a name such as make, or a path such as .venv/bin/pytest"),
        ("a\x1b b\u202e", "'a\\x1b b\\u202e' is not one program: give the program alone, 'a\\x1b'"),
    ],
)
def test_what_only_a_shell_understands_is_none(entry: str, problem: str) -> None:
    assert program_problem(entry) == problem


def test_a_long_entry_is_cut() -> None:
    found = program_problem("a " * 500)
    assert found is not None
    assert len(found) < 140
