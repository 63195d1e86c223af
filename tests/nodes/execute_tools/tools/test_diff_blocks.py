import pytest

from nodes.execute_tools.tools.diff_blocks import TextHunk, read_diff


@pytest.mark.parametrize(
    ("block", "hunks"),
    [
        ("-a\n+b\n", (TextHunk("a\n", "b\n"),)),
        (" x\n-a\n+b\n y\n", (TextHunk("x\na\ny\n", "x\nb\ny\n"),)),
        ("def f():\r\n-    a\r\n+    b\r\n", (TextHunk("def f():\n    a\n", "def f():\n    b\n"),)),
        (
            (
                "diff --git a/x b/x\nindex 1a..2b 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@ def f\n x\n-a\n+b\n\n"
                "@@ -9 +9 @@\n-c\n"
            ),
            (TextHunk("x\na\n", "x\nb\n"), TextHunk("c\n", "")),
        ),
        ("@@\n+a\n\\ No newline at end of file\n", (TextHunk("", "a\n"),)),
        (" x\n\n-a\n", (TextHunk("x\n\na\n", "x\n\n"),)),
        ("@@\n x\n@@\n-a\n", (TextHunk("a\n", ""),)),
        ("a\nb\n", ()),
        ("@@ -1 +1 @@\na\n", ()),
        ("", ()),
    ],
)
def test_hunks(block: str, hunks: tuple[TextHunk, ...]) -> None:
    assert read_diff(block, has_header=False) == hunks


@pytest.mark.parametrize(
    ("block", "is_diff"),
    [("- one\n- two\n", False), ("---\na: 1\n", False), ("@@\n-a\n", True), ("--- a\n+++ b\n-a\n", True)],
)
def test_a_list_is_no_diff_where_a_header_is_asked_for(block: str, is_diff: bool) -> None:
    assert bool(read_diff(block, has_header=True)) is is_diff
