import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools.text_edits import Spot, find_spots, replace_spots
from nodes.execute_tools.tools.text_files import to_unix

TEXTS = st.lists(st.sampled_from(["a", "b", "\n", "\r\n"]), max_size=30).map("".join)
WORDS = st.text(alphabet="ab\n", min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("text", "wanted", "spots"),
    [
        ("abc", "b", [Spot(1, 2, 1)]),
        ("a\nb\na\n", "a\n", [Spot(0, 2, 1), Spot(4, 6, 3)]),
        ("aaa", "aa", [Spot(0, 2, 1), Spot(1, 3, 1)]),
        ("a\r\nb\r\nc", "a\nb", [Spot(0, 4, 1)]),
        ("a\r\nb\r\nc", "\nc", [Spot(4, 7, 2)]),
        ("a\nb", "a\r\nb", [Spot(0, 3, 1)]),
        ("a\r\nb\nc\r\nd", "b\nc\n", [Spot(3, 8, 2)]),
        ("abc", "", []),
        ("abc", "x", []),
        ("a\u2028b", "b", [Spot(2, 3, 1)]),
    ],
)
def test_find(text: str, wanted: str, spots: list[Spot]) -> None:
    assert list(find_spots(text, wanted)) == spots


def test_spots_to_replace_do_not_overlap() -> None:
    assert list(find_spots("aaaa", "aa", overlapping=False)) == [Spot(0, 2, 1), Spot(2, 4, 1)]


@pytest.mark.parametrize(
    ("text", "wanted", "replacement", "result"),
    [
        ("a\r\nb\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\n"),
        ("a\r\nb\r\n", "b", "x\ny", "a\r\nx\r\ny\r\n"),
        ("a\nb\r\nc\r\n", "a\n", "x\ny\n", "x\ny\nb\r\nc\r\n"),
        ("a\nb", "b", "x\r\ny", "a\nx\ny"),
        ("aXbX", "X", "", "ab"),
    ],
)
def test_replace(text: str, wanted: str, replacement: str, result: str) -> None:
    assert replace_spots(text, find_spots(text, wanted, overlapping=False), replacement) == result


@given(TEXTS, WORDS)
def test_every_spot_shows_what_was_wanted_at_its_line(text: str, wanted: str) -> None:
    for spot in find_spots(text, wanted):
        assert to_unix(text[spot.start : spot.end]) == wanted
        assert spot.line == text[: spot.start].count("\n") + 1


@given(TEXTS, WORDS, WORDS)
def test_all_but_the_spots_is_kept_to_the_letter(text: str, wanted: str, replacement: str) -> None:
    spots = list(find_spots(text, wanted, overlapping=False))
    edges = [0, *(edge for spot in spots for edge in spot[:2]), len(text)]
    kept = [text[edges[index] : edges[index + 1]] for index in range(0, len(edges), 2)]
    result = replace_spots(text, spots, replacement)
    position = 0
    for piece in kept:
        position = result.index(piece, position) + len(piece)
    assert to_unix(result) == to_unix(text).replace(wanted, replacement)


@given(TEXTS, WORDS)
def test_replacing_a_text_by_itself_changes_no_line(text: str, wanted: str) -> None:
    assert to_unix(replace_spots(text, find_spots(text, wanted, overlapping=False), wanted)) == to_unix(text)
