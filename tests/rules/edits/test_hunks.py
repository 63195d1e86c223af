"""A change with only some hunks of its diff."""

from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.edits.diffs import change_diff, count_hunks, with_hunks
from mendgraph.nodes.guard.approval_formats import hunk_texts
from mendgraph.nodes.workspace.files.workspace import DryChange
from tests.row_tables import rows
from tests.rules.edits.test_diffs import applied

# Lines of files that look like parts of a diff do not change the numbers of its hunks.
LINES = ["a", "b", "c", "-- a/f.py", "++ b/f.py", "@@ -1 +1 @@", "\\ No newline at end of file", ""]
FILE = [f"{number}" for number in range(30)]
EDITS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 2), st.lists(st.sampled_from(LINES), max_size=2)), max_size=4
)


def text_file(lines: list[str], newline: str, *, ended: bool) -> bytes:
    return (newline.join(lines) + (newline if ended and lines else "")).encode()


def edited(lines: list[str], edits: list[tuple[int, int, list[str]]]) -> list[str]:
    result = list(lines)
    for start, count, new in edits:
        result[start : start + count] = new
    return result


def file_edit(name: str, before: bytes | None, after: bytes | None, target: str = "") -> DryChange:
    return DryChange(name, name, target, before, after, "")


CHANGES = st.builds(
    lambda edits, newline, first, second: file_edit(
        "f.py", text_file(FILE, newline, ended=first), text_file(edited(FILE, edits), newline, ended=second)
    ),
    EDITS,
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(CHANGES, min_size=1, max_size=2), st.sets(st.integers(1, 8)))
def test_chosen_hunks_are_those_with_their_numbers_in_the_shown_diff(
    changes: list[DryChange], chosen: set[int]
) -> None:
    shown = hunk_texts("".join(map(change_diff, changes)))
    last = 0

    for change, part in zip(changes, with_hunks(changes, chosen), strict=True):
        numbers = range(last + 1, last + 1 + count_hunks([change]))
        last += len(numbers)
        texts = [shown[number - 1] for number in numbers if number in chosen]
        assert (part is None) is (texts == [])
        assert lines_of(part.after if part else change.before) == lines_with(change.before, texts)

    assert last == len(shown)


def lines_of(data: bytes | None) -> list[str]:
    """The lines, all ended by LF."""
    lines = (data or b"").decode().replace("\r\n", "\n").split("\n")
    return [f"{line}\n" for line in (lines if lines[-1] else lines[:-1])]


def lines_with(before: bytes | None, hunks: list[str]) -> list[str]:
    """The lines after these hunks of a shown diff, as `patch` applies them."""
    diff = "--- a/f.py\n+++ b/f.py\n" + "".join(f"@@ {hunk.partition('@@ ')[2]}" for hunk in hunks)
    return applied(lines_of(before), diff.replace("\n\\ No newline at end of file\n", "\n"))


@given(st.lists(CHANGES, min_size=1, max_size=2), st.sets(st.integers(1, 8)))
def test_all_hunks_are_the_whole_change_none_is_no_change_and_the_rest_completes_a_part(
    changes: list[DryChange], chosen: set[int]
) -> None:
    count = sum(count_hunks([change]) for change in changes)
    complete = [change if count_hunks([change]) else None for change in changes]
    assert with_hunks(changes, range(1, count + 1)) == complete
    assert with_hunks(changes, ()) == [None] * len(changes)

    for change, part in zip(changes, with_hunks(changes, chosen), strict=True):
        if part is not None:
            rest = change._replace(before=part.after)
            assert with_hunks([rest], range(1, count_hunks([rest]) + 1)) in ([rest], [None])


TWELVE = "".join(f"{number}\n" for number in range(12))
BOTH = TWELVE.replace("1\n", "one\n", 1).replace("10\n", "ten\n")


@rows(
    (TWELVE, BOTH, {1}, TWELVE.replace("1\n", "one\n", 1)),
    (TWELVE, BOTH, {2}, TWELVE.replace("10\n", "ten\n")),
    ("\ufeff" + TWELVE, "\ufeff" + BOTH, {1}, "\ufeff" + TWELVE.replace("1\n", "one\n", 1)),
    (TWELVE, BOTH[:-1], {1}, TWELVE.replace("1\n", "one\n", 1)),
    (TWELVE[:-1], BOTH, {1}, TWELVE[:-1].replace("1\n", "one\n", 1)),
    (TWELVE[:-1], BOTH, {2}, TWELVE.replace("10\n", "ten\n")),
    (TWELVE, "new\n" + TWELVE + "end", {2}, TWELVE + "end"),
    (
        TWELVE.replace("\n", "\r\n"),
        BOTH.replace("\n", "\r\n"),
        {2},
        TWELVE.replace("10\n", "ten\n").replace("\n", "\r\n"),
    ),
    (
        TWELVE.replace("\n", "\r\n"),
        BOTH,
        {1},
        TWELVE.replace("\n", "\r\n").replace("0\r\n1\r\n2\r\n3\r\n4\r\n", "0\none\n2\n3\n4\n"),
    ),
)
def test_part_keeps_the_bytes_outside_of_its_hunks(before: str, after: str, chosen: set[int], text: str) -> None:
    [part] = with_hunks([file_edit("f.py", before.encode(), after.encode())], chosen)
    assert part is not None
    assert (part.after or b"").decode() == text


TWO_HUNKS = file_edit("f.py", TWELVE.encode(), BOTH.encode())
NEW = file_edit("new.py", None, b"a\n")
OLD = file_edit("old.py", b"a\n", None)


@rows(
    ([TWO_HUNKS, NEW, OLD], 4),
    ([NEW], 1),
    ([TWO_HUNKS, file_edit("f.py", TWELVE.encode(), BOTH.encode(), "g.py")], 0),
    ([TWO_HUNKS, file_edit("new.py", None, b"")], 0),
    ([TWO_HUNKS, file_edit("a.png", b"\x00", b"\x00\x01")], 0),
)
def test_hunks_are_counted_unless_a_change_has_none_or_is_a_move(changes: list[DryChange], count: int) -> None:
    assert count_hunks(changes) == count


def test_name_of_a_file_cannot_look_like_a_hunk() -> None:
    change = TWO_HUNKS._replace(name="a\n@@ -1,2 +1,2 @@\nb.py")
    shown = change_diff(change)
    assert (count_hunks([change]), len(hunk_texts(shown))) == (2, 2)
    assert shown.startswith("--- a/a\\n@@ -1,2 +1,2 @@\\nb.py\n")


def test_new_and_deleted_files_are_one_hunk_each() -> None:
    assert with_hunks([TWO_HUNKS, NEW, OLD], {3}) == [None, NEW, None]
    assert with_hunks([TWO_HUNKS, NEW, OLD], {1, 2, 4}) == [TWO_HUNKS, None, OLD]
