from pathlib import Path

import pytest

from benchmarks.mutants.explanations import Explanation, explained, read_explanations, stale
from benchmarks.mutants.mutation import Mutant, mutants_of
from tests.architecture.product import ROOT

SOURCE = "def f(a):\n    return a + 1\n"
SUM, NUMBER = mutants_of("f.py", SOURCE)
SOURCES = {"f.py": SOURCE}
WHOLE = Explanation("f.py", "return a + 1", "", "why")
ONE = Explanation("f.py", "return a + 1", "return a + 2", "why")


def test_an_explanation_is_of_a_line_or_of_one_of_its_mutants() -> None:
    assert explained([ONE], [SUM, NUMBER], SOURCES) == {NUMBER: ONE}
    assert explained([WHOLE], [SUM, NUMBER], SOURCES) == {SUM: WHOLE, NUMBER: WHOLE}
    assert explained([Explanation("g.py", "return a + 1", "", "why")], [SUM], SOURCES) == {}


@pytest.mark.parametrize(
    ("explanation", "judged", "survivors", "expected"),
    [
        (ONE, [SUM, NUMBER], [NUMBER], None),
        (ONE, [SUM], [], None),
        (ONE, [SUM, NUMBER], [SUM], "it is killed now"),
        (Explanation("f.py", "return b", "", "why"), [], [], "its line is gone"),
        (Explanation("g.py", "return b", "", "why"), [], [], None),
    ],
    ids=["survives", "not looked at", "killed", "line gone", "another file"],
)
def test_an_explanation_of_what_is_no_longer_so_is_stale(
    explanation: Explanation, judged: list[Mutant], survivors: list[Mutant], expected: str | None
) -> None:
    found = stale([explanation], SOURCES, {"f.py": judged}, survivors)
    assert found == ([(explanation, expected)] if expected else [])


@pytest.mark.parametrize("table", ['file = "f.py"', 'file = "f.py"\nline = "x"\nwhy = ""', 'wy = "?"'])
def test_an_explanation_without_its_reason_is_refused(table: str, tmp_path: Path) -> None:
    file = tmp_path / "explained.toml"
    file.write_text(f"[[survivor]]\n{table}\n")
    with pytest.raises(ValueError, match=r"explained\.toml: "):
        read_explanations(file)


def test_every_explanation_is_of_a_line_that_is_there() -> None:
    explanations = read_explanations()
    sources = {each.file: (ROOT / each.file).read_text(encoding="utf-8") for each in explanations}
    assert stale(explanations, sources, {}, []) == []
