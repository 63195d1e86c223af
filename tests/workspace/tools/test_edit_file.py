from hypothesis import HealthCheck, given, settings, strategies as st

from mendgraph.nodes.execute_tools.tools.edit_file import MAX_EDITS, edit_file, multi_edit
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.records import JsonMap, ToolErrorCode
from tests.row_tables import rows
from tests.workspace.conftest import Bench

CALC = "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"
MISS = "old_str does not occur in 'calc.py'."
TWICE = "old_str occurs 2 times in 'calc.py', at lines 2, 6"


def test_empty_old_str_creates_a_file(bench: Bench) -> None:
    output = bench.run(edit_file, path="src/new.py", old_str="", new_str="x = 1\n")
    assert output.result.data == {"path": "src/new.py", "replacements": 0, "start_line": 1, "lines_changed": 1}
    assert bench.bytes_of("src/new.py") == b"x = 1\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    st.binary(max_size=2).map(lambda bom: b"\xef\xbb\xbf" if len(bom) == 2 else b""),
    st.lists(st.sampled_from(["a", "é", "\r\n", "\n", "\r", "\t", "\u2028"]), max_size=20).map("".join),
    st.lists(st.sampled_from(["a", "é", "\r\n", "\n", "\t", "\x0c"]), max_size=20).map("".join),
    st.sampled_from(["Y", "Y\n", "é"]),
)
def test_text_around_an_edit_is_kept(bench: Bench, bom: bytes, before: str, after: str, new: str) -> None:
    bench.put({"a": bom + f"{before}X{after}".encode()})
    bench.files_read.clear()  # of the example before
    bench.data(edit_file, path="a", old_str="X", new_str=new)
    result = bench.bytes_of("a")
    assert result.startswith(bom + before.encode())
    assert result.endswith(after.encode())
    middle = result[len(bom + before.encode()) : len(result) - len(after.encode())]
    assert middle.replace(b"\r\n", b"\n") == new.encode()


