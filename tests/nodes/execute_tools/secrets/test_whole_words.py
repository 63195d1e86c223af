import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.redact import MARK, PLACEHOLDER, Redactor
from nodes.execute_tools.secrets.whole_words import MARGIN, first_words, whole_words
from tests.nodes.execute_tools.secrets.samples import BLOCKS, MIXED

TOKEN = "".join(("gh", "p_", MIXED[:36]))
NAMED = 'password = "x8K!qP2zzz"'
ONE_LINE_KEY = BLOCKS[0].replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "start", "end", "piece"),
    [
        ("one two three", 0, 13, ("one two three", 0, 13)),
        ("one two three", 0, 3, ("one", 0, 3)),
        ("one two three", 0, 6, ("one ", 0, 4)),
        ("one two three", 4, 7, ("two", 4, 7)),
        ("one two three", 5, 13, (" three", 7, 13)),
        ("one two three", 5, 6, ("", 7, 7)),
        ("f(one,two;[x])", 3, 12, (",two;[x", 5, 12)),
        ('a="one two" b', 3, 9, (" ", 6, 7)),
        ("三个字和一个字", 2, 4, ("字和", 2, 4)),
        ("x" * 50, 0, 40, ("", 0, 0)),
        ("x" * 50, 10, 50, ("", 50, 50)),
        (f"a {TOKEN} b", 0, 10, (f"a {MARK}", 0, 42)),
        (f"a {TOKEN} b", 10, 44, (f"{MARK} b", 2, 44)),
        (f"a {TOKEN} b", 10, 20, (MARK, 2, 42)),
        (f"a {TOKEN} b", 0, 2, ("a ", 0, 2)),
        (f"a {TOKEN} b", 42, 44, (" b", 42, 44)),
        (f"{NAMED} b", 3, 25, (' = "' + MARK + '" b', 8, 25)),
        (f"{NAMED} b", 12, 25, (f'{MARK}" b', 12, 25)),
        (f"{NAMED} b", 15, 25, (f'{MARK}" b', 12, 25)),
        (f"a {ONE_LINE_KEY} b", 60, 120, (MARK, 2, 2 + len(ONE_LINE_KEY))),
    ],
)
def test_pieces(text: str, start: int, end: int, piece: tuple[str, int, int]) -> None:
    assert whole_words(text, start, end) == piece


def test_a_secret_is_the_mark_that_is_asked_for() -> None:
    assert first_words(f"a {TOKEN} b", 5, PLACEHOLDER) == f"a {PLACEHOLDER}"


@pytest.mark.parametrize(("most", "shown"), [(13, "one two three"), (12, "one two "), (2, "")])
def test_first_words(most: int, shown: str) -> None:
    assert first_words("one two three", most) == shown


def test_a_short_text_is_the_same_object() -> None:
    text = f"{TOKEN} b"
    assert first_words(text, len(text)) is text


def test_what_stands_far_away_is_not_looked_at() -> None:
    """A text of any length takes as much time as its piece."""
    far = "a " * MARGIN
    assert whole_words(f"{NAMED} {far}{far}{far}{far}{NAMED}", 4 * MARGIN, 4 * MARGIN + 20)[0].split() == ["a"] * 10


def test_what_cannot_be_looked_through_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(Redactor, "spans", fail)
    assert whole_words("one two three", 4, 7) == (MARK, 4, 7)


@given(
    st.lists(
        st.sampled_from(["a", " ", "bc ", ", ", "(", ")", '"', TOKEN, f" {TOKEN} ", NAMED, f" {NAMED} "]), max_size=30
    ),
    st.integers(0, 400),
    st.integers(0, 400),
)
def test_no_part_of_a_secret_is_shown(parts: list[str], start: int, length: int) -> None:
    text = "".join(parts)
    start = min(start, len(text))
    piece, begins, ends = whole_words(text, start, min(len(text), start + length))
    assert 0 <= begins <= ends <= len(text)
    bare = piece.replace(MARK, "")
    assert TOKEN[4:10] not in bare or TOKEN[4:10] in Redactor().text(text)
    assert "8K!qP2" not in bare or "8K!qP2" in Redactor().text(text)
