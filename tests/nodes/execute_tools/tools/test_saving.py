from typing import Any

import pytest

from mendgraph.nodes.execute_tools.edits.diffs import file_change, unified_diff
from mendgraph.nodes.execute_tools.files.change_records import FileState
from mendgraph.nodes.execute_tools.processes.command_changes import CommandChange, CommandChanges
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools import saving as command_effects
from mendgraph.nodes.execute_tools.tools.saving import (
    MOST_CHANGES,
    MOST_DIFF_CHARACTERS,
    LoadedText,
    file_changes,
    load_text,
    save_text,
    shown_unread,
)
from mendgraph.nodes.records import ChangeKind, FileChange, ToolError, ToolErrorCode
from tests.nodes.execute_tools.conftest import Bench
from tests.nodes.execute_tools.files.layout import sha


def saved(context: ToolContext, path: str, text: str, before: LoadedText | None, **data: Any) -> ToolOutput:
    done = save_text(context, path, text, before, **data)
    return ToolOutput.failed(done) if isinstance(done, ToolError) else done


def loaded(bench: Bench, path: str) -> LoadedText:
    found = load_text(ToolContext(bench.workspace), path)
    assert isinstance(found, LoadedText)
    return found


def test_file_that_changes_meanwhile_is_not_overwritten(bench: Bench) -> None:
    bench.put({"a.py": "mine\n"})
    before = loaded(bench, "a.py")
    bench.put({"a.py": "theirs\n"})
    output = saved(ToolContext(bench.workspace), "a.py", "new\n", before)
    assert output.result.error is not None
    assert output.result.error.code is ToolErrorCode.CONFLICT
    assert (bench.bytes_of("a.py"), output.changes, output.files_read) == (b"theirs\n", (), {})


def test_text_that_the_evidence_contradicts_is_not_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put({"a.py": "x = 1\n"})
    before, seen = loaded(bench, "a.py"), list[tuple[object, ...]]()
    refusal = ToolError(code=ToolErrorCode.CHECK_FAILED, message="With this edit ...")

    def judged(_context: ToolContext, *asked: object) -> ToolError | None:
        seen.append(asked)
        return refusal if asked[-1] == "x = 2\n" else None

    monkeypatch.setattr("mendgraph.nodes.execute_tools.tools.saving.judged_evidence", judged)
    context = ToolContext(bench.workspace)
    assert saved(context, "a.py", "x = 2\n", before) == ToolOutput.failed(refusal)
    assert bench.bytes_of("a.py") == b"x = 1\n"
    assert saved(context, "b.py", "x = 3\n", None).result.ok
    assert seen == [("a.py", "x = 1\n", "x = 2\n"), ("b.py", None, "x = 3\n")]


def test_file_that_is_gone_meanwhile_is_an_error(bench: Bench) -> None:
    bench.put({"a.py": "x = 1\n"})
    before = loaded(bench, "a.py")
    (bench.root / "a.py").unlink()
    assert isinstance(shown_unread(ToolContext(bench.workspace), before), ToolError)


NOTHING = FileState()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, which stands at the number in the list."""
    now = [0.0]
    monkeypatch.setattr(command_effects, "monotonic_s", lambda: now[0])
    return now


def change(path: str, kind: ChangeKind, before: bytes | None, after: bytes | None) -> CommandChange:
    states = [NOTHING if data is None else FileState(sha(data), 0o644) for data in (before, after)]
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
        (ChangeKind.EDITED, b"\xff", b"1\n", ""),
    ],
)
def test_change_is_told_with_its_hashes_and_a_diff_of_its_texts(
    kind: ChangeKind, before: bytes | None, after: bytes | None, diff: str
) -> None:
    hashes = ["" if data is None else sha(data) for data in (before, after)]
    assert told(change("x", kind, before, after)) == (
        FileChange(path="x", kind=kind, sha256_before=hashes[0], sha256_after=hashes[1], diff=diff),
    )


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
