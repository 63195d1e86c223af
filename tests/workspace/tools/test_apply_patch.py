import stat
from collections.abc import Mapping

from mendgraph.nodes.execute_tools.tools.apply_patch import apply_patch
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.records import ChangeKind, FileChange, ToolErrorCode
from tests.row_tables import rows
from tests.workspace.conftest import Bench
from tests.workspace.files.layout import sha, tree_of


def patch(body: str) -> str:
    return f"*** Begin Patch\n{body}*** End Patch\n"


INVALID, CONFLICT, DENIED = (ToolErrorCode.INVALID_ARGUMENT, ToolErrorCode.CONFLICT, ToolErrorCode.PERMISSION_DENIED)
FILES: Mapping[str, str | bytes] = {
    "a.py": b"\xef\xbb\xbfx = 1\r\ny = 2\r\n",
    "old.py": "z = 1\n",
    "src/m.py": "m = 1\n",
    "logo.png": b"\x89PNG\x00",
}
ALL = patch(
    "*** Update File: a.py\n@@\n-x = 1\n+x = 2\n y = 2\n"
    "*** Add File: new/b.py\n+b = 1\n"
    "*** Delete File: old.py\n"
    "*** Update File: src/m.py\n*** Move to: lib/m.py\n-m = 1\n+m = 2\n"
    "*** Delete File: logo.png\n"
)


def test_several_files_are_changed_together(bench: Bench) -> None:
    bench.put(FILES)
    (bench.root / "src/m.py").chmod(0o750)
    output = bench.run(apply_patch, patch=ALL)
    assert output.result.data == {
        "files": [
            {"path": "a.py", "action": "edited"},
            {"path": "new/b.py", "action": "created"},
            {"path": "old.py", "action": "deleted"},
            {"path": "src/m.py", "target": "lib/m.py", "action": "moved"},
            {"path": "logo.png", "action": "deleted"},
        ]
    }
    after = {"a.py": b"\xef\xbb\xbfx = 2\r\ny = 2\r\n", "new/b.py": b"b = 1\n", "lib/m.py": b"m = 2\n"}
    assert tree_of(bench.root) == after
    assert stat.S_IMODE((bench.root / "lib/m.py").stat().st_mode) == 0o750
    expected = [
        ("a.py", ChangeKind.EDITED, "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n y = 2\n"),
        ("new/b.py", ChangeKind.CREATED, "--- /dev/null\n+++ b/new/b.py\n@@ -0,0 +1 @@\n+b = 1\n"),
        ("old.py", ChangeKind.DELETED, "--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-z = 1\n"),
        ("src/m.py", ChangeKind.DELETED, "--- a/src/m.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-m = 1\n"),
        ("lib/m.py", ChangeKind.CREATED, "--- /dev/null\n+++ b/lib/m.py\n@@ -0,0 +1 @@\n+m = 2\n"),
        ("logo.png", ChangeKind.DELETED, ""),
    ]
    old = {name: content.encode() if isinstance(content, str) else content for name, content in FILES.items()}
    assert output.changes == tuple(
        FileChange(
            path=path,
            kind=kind,
            sha256_before=sha(old[path]) if path in old else "",
            sha256_after=sha(after[path]) if path in after else "",
            diff=diff,
        )
        for path, kind, diff in expected
    )
    assert output.files_read == {change.path: change.sha256_after for change in output.changes}


def test_patch_follows_a_link_and_a_pure_move_keeps_the_inode(bench: Bench) -> None:
    bench.put(FILES)
    (bench.root / "link.py").symlink_to("old.py")
    inode = (bench.root / "src/m.py").stat().st_ino
    data = bench.data(
        apply_patch,
        patch=patch("*** Update File: link.py\n-z = 1\n+z = 2\n*** Update File: src/m.py\n*** Move to: m.py\n"),
    )
    assert data["files"][0] == {"path": "old.py", "action": "edited"}
    assert (bench.bytes_of("old.py"), (bench.root / "m.py").stat().st_ino) == (b"z = 2\n", inode)


AGAIN = "read_file it again, and base your change on what it holds now."


@rows(
    ("*** Update File: a.py\n-x\n+y\n", b"x\n", f": {AGAIN}"),
    ("*** Delete File: a.py\n", b"x\n", f": {AGAIN}"),
    ("*** Delete File: a.py\n", b"x\x00", ", and is binary now, so it cannot be read again: leave it as it is."),
)
def test_file_changed_since_it_was_read_refuses_the_whole_patch(
    body: str, now: bytes, message: str, bench: Bench
) -> None:
    bench.put({"a.py": "old\n", "b.py": "b\n"})
    bench.data(read_file, path="a.py")
    bench.put({"a.py": now})
    error = bench.error(apply_patch, patch=patch(f"*** Update File: b.py\n-b\n+c\n{body}"))
    assert (error.code, error.message) == (
        CONFLICT,
        f"Line 5 of the patch: 'a.py' has changed since it was read{message}",
    )
    assert tree_of(bench.root) == {"a.py": now, "b.py": b"b\n"}


