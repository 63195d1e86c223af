import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.secrets.redact import MARK
from nodes.execute_tools.tools.outline import MAX_OUTLINE_CHARACTERS, MAX_OUTLINE_LINES, outline

CODE = '''"""About class things:
not a definition
"""

class Calc(Base):
    x = 1

    async def add(self, a, b):
        return a


def  sub(
    a, b):
    return a
'''
GUIDE = """# Guide
#not a heading
## Install

```sh
# a comment
make
```

Text
# Use
"""


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (
            "a.py",
            CODE,
            (
                "It has 14 lines now, with these definitions:\n5: class Calc(Base):\n"
                "8:     async def add(self, a, b):\n12: def  sub("
            ),
        ),
        ("src/A.PYI", "def f(: broken\r\n", "It has 1 line now, with these definitions:\n1: def f(: broken"),
        ("README.md", GUIDE, "It has 11 lines now, with these headings:\n1: # Guide\n3: ## Install\n11: # Use"),
        (
            "pyproject.toml",
            "x = 1\n[a] # one\n\n[[b.c]]\ny = [1]\n",
            "It has 5 lines now, with these sections:\n2: [a] # one\n4: [[b.c]]",
        ),
        ("a.py", "\nx = 1\n", "It has 2 lines now, beginning with:\n2: x = 1"),
        (
            "Makefile",
            "# all\n\nall:\n\tmake it",
            "It has 4 lines now, beginning with:\n1: # all\n3: all:\n4: \tmake it",
        ),
        ("a.py", "", "It is empty now."),
        ("a", "\n \n", "It is empty now."),
    ],
)
def test_outlines(path: str, text: str, expected: str) -> None:
    assert outline(path, text) == expected


def test_many_definitions_are_shown_by_the_outer_ones() -> None:
    classes = "".join(f"class C{number}:\n    def f(self): ...\n" for number in range(MAX_OUTLINE_LINES - 1))
    shown = outline("a.py", classes).split("\n")
    assert shown[1:] == [f"{2 * number + 1}: class C{number}:" for number in range(MAX_OUTLINE_LINES - 1)]
    methods = "class C:\n" + "".join(f"    def f{number}(self): ...\n" for number in range(MAX_OUTLINE_LINES + 5))
    assert outline("a.py", methods).split("\n")[1:] == ["1: class C:"]


def test_what_is_left_out_is_counted() -> None:
    code = "".join(f"def f{number}(): ...\n" for number in range(MAX_OUTLINE_LINES + 5))
    shown = outline("a.py", code).split("\n")
    assert (len(shown), shown[-2:]) == (MAX_OUTLINE_LINES + 2, [f"{MAX_OUTLINE_LINES}: def f19(): ...", "and 5 more"])


def test_indented_definitions_alone_are_shown_too() -> None:
    code = "".join(f"    def f{number}(): ...\n" for number in range(MAX_OUTLINE_LINES + 1))
    assert outline("a.py", code).split("\n")[-1] == "and 1 more"


def test_a_long_line_ends_between_words() -> None:
    assert outline("a.txt", "word " * 100).split("\n")[1:] == ["1: " + "word " * 20 + " [...]"]


def test_no_part_of_a_key_is_shown() -> None:
    body = "MIIEpAIBAAKCAQEA7bq3vXo1cF8kZr0d\n" * 3
    key = f"name\n-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----\n"
    assert "MIIE" not in outline("a.txt", key)
    assert MARK in outline("a.txt", key)


@given(st.sampled_from(["a.py", "a.md", "a.toml", "a"]), st.text(max_size=3_000))
def test_an_outline_is_bounded(path: str, text: str) -> None:
    shown = outline(path, text).split("\n")
    assert len(shown) <= MAX_OUTLINE_LINES + 2
    assert all(len(line) <= MAX_OUTLINE_CHARACTERS + 20 for line in shown[1:])
