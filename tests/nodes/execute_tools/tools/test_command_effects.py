import os
from typing import Any

import pytest

from nodes.execute_tools.environment.change_records import UNKNOWN_SHA256, FileState
from nodes.execute_tools.environment.command_changes import CommandChange, CommandChanges
from nodes.execute_tools.tools import command_effects
from nodes.execute_tools.tools.command_effects import MOST_CHANGES, MOST_DIFF_CHARACTERS, file_changes, shown
from nodes.execute_tools.tools.diffs import unified_diff
from nodes.execute_tools.tools.saving import file_change
from nodes.records import ChangeKind, FileChange
from tests.nodes.execute_tools.environment.layout import sha

NO_FILE = FileState()
UNKNOWN = FileState(UNKNOWN_SHA256, 0o644)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, which stands at the number in the list."""
    now = [0.0]
    monkeypatch.setattr(command_effects, "monotonic_s", lambda: now[0])
    return now


def change(path: str, kind: ChangeKind, before: bytes | None, after: bytes | None) -> CommandChange:
    states = [NO_FILE if data is None else FileState(sha(data), 0o644) for data in (before, after)]
    return CommandChange(path, kind, states[0], states[1], before, after)


def created(path: str, text: str) -> CommandChange:
    return change(path, ChangeKind.CREATED, None, text.encode())


def told(*changes: CommandChange) -> tuple[FileChange, ...]:
    return file_changes(CommandChanges(changes))


@pytest.mark.parametrize(
    ("kind", "before", "after", "diff"),
    [
        (ChangeKind.EDITED, b"1\n", b"2\n", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n"),
        (ChangeKind.CREATED, None, b"1\n", "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+1\n"),
        (ChangeKind.DELETED, b"1\n", None, "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"),
        (ChangeKind.CREATED, None, b"", ""),
        (ChangeKind.EDITED, b"1\n", b"1\n", ""),
        (ChangeKind.EDITED, b"1\n", b"\0", ""),
        (ChangeKind.EDITED, b"\xff", b"1\n", ""),
    ],
)
def test_a_change_is_told_with_its_hashes_and_a_diff_of_its_texts(
    kind: ChangeKind, before: bytes | None, after: bytes | None, diff: str
) -> None:
    hashes = ["" if data is None else sha(data) for data in (before, after)]
    assert told(change("x", kind, before, after)) == (
        FileChange(path="x", kind=kind, sha256_before=hashes[0], sha256_after=hashes[1], diff=diff),
    )


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (ChangeKind.CREATED, NO_FILE, UNKNOWN),
        (ChangeKind.EDITED, UNKNOWN, UNKNOWN),
        (ChangeKind.DELETED, UNKNOWN, NO_FILE),
    ],
)
def test_what_was_not_looked_at_has_no_hash_and_no_diff(kind: ChangeKind, before: FileState, after: FileState) -> None:
    assert told(CommandChange("x", kind, before, after)) == (
        FileChange(path="x", kind=kind, sha256_before=before.sha256, sha256_after=after.sha256, diff=""),
    )


def test_a_name_that_is_no_text_is_shown_as_one() -> None:
    assert shown(os.fsdecode(b"a\xff")) == "a\\udcff"
    assert [each.path for each in told(created(os.fsdecode(b"a\xff"), ""))] == ["a\\udcff"]


def test_many_changes_are_told_up_to_a_bound() -> None:
    names = [f"{number:03}" for number in range(MOST_CHANGES + 1)]
    assert [each.path for each in told(*(created(name, "") for name in names))] == names[:-1]


def test_diffs_are_told_up_to_a_bound() -> None:
    text = "".join(f"{'x' * 150}{number}\n" for number in range(1_000))
    changes = told(*(created(name, text) for name in "abcdefgh"), created("small", "x\n"))
    assert [bool(each.diff) for each in changes] == [*[True] * 5, *[False] * 3, True]
    assert changes[0].diff == unified_diff("a", None, text)
    assert sum(len(each.diff) for each in changes) <= MOST_DIFF_CHARACTERS


def test_no_more_diffs_are_made_when_the_time_for_them_is_over(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*arguments: Any) -> FileChange:
        clock[0] += 0.16
        return file_change(*arguments)

    monkeypatch.setattr(command_effects, "file_change", slowly)
    assert [bool(each.diff) for each in told(*(created(name, "x\n") for name in "abcd"))] == [True, True, False, False]