BREAKING = patch(
    "*** Update File: a.py\n-x = 1\n+x = 2\n"
    "*** Update File: b.txt\n*** Move to: b.json\n-{}\n+{\n"
    "*** Add File: c.py\n+x = (\n"
)


def test_refusal_by_the_syntax_gate_applies_to_the_whole_patch(bench: Bench) -> None:
    bench.put({"a.py": "x = 1\n", "b.txt": "{}\n"})
    bench.syntax_gate = "refuse"
    error = bench.error(apply_patch, patch=BREAKING)
    assert error.code is INVALID
    assert error.message.startswith("Line 5 of the patch: With this edit 'b.json' no longer parses as JSON: line 1: ")
    assert tree_of(bench.root) == {"a.py": b"x = 1\n", "b.txt": b"{}\n"}


CHANGED = "*** Update File: a.py\n-x = 1\n+x = 2\n*** Add File: new/b.py\n+b\n*** Delete File: old.py\n"
"""Lines 2 to 7 of a patch that could be applied."""

M = "*** Update File: src/m.py\n"
REFUSED: list[tuple[str, ToolErrorCode, str]] = [
    (f"{M}-n = 1\n+n = 2\n", INVALID, "Line 9 of the patch: the lines of this hunk do not"),
    (f"{M} m = 1\n", INVALID, "Line 8 of the patch: the hunks change nothing in 'src/m.py'."),
    ("*** Delete File: nope.py\n", ToolErrorCode.NOT_FOUND, "Line 8 of the patch: No such file: 'nope.py'."),
    ("*** Delete File: link.py\n", INVALID, "Cannot delete 'link.py': it is a symbolic link to 'src/m.py'."),
    ("*** Add File: src/m.py\n+x\n", CONFLICT, "Line 8 of the patch: 'src/m.py' exists already, so it cannot be added"),
    (f"{M}*** Move to: logo.png\n", CONFLICT, "Cannot move to 'logo.png': it exists already."),
    (f"{M}*** Move to: .env\n", DENIED, ".env is secret (for_write=True)."),
    ("*** Add File: ../b.py\n+x\n", DENIED, "'../b.py' is outside the workspace"),
    ("*** Delete File: ./old.py\n", INVALID, "Two of these changes concern 'old.py': make one of them."),
    ("*** Add File: new\n+x\n", CONFLICT, "Cannot write 'new': it exists already."),
]


@rows(*REFUSED)
def test_file_that_cannot_be_changed_leaves_all_files_unchanged(
    body: str, code: ToolErrorCode, message: str, bench: Bench
) -> None:
    bench.put({**FILES, ".env": "KEY=1"})
    (bench.root / "link.py").symlink_to("src/m.py")
    before = tree_of(bench.root)
    error = bench.error(apply_patch, patch=patch(CHANGED + body))
    assert error.code is code
    assert error.message.startswith(message), error.message
    assert tree_of(bench.root) == before
    assert not (bench.root / "new").exists()


@rows(("", "Line 1 of the patch: a patch begins with"), ("x\x00", "patch holds the character U+0000"))
def test_invalid_patch_is_refused(text: str, message: str, bench: Bench) -> None:
    error = bench.error(apply_patch, patch=text)
    assert error.code is INVALID
    assert error.message.startswith(message)


def test_hunk_with_lookalike_characters_may_use_escapes(bench: Bench) -> None:
    bench.put({"a.md": "head\na\u200bb\u2019s\nGru\u0308n\n"})
    error = bench.error(apply_patch, patch=patch("*** Update File: a.md\n@@\n-ab's\n+x\n Gr\u00fcn\n"))
    assert "do not occur in 'a.md'. It looks like lines 2-3, but for characters that" in error.message
    assert error.suggestions == ("a\\u200bb\\u2019s\nGru\\u0308n",)

    first, second = error.suggestions[0].split("\n")
    body = f"*** Update File: a.md\n@@\n-{first}\n+{first}, \\u2603\n {second}\n"
    bench.data(apply_patch, patch=patch(body))
    assert bench.bytes_of("a.md") == "head\na\u200bb\u2019s, \\u2603\nGru\u0308n\n".encode()


def test_hunk_whose_escapes_fit_twice_is_refused_with_both_places(bench: Bench) -> None:
    bench.put({"a.md": "a\u200bb\nx\na\u200bb\n"})
    error = bench.error(apply_patch, patch=patch("*** Update File: a.md\n@@\n-a\\u200bb\n+c\n"))
    assert "fits in several places of 'a.md', at lines 1, 3" in error.message
