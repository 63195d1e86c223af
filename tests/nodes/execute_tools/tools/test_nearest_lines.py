import pytest

from nodes.execute_tools.tools.nearest_lines import MAX_REGION_CHARACTERS, MAX_REGIONS, Region, nearest_regions

CODE = "def add(a, b):\r\n    return a - b\r\n\r\n\r\ndef sub(a, b):\r\n    return a + b\r\n"


def places(text: str, wanted: str) -> list[tuple[int, int, str]]:
    return [(region.first, region.last, region.text) for region in nearest_regions(text, wanted)]


@pytest.mark.parametrize(
    ("wanted", "best"),
    [
        ("def add(a,b):\n  return a-b\n", (1, 2, "def add(a, b):\n    return a - b")),
        ("return a  +  b", (6, 6, "    return a + b")),
        ("def sub(x, y):", (5, 5, "def sub(a, b):")),
    ],
)
def test_the_nearest_lines_come_first_and_as_they_are(wanted: str, best: tuple[int, int, str]) -> None:
    assert places(CODE, wanted)[0] == best


@pytest.mark.parametrize(("text", "wanted"), [("", "x = 1"), (CODE, "\n \n"), (CODE, "import zlib, turtle")])
def test_nothing_near_gives_nothing(text: str, wanted: str) -> None:
    assert nearest_regions(text, wanted) == ()


def test_regions_are_few_and_apart() -> None:
    text = "".join(f"value_{index} = compute({index})\n" for index in range(10_000))
    regions = nearest_regions(text, "value_77 = compute(78)\nvalue_78 = compute(79)")
    assert len(regions) == MAX_REGIONS
    assert all(one.last < other.first or other.last < one.first for one in regions for other in regions if one != other)


def test_a_long_line_is_cut() -> None:
    assert nearest_regions("x" * 5000, "x" * 300) == (Region(1, 1, "x" * MAX_REGION_CHARACTERS, 100.0),)
