from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.edits.exact_edits import (
    Match,
    Replacement,
    Spot,
    Tier,
    find_loosely,
    find_spots,
    nearest_region,
    replace_spots,
    replace_text,
)
from mendgraph.nodes.execute_tools.secrets.redact import MARK
from mendgraph.nodes.records import invalid
from tests.row_tables import rows
from tests.rules.secrets.samples import BASE64, BLOCKS

CODE = "def add(a, b):\r\n    return a - b\r\n\r\n\r\ndef sub(a, b):\r\n    return a + b\r\n"


@rows(
    ("def add(a,b):\n  return a-b\n", (1, 2, "def add(a, b):\n    return a - b")),
    ("def sub(x, y):", (5, 5, "def sub(a, b):")),
    ("something else entirely", None),
)
def test_nearest_lines_are_shown_verbatim(old_text: str, best: tuple[int, int, str] | None) -> None:
    assert nearest_region(CODE, old_text) == (best and (*best, False))


def test_private_key_lines_are_redacted_in_the_nearest_region() -> None:
    lines = f'KEY = """{BLOCKS[0]}"""\r\nlimit = 10\r\n'
    assert nearest_region(lines, f"{BASE64[:-3]}x\n{BASE64[::-1]}") == (2, 3, f"{MARK}\n{MARK}", False)


CLASS = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"

F, THREE = "def f(self):\n    ", "x = 3\n\n        return x"
BLANKS, INDENT = Tier.TRAILING_BLANKS, Tier.INDENTATION


@rows(
    ("a\nb\nc\n", "a  \nb", "x\ny", BLANKS, "x\ny\nc\n"),
    ("a\nb", "b\n", "y\nz\n", BLANKS, "a\ny\nz"),
    ("f()\nfa()\n", "f()   ", "g()", BLANKS, "g()\nfa()\n"),
    ("a\n    b\n", "a \n    ", "x\n    ", BLANKS, "x\n    b\n"),
    (CLASS, f"{F}return 1\n", f"{F}x = 3\n\n    return x\n", INDENT, CLASS.replace("return 1", THREE)),
    ("  a\n    b  \nc", "a \n  b", "x", INDENT, "  x\nc"),
    ("a\nb\n", "  a\n", "", INDENT, "b\n"),
)
def test_loose_match_is_unique(text: str, old_text: str, replacement: str, tier: Tier, result: str) -> None:
    assert list(find_spots(text, old_text)) == []
    match = find_loosely(text, old_text, replacement)
    assert match is not None
    assert (match.tier, len(match.spots)) == (tier, 1)
    assert replace_spots(text, match.spots, match.replacement) == result


@rows(
    ("a\n", "", "x"),
    (CLASS, "\tdef g(self):\n\t\treturn 2", "x"),
    (CLASS, "  def g(self):\n     return 2", "x"),
    ("a = [1, 2]\n", "a = [1,2]", "x"),
    ("a\n  b\n", "   a\n     b", "  less indented"),
    ("  a\n\n  b\n", "\nb\n", "\n  as the file, or deeper\n"),
)
def test_text_that_differs_too_much_does_not_match(text: str, old_text: str, replacement: str) -> None:
    assert find_loosely(text, old_text, replacement) is None


@rows(
    ("a \nb\na\t\nb\n", "a\nb  ", Match(BLANKS, (Spot(0, 4, 1), Spot(5, 9, 3)), "x")),
    ("  a\n    a\n", "      a", Match(INDENT, (Spot(0, 3, 1), Spot(4, 9, 2)), "x")),
)
def test_all_loose_matches_of_one_tier_are_listed(text: str, old_text: str, match: Match) -> None:
    replacement = "x" if match.tier is BLANKS else "    x"
    assert find_loosely(text, old_text, replacement) == match


def test_search_for_a_highly_repetitive_block_is_bounded() -> None:
    text = "    f()\n" * 20_000
    match = find_loosely(text, "f()\n" * 10_000, "x\n")
    assert match is not None
    assert len(match.spots) > 1


LINES = st.lists(st.sampled_from(["a", "b", "  a", "    b", "a  ", "b\t", "", "  ", "    "]), max_size=8)

TIER_TEXTS = st.builds(
    lambda lines, newline, end: newline.join(lines) + end,
    LINES,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\n"]),
)

WANTED = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(["", "\n"]))

NEW = st.sampled_from(["N", "  N\n    N", "N\n", "", "\n  N\n"])


@given(TIER_TEXTS, WANTED, NEW)
def test_unique_exact_match_is_always_replaced(text: str, old_text: str, new: str) -> None:
    spots = list(find_spots(text, old_text))
    edited = replace_text(text, "a", old_text, new, replace_all=False)
    if len(spots) == 1 and isinstance(edited, Replacement):
        assert edited.tier is Tier.EXACT
        assert edited.text == replace_spots(text, spots, new)
    elif spots:
        assert not isinstance(edited, Replacement)


@rows(
    ("b", "b", "old_str and new_str are equal, so the edit would change nothing."),
    ("a\n", "a\r\n", "old_str and new_str differ only in their line ends, which a keeps: nothing would change."),
    ("a \n", "a\n", "new_str is already there, at line 1 of a: nothing would change."),
)
def test_edit_that_changes_nothing_is_refused(old: str, new: str, message: str) -> None:
    assert replace_text("a\nb\n", "a", old, new, replace_all=False) == invalid(message)
