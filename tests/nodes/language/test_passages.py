import pytest
from hypothesis import given, strategies as st

from nodes.language.dialects import Passage, before_fence, is_file_name, passages, whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Passage(None, "")),
        (" {}\n", Passage(None, "{}")),
        ("Action: {}", Passage(None, "{}")),
        ("Function call:\n```json\n{}\n```\n", Passage("```json", "{}")),
        ("~~~ text\nx\n```\n~~~", Passage("~~~ text", "x\n```")),
        ("```\nnot closed", Passage("```", "not closed")),
        ("```\na\n```\nafter", Passage("```", "a\n```\nafter")),
        ("before\n```\na\n```", Passage(None, "before\n```\na\n```")),
    ],
)
def test_a_reply_without_what_stands_around_it(text: str, expected: Passage) -> None:
    assert whole(text) == expected


def test_a_reply_falls_into_prose_and_fences() -> None:
    text = "Action:\n\n```json\n{}\n```\nand\n\n~~~\n```\n~~~\n```x"
    assert passages(text) == [
        Passage("```json\n", "{}", 3),
        Passage(None, "and", 5),
        Passage("~~~\n", "```", 8),
        Passage("```x", "", 11),
    ]
    assert passages(" \n") == []


@given(st.lists(st.sampled_from(["```", "```json", "~~~", "text", "", "Action:", "    ```"]), max_size=8))
def test_no_line_of_prose_is_lost(lines: list[str]) -> None:
    text = "\n".join(["start", *lines])
    found = [line for passage in passages(text) for line in passage.body.split("\n")]
    assert sum("text" in line for line in found) == lines.count("text")


@pytest.mark.parametrize(
    ("passage", "info", "is_file"),
    [
        (Passage(None, "# a.py"), None, False),
        (Passage("```", ""), "", False),
        (Passage("``` JSON title", "{}"), "json", False),
        (Passage("```json a.json", "{}"), "json", True),
        (Passage("```a.json", "{}"), "a.json", True),
        (Passage("```json title=`x`", "{}"), "json", False),
        (Passage("```python", "# a.py\nf()"), "python", True),
        (Passage("```js", "// src/a.js:\nf()"), "js", True),
        (Passage("```python", "# read a.py\nf()"), "python", False),
        (Passage("```python", "f()\n# a.py"), "python", False),
    ],
)
def test_a_fence_says_what_is_in_it(passage: Passage, info: str | None, is_file: bool) -> None:
    assert (passage.info, passage.is_file) == (info, is_file)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I look.\n\n```json\n{}\n```", ("I look.\n\n", "```json\n{}\n```")),
        ("a\n~~~\nx", ("a\n", "~~~\nx")),
        ("\n```\nx\n```", None),
        ("no fence", None),
        ("`` ` ``", None),
    ],
)
def test_the_prose_before_the_first_fence(text: str, expected: tuple[str, str] | None) -> None:
    assert before_fence(text) == expected


@pytest.mark.parametrize("name", ["a.py", "src/a.py", "/src/a", "`a.py`:", "**a.tar.gz**", ".env", "a.py.", "Makefile"])
def test_names_of_files(name: str) -> None:
    assert is_file_name(name)


@pytest.mark.parametrize("word", ["", "file", "json", "3.11", "etc.", "read_file", "a b.py", "...", "src/"])
def test_other_words(word: str) -> None:
    assert not is_file_name(word)
