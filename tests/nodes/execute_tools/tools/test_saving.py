import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, Version, file_change, unified_diff
from mendgraph.nodes.execute_tools.files.change_records import UNKNOWN_SHA256, FileEffect, FileState
from mendgraph.nodes.execute_tools.files.failures import invalid
from mendgraph.nodes.execute_tools.files.text_files import TextFile, TextForm
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.journaled_calls import describe_effect
from mendgraph.nodes.execute_tools.processes.command_changes import CommandChange, CommandChanges
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools import saving as command_effects
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.saving import (
    MOST_CHANGES,
    MOST_DIFF_CHARACTERS,
    LoadedText,
    file_changes,
    instead_of,
    judged_syntax,
    load_text,
    outdated,
    save_text,
    shown,
    shown_unread,
    was_read,
)
from mendgraph.nodes.guard.policy import judge_path
from mendgraph.nodes.records import ChangeKind, FileChange, ToolError, ToolErrorCode, ToolResult
from tests.nodes.execute_tools.conftest import Bench
from tests.nodes.execute_tools.files.layout import sha


def saved(context: ToolContext, path: str, text: str, before: LoadedText | None, **data: Any) -> ToolOutput:
    done = save_text(context, path, text, before, **data)
    return ToolOutput.failed(done) if isinstance(done, ToolError) else done


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def loaded(bench: Bench, path: str) -> LoadedText:
    found = load_text(ToolContext(bench.workspace), path)
    assert isinstance(found, LoadedText)
    return found


def test_loading(bench: Bench) -> None:
    data = b"\xef\xbb\xbfa\r\nb\r\n"
    bench.put({"src/a.py": data})
    assert loaded(bench, "./src/a.py") == LoadedText(
        "src/a.py", sha256(data), TextFile("a\r\nb\r\n", TextForm(has_bom=True, newline="\r\n"))
    )


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        (
            "binary",
            ToolErrorCode.INVALID_ARGUMENT,
            "'binary' is a binary file of 3 bytes; only UTF-8 text can be edited.",
        ),
        ("a.pi", ToolErrorCode.NOT_FOUND, "Did you mean 'a.py'?"),
        (".env", ToolErrorCode.PERMISSION_DENIED, ".env is secret"),
    ],
)
def test_what_cannot_be_loaded(bench: Bench, path: str, code: ToolErrorCode, words: str) -> None:
    bench.put({"binary": b"a\x00b", "a.py": "", ".env": "KEY=1"})
    error = load_text(ToolContext(bench.workspace), path)
    assert isinstance(error, ToolError)
    assert error.code is code
    assert words in error.message


def test_saving_a_new_file(bench: Bench) -> None:
    output = saved(ToolContext(bench.workspace), "src/new.py", "x\n", None, action="created")
    assert bench.bytes_of("src/new.py") == b"x\n"
    assert output.result == ToolResult(ok=True, data={"path": "src/new.py", "action": "created"})
    assert output.files_read == {"src/new.py": sha256(b"x\n")}
    diff = "--- /dev/null\n+++ b/src/new.py\n@@ -0,0 +1 @@\n+x\n"
    kind = ChangeKind.CREATED
    change = FileChange(path="src/new.py", kind=kind, sha256_before="", sha256_after=sha256(b"x\n"), diff=diff)
    assert output.changes == (change,)


def test_saving_keeps_the_form_and_follows_a_link_to_its_file(bench: Bench) -> None:
    bench.put({"a.py": b"\xef\xbb\xbfa\n"})
    (bench.root / "link.py").symlink_to("a.py")
    output = saved(ToolContext(bench.workspace), "link.py", "b\n", loaded(bench, "link.py"))
    assert bench.bytes_of("a.py") == b"\xef\xbb\xbfb\n"
    [change] = output.changes
    assert (change.path, change.kind) == ("a.py", ChangeKind.EDITED)
    assert (change.sha256_before, change.sha256_after) == (sha256(b"\xef\xbb\xbfa\n"), sha256(b"\xef\xbb\xbfb\n"))
    assert change.diff == "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+b\n"


