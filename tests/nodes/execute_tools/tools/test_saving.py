import hashlib
from typing import Literal, get_args

import pytest

from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.execute_tools.tools.saving import (
    NO_FILE,
    LoadedText,
    Version,
    changed,
    file_change,
    invalid,
    judged_syntax,
    load_text,
    outdated,
    save_text,
    unread,
)
from nodes.execute_tools.tools.text_files import TextFile, TextForm
from nodes.records import ChangeKind, FileChange, ToolError, ToolErrorCode, ToolResult
from tests.nodes.execute_tools.tools.conftest import Bench


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
    output = save_text(ToolContext(bench.workspace), "src/new.py", "x\n", None, action="created")
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
    output = save_text(ToolContext(bench.workspace), "link.py", "b\n", loaded(bench, "link.py"))
    assert bench.bytes_of("a.py") == b"\xef\xbb\xbfb\n"
    [change] = output.changes
    assert (change.path, change.kind) == ("a.py", ChangeKind.EDITED)
    assert (change.sha256_before, change.sha256_after) == (sha256(b"\xef\xbb\xbfa\n"), sha256(b"\xef\xbb\xbfb\n"))
    assert change.diff == "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+b\n"


def test_a_file_that_changes_meanwhile_is_not_overwritten(bench: Bench) -> None:
    bench.put({"a.py": "mine\n"})
    before = loaded(bench, "a.py")
    bench.put({"a.py": "theirs\n"})
    output = save_text(ToolContext(bench.workspace), "a.py", "new\n", before)
    assert output.result.error is not None
    assert output.result.error.code is ToolErrorCode.CONFLICT
    assert (bench.bytes_of("a.py"), output.changes, output.files_read) == (b"theirs\n", (), {})


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ("same", None),
        ("", "'a.py' exists, and was not read yet: read_file it first, or use edit_file to change a part of it."),
        (
            "other",
            (
                "'a.py' has changed since it was read: read_file it again, and base your change on what it holds now."
                " It has 1 line now, beginning with:\n1: x"
            ),
        ),
    ],
)
def test_unread(bench: Bench, known: str, message: str | None) -> None:
    bench.put({"a.py": "x"})
    hashes = {"same": {"a.py": sha256(b"x")}, "other": {"a.py": sha256(b"y")}}.get(known, {})
    error = unread(ToolContext(bench.workspace, hashes), loaded(bench, "a.py"))
    expected = message and ToolError(code=ToolErrorCode.CONFLICT, message=message)
    assert error == expected


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
    refused = save_text(gated(bench, "refuse"), "a.py", "(", loaded(bench, "a.py"), edits=1)
    assert refused.result.error is not None
    assert (refused.result.error.code, refused.changes) == (ToolErrorCode.INVALID_ARGUMENT, ())
    assert bench.bytes_of("a.py") == b"x\n"
    told = save_text(gated(bench, "report"), "a.py", "(", loaded(bench, "a.py"), edits=1)
    assert told.result.data == {"path": "a.py", "edits": 1, "syntax": BROKEN}
    assert bench.bytes_of("a.py") == b"("
    bench.put({"a.py": "x\n"})
    silent = save_text(gated(bench, "off"), "a.py", "(", loaded(bench, "a.py"), edits=1)
    assert silent.result.data == {"path": "a.py", "edits": 1}


def test_invalid() -> None:
    expected = ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message="No.", suggestions=("a", "b"))
    assert invalid("No.", "a", "b") == expected


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


def test_what_several_effects_mean_for_the_state() -> None:
    changes = (file_change("a", ONE, NO_FILE), file_change("b", NO_FILE, ONE))
    assert changed(changes, path="a") == ToolOutput(
        ToolResult(ok=True, data={"path": "a"}), changes, {"a": "", "b": "1"}
    )


def test_the_words_of_a_refusal_can_be_others(bench: Bench) -> None:
    bench.put({"a.py": "x", "binary": b"a\x00b"})
    error = unread(ToolContext(bench.workspace), loaded(bench, "a.py"), "look first")
    assert error is not None
    assert error.message == "'a.py' exists, and was not read yet: look first."
    refused = load_text(ToolContext(bench.workspace), "binary", "deleted")
    assert isinstance(refused, ToolError)
    assert refused.message == "'binary' is a binary file of 3 bytes; only UTF-8 text can be deleted."


def test_a_text_that_the_evidence_contradicts_is_not_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put({"a.py": "x = 1\n"})
    before, seen = loaded(bench, "a.py"), list[tuple[object, ...]]()
    refusal = ToolError(code=ToolErrorCode.CHECK_FAILED, message="With this edit ...")

    def judged(_context: ToolContext, *asked: object) -> ToolError | None:
        seen.append(asked)
        return refusal if asked[-1] == "x = 2\n" else None

    monkeypatch.setattr("nodes.execute_tools.tools.saving.judged_evidence", judged)
    context = ToolContext(bench.workspace)
    assert save_text(context, "a.py", "x = 2\n", before) == ToolOutput.failed(refusal)
    assert bench.bytes_of("a.py") == b"x = 1\n"
    assert save_text(context, "b.py", "x = 3\n", None).result.ok
    assert seen == [("a.py", "x = 1\n", "x = 2\n"), ("b.py", None, "x = 3\n")]
