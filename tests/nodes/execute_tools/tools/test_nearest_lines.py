import pytest

from nodes.execute_tools.secrets.redact import MARK
from nodes.execute_tools.tools.nearest_lines import MAX_REGION_CHARACTERS, MAX_REGIONS, Region, nearest_regions
from tests.nodes.execute_tools.secrets.samples import BASE64, BLOCKS

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
    shown = "xyz " * (MAX_REGION_CHARACTERS // 4)
    assert nearest_regions("xyz " * 1250, "xyz " * 75) == (Region(1, 1, shown, 100.0),)


def test_no_word_is_cut() -> None:
    shown = "xyz " * (MAX_REGION_CHARACTERS // 4 - 1)
    assert nearest_regions(shown + "quokka-4471", "xyz " * 75) == (Region(1, 1, shown, 100.0),)


def test_the_lines_of_a_private_key_are_marks() -> None:
    lines = f'KEY = """{BLOCKS[0]}"""\r\nlimit = 10\r\n'
    [region] = nearest_regions(lines, f"{BASE64[:-3]}x\n{BASE64[::-1]}")
    assert (region.first, region.last, region.text) == (2, 3, f"{MARK}\n{MARK}")
    [below] = nearest_regions(lines, f"{BASE64[:20]}x==\n-----END\nlimit = 9\n")
    assert (below.first, below.last, below.text) == (4, 6, f'{MARK}\n{MARK}"""\nlimit = 10')
