"""Texts and changes between the tools and the disk."""

import pytest

from mendgraph.nodes.execute_tools.commands.command_changes import CommandChange, CommandChanges
from mendgraph.nodes.execute_tools.edits.diffs import unified_diff
from mendgraph.nodes.execute_tools.registry import ToolContext
from mendgraph.nodes.execute_tools.tools.saving import (
    MOST_CHANGES,
    MOST_DIFF_CHARACTERS,
    LoadedText,
    file_changes,
    load_text,
    save_text,
    shown_unread,
)
from mendgraph.nodes.records import FileChange, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.change_records import FileEffect, FileState
from tests.workspace.conftest import Bench
from tests.workspace.files.layout import code_of, sha


def test_file_changed_or_deleted_after_loading_is_not_written(bench: Bench) -> None:
    bench.put({"a.py": "mine\n"})
    context = ToolContext(bench.workspace)
    before = load_text(context, "a.py")
    assert isinstance(before, LoadedText)

    bench.put({"a.py": "theirs\n"})
    assert code_of(save_text(context, "a.py", "new\n", before)) is ToolErrorCode.CONFLICT
    assert bench.bytes_of("a.py") == b"theirs\n"

    (bench.root / "a.py").unlink()
    assert isinstance(shown_unread(context, before), ToolError)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the clock advances at each reading."""
    step, now = [0.0], [0.0]

    def look() -> float:
        now[0] += step[0]
        return now[0]

    monkeypatch.setattr("mendgraph.nodes.execute_tools.tools.saving.monotonic_s", look)
    return step


def changes_of(**texts: str) -> tuple[FileChange, ...]:
    """The reported changes of a command that creates these files."""
    changes = [
        CommandChange(FileEffect(path, FileState(), FileState(sha(text.encode()), 0o644)), None, text.encode())
        for path, text in texts.items()
    ]
    return file_changes(CommandChanges(tuple(changes)))


def test_number_of_reported_changes_is_bounded() -> None:
    names = [f"{number:03}" for number in range(MOST_CHANGES + 1)]
    assert [change.path for change in changes_of(**dict.fromkeys(names, ""))] == names[:-1]


def test_size_of_reported_diffs_is_bounded() -> None:
    text = "".join(f"{'x' * 150}{number}\n" for number in range(1_000))
    changes = changes_of(**dict.fromkeys("abcdefgh", text), small="x\n")
    assert [bool(change.diff) for change in changes] == [*[True] * 5, *[False] * 3, True]
    assert changes[0].diff == unified_diff("a", None, text)
    assert sum(len(change.diff) for change in changes) <= MOST_DIFF_CHARACTERS


def test_time_for_diffs_is_bounded(clock: list[float]) -> None:
    clock[0] = 0.08
    changes = changes_of(**dict.fromkeys("abcdefgh", "x\n"))
    assert [bool(changes[0].diff), bool(changes[-1].diff)] == [True, False]
