"""One diff for each file: undoing is the inverse of diffing, and what cannot be proved is shown as it was recorded."""

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from graph.combined_diff import combined_diffs, undo
from nodes.execute_tools.tools.diffs import unified_diff
from nodes.records import ChangeKind, FileChange

TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "x = 1\n", "- d\n"]), max_size=30).flatmap(
    lambda lines: st.sampled_from(["", "end"]).map(lambda last: "".join(lines) + last)
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def change(before: str | None, after: str, path: str = "calc.py") -> FileChange:
    return FileChange(
        path=path,
        kind=ChangeKind.CREATED if before is None else ChangeKind.EDITED,
        sha256_before="" if before is None else sha256(before),
        sha256_after=sha256(after),
        diff=unified_diff(path, before, after),
    )


def changes(*texts: str | None) -> list[FileChange]:
    return [change(before, after or "") for before, after in pairwise(texts)]


@given(TEXTS, TEXTS)
def test_undoing_a_diff_gives_the_text_before_it(before: str, after: str) -> None:
    assert undo(after, unified_diff("calc.py", before, after)) == before


@given(st.lists(TEXTS, min_size=2, max_size=5))
def test_many_changes_of_a_file_are_one_diff(texts: list[str]) -> None:
    expected = unified_diff("calc.py", texts[0], texts[-1])
    assert combined_diffs(changes(*texts), lambda _: texts[-1].encode()) == [expected] * bool(expected)


@given(TEXTS, TEXTS)
def test_a_file_that_was_created_and_then_changed_is_new(first: str, last: str) -> None:
    expected = unified_diff("calc.py", None, last)
    assert combined_diffs(changes(None, first, last), lambda _: last.encode()) == [expected] * bool(expected)


@pytest.mark.parametrize("now", [None, b"somebody else was here\n", b"\xff\xfe"])
def test_what_cannot_be_proved_is_shown_as_it_was_recorded(now: bytes | None) -> None:
    recorded = changes("1\n", "2\n", "3\n")
    assert combined_diffs(recorded, lambda _: now) == [recorded[0].diff + recorded[1].diff]


def test_a_diff_that_was_cut_is_no_proof() -> None:
    long = "".join(f"line {number}\n" for number in range(500))
    recorded = changes("1\n", long, "3\n")
    assert combined_diffs(recorded, lambda _: b"3\n") == [recorded[0].diff + recorded[1].diff]


def test_a_file_that_is_no_text_is_shown_as_it_was_recorded() -> None:
    last = change("b\n", "c\n").model_copy(update={"sha256_after": hashlib.sha256(b"\xff").hexdigest()})
    recorded = [change("a\n", "b\n"), last]
    assert combined_diffs(recorded, lambda _: b"\xff") == [recorded[0].diff + recorded[1].diff]


WINDOWS = "a\r\nb\r\n"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([WINDOWS, "a\r\nc\r\n"], "[line ends: CRLF, kept]\n"),
        ([WINDOWS, "a\r\nc\r\n", "d\r\nc\r\n"], "[line ends: CRLF, kept]\n"),
        ([WINDOWS, "a\nc\n"], "[line ends changed from CRLF to LF]\n"),
        (["a\nb\n", "a\r\nc\r\n"], "[line ends changed from LF to CRLF]\n"),
        (["a\nb\n", "a\nc\n"], ""),
        ([None, WINDOWS], "[line ends: CRLF]\n"),
        ([None, "a\n"], ""),
        (["a\r\nb\nc\n", "a\r\nb\nd\n"], "[line ends: CRLF and LF]\n"),
        (["only", "a\r\n"], "[line ends: CRLF]\n"),
    ],
)
def test_what_became_of_line_ends_is_a_remark_below_the_diff(texts: list[str | None], expected: str) -> None:
    (diff,) = combined_diffs(changes(*texts), lambda _: (texts[-1] or "").encode())
    assert diff == unified_diff("calc.py", texts[0], texts[-1] or "") + expected
    assert "\r" not in diff


def test_a_file_of_which_only_the_line_ends_changed_says_so() -> None:
    assert combined_diffs(changes(WINDOWS, "a\nb\n"), lambda _: b"a\nb\n") == [
        "[calc.py: line ends changed from CRLF to LF]\n"
    ]


@given(TEXTS, TEXTS)
def test_a_file_of_windows_has_the_same_diff(before: str, after: str) -> None:
    windows = [text.replace("\n", "\r\n") for text in (before, after)]
    shown = "".join(combined_diffs(changes(*windows), lambda _: windows[1].encode()))
    assert shown.startswith(unified_diff("calc.py", before, after))
    assert "\r" not in shown


def test_files_come_in_the_order_of_their_first_change() -> None:
    recorded = [change("1\n", "2\n", "b.py"), change("1\n", "2\n", "a.py"), change("2\n", "3\n", "b.py")]
    diffs = combined_diffs(recorded, {"b.py": b"3\n", "a.py": b"2\n"}.get)
    assert diffs == [unified_diff("b.py", "1\n", "3\n"), unified_diff("a.py", "1\n", "2\n")]