@rows(
    ("add", "add", "old_str and new_str are equal, so the edit would change nothing."),
    ("", "x", "'calc.py' exists: old_str may be empty only to create a file. Give the text to replace."),
    ("return a - b", "return a + b", f"{TWICE}: add lines around it until it occurs once, or set replace_all."),
    ("zzz qqq", "x", MISS + " Nothing in it is near: read_file it first."),
    (
        "      return a - b\n",
        "",
        f"But for blanks, {TWICE}: take it as one of them stands there, with lines around",
    ),
    ("add", "x\x00", "new_str holds the character U+0000 in line 1, which no text file can hold; leave it out."),
)
def test_edit_that_matches_nowhere_or_twice_is_refused(old: str, new: str, message: str, bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    bench.data(read_file, path="calc.py")
    error = bench.error(edit_file, path="calc.py", old_str=old, new_str=new)
    assert (error.code, error.suggestions) == (ToolErrorCode.INVALID_ARGUMENT, ())
    assert error.message.startswith(message)
    assert bench.bytes_of("calc.py") == CALC.encode()


def test_failed_match_shows_the_nearest_lines(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    bench.data(read_file, path="calc.py")
    error = bench.error(edit_file, path="calc.py", old_str="def add(a,b):\n  return a-b", new_str="x")
    near = " The nearest lines are 1-2: take old_str from the suggestion, which shows them."
    assert (error.message, error.suggestions) == (MISS + near, ("def add(a, b):\n    return a - b",))


@rows(
    ("a =\u00a010", "a = 10", "a =\\u00a010"),
    ("14\u202f000", "14 000", "14\\u202f000"),
    ("14\u2009000", "14 000", "14\\u2009000"),
    ("ab\u200bc", "abc", "ab\\u200bc"),
    ("Do\u00adnau", "Donau", "Do\\u00adnau"),
    ("a = \ufeff1", "a = 1", "a = \\ufeff1"),
    ("It\u2019s", "It's", "It\\u2019s"),
    ("1\u20132", "1-2", "1\\u20132"),
    ("1\u20142", "1-2", "1\\u20142"),
    ("\u26a0\ufe0f!", "\u26a0!", "\u26a0\\ufe0f!"),
    ("Gru\u0308n", "Gr\u00fcn", "Gru\\u0308n"),
    ("It's", "It\u2019s", "It's"),
)
def test_failed_match_of_a_lookalike_suggests_usable_escapes(
    line: str, old: str, suggestion: str, bench: Bench
) -> None:
    bench.put({"a.md": f"head\r\n- {line}!\r\n"})
    bench.data(read_file, path="a.md")

    error = bench.error(edit_file, path="a.md", old_str=old, new_str="x")
    assert error.message == (
        "old_str does not occur in 'a.md'. It looks like lines 2-2, but for characters that are invisible or look like"
        " others: copy them from the suggestion, which writes such characters as escapes; so may the edit."
    )
    assert error.suggestions == (f"- {suggestion}!",)
    assert bench.bytes_of("a.md") == f"head\r\n- {line}!\r\n".encode()

    bench.data(edit_file, path="a.md", old_str=error.suggestions[0], new_str=f"{error.suggestions[0]} \\u2603")
    assert bench.bytes_of("a.md") == f"head\r\n- {line}! \\u2603\r\n".encode()


def test_escape_is_decoded_only_if_the_literal_text_does_not_occur(bench: Bench) -> None:
    bench.put({"a.py": 'a = "\\u00a0"\nb = "\u00a0"\nc = "\u00a0\u00ad"\n'})
    bench.data(edit_file, path="a.py", old_str='"\\u00a0"', new_str='"\\u00a0\\u00a0"')
    assert bench.bytes_of("a.py") == 'a = "\\u00a0\\u00a0"\nb = "\u00a0"\nc = "\u00a0\u00ad"\n'.encode()
    error = bench.error(edit_file, path="a.py", old_str='= "\\u00A0', new_str="x")
    assert error.message.startswith("old_str occurs 2 times in 'a.py', at lines 2, 3")
    bench.data(edit_file, path="a.py", old_str='b = "\\u00A0"', new_str='b = "\\u00A0\\u00ad"')
    assert bench.bytes_of("a.py").splitlines()[1] == 'b = "\u00a0\\u00ad"'.encode()


def test_edit_that_breaks_the_syntax_is_reported_or_refused(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    broken = "no longer parses as Python: line 5: '(' was never closed"
    bench.syntax_gate = "refuse"
    error = bench.error(edit_file, path="calc.py", old_str="sub(a, b)", new_str="sub(a, b")
    assert (error.code, error.message) == (
        ToolErrorCode.INVALID_ARGUMENT,
        f"With this edit 'calc.py' {broken}. So nothing was changed: fix that in the edit, and make it again.",
    )
    assert bench.bytes_of("calc.py") == CALC.encode()
    bench.syntax_gate = "report"
    data = bench.data(edit_file, path="calc.py", old_str="sub(a, b)", new_str="sub(a, b")
    assert data == {"path": "calc.py", "replacements": 1, "start_line": 5, "lines_changed": 1, "syntax": broken}
    mended = bench.data(edit_file, path="calc.py", old_str="sub(a, b", new_str="sub(a, b)")
    assert "syntax" not in mended


@rows(
    ("def add(a, b): \n    return a - b", "def add(a, b):\n    return a + b", "trailing_blanks"),
    ("  def add(a, b):\n      return a - b\n", "  def add(a, b):\n      return a + b\n", "indentation"),
)
def test_whitespace_differences_are_tolerated(old: str, new: str, matched: str, bench: Bench) -> None:
    bench.put({"calc.py": CALC.replace("\n", "\r\n")})
    data = bench.data(edit_file, path="calc.py", old_str=old, new_str=new)
    assert data == {"path": "calc.py", "replacements": 1, "start_line": 1, "lines_changed": 2, "matched": matched}
    assert bench.bytes_of("calc.py") == CALC.replace("a - b", "a + b", 1).replace("\n", "\r\n").encode()


def test_edit_of_an_unread_file_returns_the_file(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    output = bench.run(edit_file, path="calc.py", old_str="print('Hello')", new_str="x")
    read = bench.data(read_file, path="calc.py")
    note = (
        "Nothing was changed: 'calc.py' was not read yet. This is what it holds. Make the edit again, from this text."
    )
    assert output.result.data == {**read, "changed": False, "note": note}
    assert (output.changes, output.files_read) == ((), bench.files_read)
    assert bench.error(edit_file, path="calc.py", old_str="print('Hello')", new_str="x").message.startswith(MISS)
    assert bench.bytes_of("calc.py") == CALC.encode()


def edit(old: str, new: str, *, everywhere: bool = False) -> JsonMap:
    return {"old_str": old, "new_str": new, "replace_all": everywhere}


def test_edits_are_applied_in_order_and_the_file_is_written_once(bench: Bench) -> None:
    bench.put({"calc.py": CALC.replace("\n", "\r\n")})
    (bench.root / "calc.py").chmod(0o755)
    output = bench.run(
        multi_edit,
        path="calc.py",
        edits=[
            edit("return a - b", "return 0", everywhere=True),
            edit("def add(a, b):\n    return 0", "def add(a, b):\n    return a + b"),
            {"old_str": "return 0", "new_str": "return a - b"},
        ],
    )
    assert output.result.data == {"path": "calc.py", "edits": 3, "replacements": 4, "lines_changed": 5}
    assert bench.bytes_of("calc.py") == CALC.replace("a - b", "a + b", 1).replace("\n", "\r\n").encode()
    assert (bench.root / "calc.py").stat().st_mode & 0o777 == 0o755
    [change] = output.changes
    assert change.diff == (
        "--- a/calc.py\n+++ b/calc.py\n@@ -1,5 +1,5 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
        " \n \n def sub(a, b):\n"
    )
    assert output.files_read == {"calc.py": change.sha256_after}


@rows(
    ([edit("add", "plus"), edit("a - b", "a + b")], f"Edit 2 of 2 failed, so none was made: {TWICE}: add lines"),
    ([edit("add", "x\x00"), edit("sub", "y")], "Edit 1 of 2 failed, so none was made: new_str holds the character"),
    (
        [edit("add", "plus"), edit("plus", "add")],
        "The edits undo each other, so nothing of 'calc.py' would change.",
    ),
)
def test_one_failed_edit_leaves_the_file_unchanged(edits: list[JsonMap], message: str, bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    bench.data(read_file, path="calc.py")
    error = bench.error(multi_edit, path="calc.py", edits=edits)
    assert (error.code, error.suggestions) == (ToolErrorCode.INVALID_ARGUMENT, ())
    assert error.message.startswith(message)
    assert bench.bytes_of("calc.py") == CALC.encode()


@rows((0, False), (1, True), (MAX_EDITS, True), (MAX_EDITS + 1, False))
def test_number_of_edits_is_bounded(count: int, fits: bool) -> None:
    arguments = {"path": "a", "edits": [edit("a", "b")] * count}
    assert isinstance(multi_edit.validate(arguments), dict) is fits


def test_loosest_match_is_reported(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    assert bench.error(multi_edit, path="gone.py", edits=[edit("a", "b")]).code is ToolErrorCode.NOT_FOUND
    edits = [edit(" def sub(a, b):\n", " def minus(a, b):\n"), edit("def add(a, b): \n", "def plus(a, b):\n")]
    data = bench.data(multi_edit, path="calc.py", edits=edits)
    assert data == {"path": "calc.py", "edits": 2, "replacements": 2, "lines_changed": 2, "matched": "indentation"}
    assert bench.bytes_of("calc.py") == CALC.replace("add", "plus").replace("def sub", "def minus").encode()