def test_a_file_that_changes_meanwhile_is_not_overwritten(bench: Bench) -> None:
    bench.put({"a.py": "mine\n"})
    before = loaded(bench, "a.py")
    bench.put({"a.py": "theirs\n"})
    output = saved(ToolContext(bench.workspace), "a.py", "new\n", before)
    assert output.result.error is not None
    assert output.result.error.code is ToolErrorCode.CONFLICT
    assert (bench.bytes_of("a.py"), output.changes, output.files_read) == (b"theirs\n", (), {})


def test_outdated(bench: Bench) -> None:
    known = ToolContext(bench.workspace, {"a.py": "1", "gone.py": ""})
    assert outdated(known, "a.py", Version("1", "x")) is None
    assert outdated(known, "b.py", Version("1", "x")) is None
    changed_since = outdated(known, "gone.py", Version("1", "def f(): ...\n"))
    assert changed_since == ToolError(
        code=ToolErrorCode.CONFLICT,
        message=(
            "'gone.py' has changed since it was read: read_file it again, and base your change on what it holds now."
            " It has 1 line now, with these definitions:\n1: def f(): ..."
        ),
    )
    binary = outdated(known, "a.py", Version("2", None))
    assert binary is not None
    assert binary.message == (
        "'a.py' has changed since it was read, and is binary now, so it cannot be read again: leave it as it is."
    )


BROKEN = "no longer parses as Python: line 1: '(' was never closed"


def gated(bench: Bench, mode: Literal["off", "report", "refuse"]) -> ToolContext:
    return ToolContext(bench.workspace, syntax_gate=mode)


def test_the_three_ways_of_the_syntax_gate(bench: Bench) -> None:
    assert judged_syntax(gated(bench, "off"), "a.py", "x", "(") == {}
    assert judged_syntax(gated(bench, "report"), "a.py", "x", "(") == {"syntax": BROKEN}
    assert judged_syntax(gated(bench, "refuse"), "a.py", "x", "(") == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message=(f"With this edit 'a.py' {BROKEN}. So nothing was changed: mend that in the edit, and make it again."),
    )
    for mode in get_args(ToolContext.__annotations__["syntax_gate"]):
        assert judged_syntax(gated(bench, mode), "a.py", "x", "y") == {}
        assert judged_syntax(gated(bench, mode), "a.py", None, "(") == {}
        assert judged_syntax(gated(bench, mode), "a.py", ")", "(") == {}


def test_saving_says_what_an_edit_breaks_or_does_not_make_it(bench: Bench) -> None:
    bench.put({"a.py": "x\n"})
    refused = saved(gated(bench, "refuse"), "a.py", "(", loaded(bench, "a.py"), edits=1)
    assert refused.result.error is not None
    assert (refused.result.error.code, refused.changes) == (ToolErrorCode.INVALID_ARGUMENT, ())
    assert bench.bytes_of("a.py") == b"x\n"
    told = saved(gated(bench, "report"), "a.py", "(", loaded(bench, "a.py"), edits=1)
    assert told.result.data == {"path": "a.py", "edits": 1, "syntax": BROKEN}
    assert bench.bytes_of("a.py") == b"("
    bench.put({"a.py": "x\n"})
    silent = saved(gated(bench, "off"), "a.py", "(", loaded(bench, "a.py"), edits=1)
    assert silent.result.data == {"path": "a.py", "edits": 1}


ONE, TWO, EMPTY, BINARY = Version("1", "a\n"), Version("2", "b\n"), Version("0", ""), Version("3", None)


@pytest.mark.parametrize(
    ("before", "after", "kind", "diff"),
    [
        (ONE, TWO, ChangeKind.EDITED, "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"),
        (NO_FILE, ONE, ChangeKind.CREATED, "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n"),
        (ONE, NO_FILE, ChangeKind.DELETED, "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"),
        (ONE, EMPTY, ChangeKind.EDITED, "--- a/f\n+++ b/f\n@@ -1 +0,0 @@\n-a\n"),
        (NO_FILE, EMPTY, ChangeKind.CREATED, ""),
        (EMPTY, NO_FILE, ChangeKind.DELETED, ""),
        (BINARY, NO_FILE, ChangeKind.DELETED, ""),
        (NO_FILE, BINARY, ChangeKind.CREATED, ""),
        (BINARY, ONE, ChangeKind.EDITED, ""),
    ],
)
def test_the_effect_on_a_file(before: Version, after: Version, kind: ChangeKind, diff: str) -> None:
    assert file_change("f", before, after) == FileChange(
        path="f", kind=kind, sha256_before=before.sha256, sha256_after=after.sha256, diff=diff
    )


