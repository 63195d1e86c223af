"""Which cassettes no test plays, as far as one can see."""

import pytest

from graph.cassettes.orphans import orphans

MODULE = """
import pytest

@pytest.mark.mendgraph_cassette("sums")
def test_adds(): ...

class TestBig:
    async def test_adds(self): ...

CASES = [f"{scenario}/text" for scenario in ("repair", "loop")]
OTHER = "whole/name"
"""


@pytest.mark.parametrize(
    ("cassette", "alone"),
    [
        ("tests/test_calc/test_adds.yaml", False),
        ("tests/test_calc/sums.yaml", False),
        ("tests/test_calc/sums-one.yaml", False),
        ("tests/test_calc/TestBig.test_adds.yaml", False),
        ("tests/test_calc/test_adds-one-two.yaml", False),
        ("tests/test_calc/test_addsup.yaml", True),
        ("tests/test_calc/test_gone.yaml", True),
        ("tests/test_gone/test_adds.yaml", True),
        ("repair/text.yaml", False),
        ("other/text.yaml", True),
        ("whole/name.yaml", False),
        ("whole/other.yaml", True),
        ("sums.yaml", False),
        ("lonely.yaml", True),
    ],
)
def test_a_cassette_is_played_by_what_names_it(cassette: str, alone: bool) -> None:
    assert orphans([cassette], {"tests/test_calc.py": MODULE}) == [cassette] * alone


def test_a_module_that_cannot_be_read_plays_its_own() -> None:
    names = ["tests/test_calc/a.yaml", "b.yaml"]
    assert orphans(names, {"tests/test_calc.py": "def ("}) == ["b.yaml"]


def test_without_tests_all_are_orphans() -> None:
    assert orphans(["a.yaml"], {}) == ["a.yaml"]
