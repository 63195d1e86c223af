import pytest

from benchmarks.mutants.mutation import Mutant, is_another_program, mutants_of
from tests.architecture.house import text_of

SOURCE = """LIMIT = 3

class Box:
    size: int = 1

    @property
    def full(self, most=2):
        def inner():
            return self.size + 1
        return inner() >= most
"""


def test_each_mutant_is_one_change_and_knows_its_function() -> None:
    found = [(each.function, *each.lines(SOURCE)) for each in mutants_of("box.py", SOURCE)]
    full = "Box.full"
    assert found == [
        (None, 1, "LIMIT = 3", "LIMIT = None"),
        (None, 1, "LIMIT = 3", "LIMIT = 4"),
        (None, 4, "size: int = 1", "size: int = None"),
        (None, 4, "size: int = 1", "size: int = 2"),
        (None, 7, "def full(self, most=2):", "def full(self, most=3):"),
        (full, 9, "return self.size + 1", "return self.size - 1"),
        (full, 9, "return self.size + 1", "return self.size + 2"),
        (full, 10, "return inner() >= most", "return inner() > most"),
    ]


def test_a_change_over_several_lines_is_shown_with_all_of_them() -> None:
    source = "def f():\n    return g(\n        a,\n        b,\n    )\n"
    found = [each.lines(source) for each in mutants_of("f.py", source)]
    assert found == [(3, "a,", "None,"), (4, "b,", "None,"), (3, "a,", ""), (4, "b,", "")]


def test_a_case_is_taken_away_at_its_indentation() -> None:
    head = "def f(a):\n    if a:\n        match a:\n"
    first, second = (f"            case {b}:\n                c\n" for b in "bd")
    source = head + first + second
    assert [each.applied(source) for each in mutants_of("f.py", source)] == [head + second, head + first]


def test_places_are_counted_in_bytes() -> None:
    source = "def f():\n    return 'Æther', 'é', 1\n"
    found = {each.applied(source).splitlines()[1].strip() for each in mutants_of("f.py", source)}
    assert found == {
        "return 'XXÆtherXX', 'é', 1",
        "return 'Æther', 'XXéXX', 1",
        "return 'Æther', 'é', 2",
    }


@pytest.mark.parametrize(("text", "program"), [("y", True), ("x", False), ("(", False)])
def test_a_mutant_is_python_and_another_text(text: str, program: bool) -> None:
    assert is_another_program(Mutant("a.py", 0, 1, text, None), "x\n") is program


def test_every_mutant_of_a_real_file_changes_its_own_place_only() -> None:
    source = text_of("nodes/loop_check/repetition.py")
    before = source.encode()
    for mutant in mutants_of("a.py", source):
        after = mutant.applied(source).encode()
        assert before[: mutant.start] == after[: mutant.start]
        assert before[mutant.end :] == after[len(after) - len(before) + mutant.end :]
        assert is_another_program(mutant, source)