def test_a_text_that_the_evidence_contradicts_is_not_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("lines", "rest"), [(3, ""), (900, " It goes on after these lines.")])
def test_the_file_is_shown_as_read_file_shows_it(bench: Bench, lines: int, rest: str) -> None:
    bench.put({"a.py": "x = 1\r\n" * lines})
    before = loaded(bench, "a.py")
    output = shown_unread(ToolContext(bench.workspace), before)
    assert isinstance(output, ToolOutput)
    shown = f"'a.py' was not read yet. This is what it holds.{rest}"
    note = f"Nothing was changed: {shown} Make the edit again, from this text."
    read = bench.run(read_file, path="a.py")
    assert output.result.data == {**read.result.data, "changed": False, "note": note}
    assert (output.files_read, output.changes) == (read.files_read, ())


def test_an_error_stays_where_the_file_was_read(bench: Bench) -> None:
    bench.put({"a.py": "x = 1\n"})
    before = loaded(bench, "a.py")
    context = ToolContext(bench.workspace)
    assert (was_read(context, before), instead_of(invalid("No."), context, before)) == (
        False,
        shown_unread(context, before),
    )
    known = ToolContext(bench.workspace, {"a.py": before.sha256})
    assert (was_read(known, before), instead_of(invalid("No."), known, before)) == (True, invalid("No."))


def test_a_file_that_is_gone_meanwhile_is_an_error(bench: Bench) -> None:
    bench.put({"a.py": "x = 1\n"})
    before = loaded(bench, "a.py")
    (bench.root / "a.py").unlink()
    assert isinstance(shown_unread(ToolContext(bench.workspace), before), ToolError)


OLD, NEW = b"a = 1\n", b"a = 2\n"


DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def state(data: bytes | None) -> FileState:
    return FileState() if data is None else FileState(hashed(data), 0o644)


def keeping(*kept: bytes) -> Callable[[str], bytes | None]:
    return {hashed(data): data for data in kept}.get


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(str(tmp_path), partial(judge_path, rules=()))


@pytest.mark.parametrize(
    ("before", "after", "on_disk", "kept", "kind", "diff"),
    [
        (OLD, NEW, NEW, [OLD], ChangeKind.EDITED, DIFF),
        (None, NEW, NEW, [], ChangeKind.CREATED, "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+a = 2\n"),
        (OLD, None, None, [OLD], ChangeKind.DELETED, "--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a = 1\n"),
        (OLD, NEW, b"later", [OLD], ChangeKind.EDITED, ""),
        (OLD, NEW, None, [OLD], ChangeKind.EDITED, ""),
        (OLD, NEW, NEW, [], ChangeKind.EDITED, ""),
        (b"\0", NEW, NEW, [b"\0"], ChangeKind.EDITED, ""),
    ],
)
def test_the_diff_is_made_of_what_is_still_at_hand(
    workspace: Workspace,
    tmp_path: Path,
    before: bytes | None,
    after: bytes | None,
    on_disk: bytes | None,
    kept: list[bytes],
    kind: ChangeKind,
    diff: str,
) -> None:
    if on_disk is not None:
        (tmp_path / "a.py").write_bytes(on_disk)
    effect = FileEffect("a.py", state(before), state(after))
    assert describe_effect(workspace, keeping(*kept), effect) == FileChange(
        path="a.py", kind=kind, sha256_before=effect.before.sha256, sha256_after=effect.after.sha256, diff=diff
    )


NOTHING = FileState()


UNKNOWN = FileState(UNKNOWN_SHA256, 0o644)


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
        (ChangeKind.CREATED, NOTHING, UNKNOWN),
        (ChangeKind.EDITED, UNKNOWN, UNKNOWN),
        (ChangeKind.DELETED, UNKNOWN, NOTHING),
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
