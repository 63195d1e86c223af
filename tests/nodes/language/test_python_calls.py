import ast
import warnings
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from nodes.language.python_calls import read_python_calls
from nodes.records import JsonMap, ToolInvocation

KNOWN = frozenset({"read_file", "edit_file", "multi_edit", "server.tool-1"})
ONLY_REQUIRED = {"read_file": "path"}


def read(body: str) -> list[tuple[str, JsonMap]] | None:
    calls = read_python_calls(body, KNOWN, ONLY_REQUIRED)
    assert calls is None or all(call.line_number == 0 for call in calls)
    return None if calls is None else [(call.tool_name, call.args) for call in calls]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('read_file(path="a.py")', {"path": "a.py"}),
        ("tool: read_file ( path = 'a.py' , )", {"path": "a.py"}),
        ('read_file("a.py")', {"path": "a.py"}),
        ('read_file("a.py", limit=10)', {"path": "a.py", "limit": 10}),
        ("read_file()", {}),
        ("# Read it.\nread_file(\n  'a'  # the file\n  'b'\n)\n# Done.\n", {"path": "ab"}),
        ('read_file(path="""\n"a" and\n""")', {"path": '\n"a" and\n'}),
        ("read_file(path='''it's''')", {"path": "it's"}),
        ('read_file(path="" "x" \'\')', {"path": "x"}),
        ('read_file(path=r"\\d\\n", x="\\d\\n")', {"path": "\\d\\n", "x": "\\d\n"}),
        ('read_file(path="\\x41\\u00e9\\U0001F600\\101\\0\\\n!")', {"path": "A\u00e9\U0001f600A\0!"}),
        (
            "read_file(a=True, b=False, c=None, d=-3, e=2.5e1, f=[1, [], ['x',]], g={'k': {}, \"l\": 0,})",
            {"a": True, "b": False, "c": None, "d": -3, "e": 25.0, "f": [1, [], ["x"]], "g": {"k": {}, "l": 0}},
        ),
        ("read_file(path='tool: read_file()')", {"path": "tool: read_file()"}),
    ],
)
def test_a_call_with_literal_arguments_is_read(body: str, arguments: JsonMap) -> None:
    assert read(body) == [("read_file", arguments)]


def test_several_calls_stand_on_lines_of_their_own() -> None:
    body = "tool: read_file('a')\n\ntool: server.tool-1(x=1)  # more\nread_file('b'); read_file('c')"
    assert read(body) == [
        ("read_file", {"path": "a"}),
        ("server.tool-1", {"x": 1}),
        ("read_file", {"path": "b"}),
        ("read_file", {"path": "c"}),
    ]


def test_several_edits_are_one_call() -> None:
    body = "edit_file(path='a', old_str='1', new_str='2', old_str='3', new_str='4')"
    edits = [{"old_str": "1", "new_str": "2"}, {"old_str": "3", "new_str": "4"}]
    assert read(body) == [("multi_edit", {"path": "a", "edits": edits})]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "# nothing",
        "read_file",
        "read_file(",
        "read_file(path=",
        "read_file(path='a'",
        "read_file(path='a)",
        "read_file(path='''a)",
        "read_file(path='a\nb')",
        "read_file(path='a'))",
        "read_file(path='a') is a call",
        "read_file(path='a') read_file(path='b')",
        "nope(path='a')",
        "x = read_file(path='a')",
        "print(read_file(path='a'))",
        "read_file(path='a').strip()",
        "read_file(path=name)",
        "read_file(path='a' + 'b')",
        "read_file(path=f'a')",
        "read_file(path=b'a')",
        "read_file(path=('a', 'b'))",
        "read_file(path={'a'})",
        "read_file(path={1: 'a'})",
        "read_file(path={'a': 1, 'a': 2})",
        "read_file(path={**a})",
        "read_file(*a)",
        "read_file(**a)",
        "read_file('a', 'b')",
        "read_file('a', path='b')",
        "read_file(limit=1, 'a')",
        "edit_file('a')",
        "read_file(path='a', path='b')",
        "read_file(path == 'a')",
        "read_file(,)",
        "read_file(path=[1 2])",
        "read_file(path=[,])",
        "read_file(n=true)",
        "read_file(n=01)",
        "read_file(n=1if)",
        "read_file(n=18446744073709551616)",
        "read_file(n=1e999)",
        "read_file(path='\\x4')",
        "read_file(path='\\U00110000')",
        "read_file(path='\\ud83d')",
        "def read_file(path):\n    return path\n\nread_file('a')",
        "import os\nread_file('a')",
        f"read_file(x={'[' * 65}{']' * 65})",
        "read_file(path='" + "x" * 1_000_000 + "')",
    ],
)
def test_anything_that_would_have_to_be_evaluated_or_guessed_is_not_read(body: str) -> None:
    assert read(body) is None


@pytest.mark.parametrize(
    "unit", ["(", "[", "{", "'", '"""', "\\", "'a' ", "{'a':", "#", "\n", "x=", "read_file('a')", "-"]
)
@pytest.mark.parametrize("start", ["", "read_file(", "read_file(path=", 'read_file(path="""'])
def test_endless_texts_are_no_calls(unit: str, start: str) -> None:
    assert read(start + unit * (100_000 // len(unit))) is None


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e30, 1e30) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["path", "limit", "text"]), values))
def test_what_python_writes_is_read_back(arguments: dict[str, Any]) -> None:
    body = f"read_file({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    assert read(body) == [("read_file", arguments)]


PIECES = [
    "\\",
    '"',
    "'",
    '"""',
    "\n",
    "n",
    "x41",
    "u00e9",
    "U0001F600",
    "0",
    "441",
    "7",
    "r",
    " ",
    "\\\n",
    "#",
    "d",
    ",",
]
QUOTES = ['"', "'", '"""', "'''", 'r"', "r'''"]


@settings(max_examples=500)
@given(st.sampled_from(QUOTES), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_what_is_read_is_what_python_reads(quote: str, inside: str) -> None:
    body = f"read_file(path={quote}{inside}{quote.removeprefix('r')})"
    found = read(body)
    if found is not None:
        [(_, arguments)] = found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of an escape that stands for nothing, and keeps it
            tree = ast.parse(body, mode="eval").body
        assert isinstance(tree, ast.Call)
        assert arguments == {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}


def test_the_line_number_is_that_of_no_line() -> None:
    assert read_python_calls("\nread_file('a')", KNOWN, ONLY_REQUIRED) == [
        ToolInvocation("read_file", {"path": "a"}, 0)
    ]
