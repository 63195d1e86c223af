import pytest

from nodes.execute_tools.tools.excerpts import lost_definitions, why_not_whole

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
