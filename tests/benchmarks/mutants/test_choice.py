from benchmarks.mutants.choice import chosen
from benchmarks.mutants.mutation import mutants_of

SOURCE = "def f(a, b):\n    return a + b - 1\n\n\ndef g():\n    return [1, 2, 3]\n"


def test_a_change_elsewhere_in_the_file_chooses_no_other_mutants() -> None:
    moved = f"import a\n\n\n{SOURCE}"
    before = [(each.function, each.text) for each in chosen(mutants_of("a.py", SOURCE), SOURCE, 3)]
    after = [(each.function, each.text) for each in chosen(mutants_of("a.py", moved), moved, 3)]
    assert after == before
