import pytest

from nodes.parse.answers import SHORTEST_ECHO, echoes, is_placeholder_content


@pytest.mark.parametrize(
    "text",
    [
        "whole new file",
        "The whole new file.\n",
        "complete file content",
        "# full code of the file",
        "new content here",
        "[new content here]",
        "# your code here\n",
        "// new code goes here",
        "<!-- text here -->",
        "<action>",
        "<new text>",
        "<file-content>",
        "<content>",
        "...",
        " ...\n",
        "…",
        "TEXT",
        "NEW_TEXT",
        "NEW CONTENT",
    ],
)
def test_placeholders_for_texts(text: str) -> None:
    assert is_placeholder_content(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "..",
        "text",
        "value",
        "new content",
        "new file",
        "{name}",
        "[value]",
        "<br>",
        "<code>",
        "<text>",
        "<path>",
        "SELECT",
        "return value",
        "here",
        "def f(): ...",
        "class A(Protocol):\n    def f(self) -> int: ...\n",
        "x = [1, ..., 3]",
        "print('your code here')",
        "# your code here\nx = 1",
        "The whole new file is written by save().",
        "..." + " " * 300 + "x",
        "x" * 100_000,
    ],
)
def test_real_texts(text: str) -> None:
    assert not is_placeholder_content(text)


TOLD = ("The block has no closing fence.  Send it\nagain.", "Yes.", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The block has no closing fence. Send it again.", True),
        ("Well: the block? The block has no closing fence. Send it again. Done.", True),
        ("has no closing  fence.", True),
        ("no closing fence", True),
        ("no closing fenc", False),
        ("Yes.", False),
        ("", False),
        ("The block is closed. Send it again.", False),
    ],
)
def test_a_sentence_that_was_told_is_known_again(text: str, expected: bool) -> None:
    assert echoes(text, TOLD) is expected


def test_nothing_told_is_no_echo() -> None:
    assert not echoes("x" * SHORTEST_ECHO, ())
    assert echoes("x" * SHORTEST_ECHO, ["x" * SHORTEST_ECHO])
