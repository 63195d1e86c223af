import pytest

from mendgraph.nodes.execute_tools.edits.block_texts import (
    TextHunk,
    keys_inside,
    lost_definitions,
    lost_keys,
    read_diff,
    why_not_whole,
    why_too_little,
)

LONG = "".join(f"line {number}\n" for number in range(30))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (LONG, LONG[: len(LONG) // 2], ""),
        (LONG, LONG[:56], "it has 8 lines where the file has 30"),
        ("short\n" * 20, "short\n", ""),
        ("", "a\n", ""),
        ("a: 1\nb: 2\n", "a: 2\n# ... rest unchanged\n", "it says `# ... rest unchanged` in place of text"),
        ("a", "  // existing code here\n", "it says `// existing code here` in place of text"),
        ("a", "<!-- rest of the file -->\n", "it says `<!-- rest of the file -->` in place of text"),
        ("a", "/* ... */\n", "it says `/* ... */` in place of text"),
        ("a", "x\n...\n", "it says `...` in place of text"),
        ("---\n...\n", "a: 1\n...\n", ""),
        ("a", "# the rest of us\n", ""),
    ],
)
def test_why_not_whole(old: str, new: str, why: str) -> None:
    assert why_not_whole(old, new) == why


def test_lost_definitions() -> None:
    old = "def f(:\nasync  def g(x):\nclass A\n    def m(self):\ndef f():\n"
    assert lost_definitions(old, "def g(x): pass\n") == ("f", "A")
    assert lost_definitions(old, old) == ()


@pytest.mark.parametrize(
    ("old", "new", "task", "why"),
    [
        ("a\nb\n", "c\n", "", "it holds 0 of the 2 lines that the file has"),
        ("a\nb\n", "a\n", "", ""),
        ("a\n\nb\nc\n", " a\n", "", "it holds 1 of the 3 lines that the file has"),
        ("a\nb\n", "c\n", "Shorten it", ""),
        ("a\n", "c\n", "Say c", ""),
        ("a\n", "c\n", "Add c", "it holds 0 of the 1 lines that the file has"),
        ("a\n", "c\na\n", "Add c", ""),
        ("\n", "c\n", "Add c", ""),
        ("a\nb\n", "c\nd\n", "Translate it", ""),
    ],
)
def test_why_too_little(old: str, new: str, task: str, why: str) -> None:
    assert why_too_little(old, new, task) == why


@pytest.mark.parametrize(
    ("path", "old", "new", "lost"),
    [
        ("a.json", '{"a": {"b": 1}, "c\\"": 2}', '{"a": 1}', ("b", 'c\\"')),
        ("a.json", '{"a": "b: c"}', '{"a": 1}', ()),
        ("a.yaml", "a: 1\nb:\n  - c: 2\n'd': 3\n", "a: 1\n", ("b", "c", "d")),
        ("a.toml", "[tool.x]\na = 1\n[[y]]\n", "a = 2\n", ("tool.x", "y")),
        ("a.ini", "[s]\na=1\n", "[s]\na = 2\nb = 3\n", ()),
        ("a.md", "a: 1\n", "", ()),
    ],
)
def test_lost_keys(path: str, old: str, new: str, lost: tuple[str, ...]) -> None:
    assert lost_keys(path, old, new) == lost


def test_keys_inside() -> None:
    text = '{"a": {"b": [{"c": 1}]}, "d": {"e": 1}}'
    assert keys_inside(text, {"a"}) == {"b", "c"}
    assert keys_inside(text, {"x"}) == keys_inside("{", {"a"}) == keys_inside("[" * 100_000, {"a"}) == set()


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
