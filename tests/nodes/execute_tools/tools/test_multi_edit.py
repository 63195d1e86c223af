import pytest

from nodes.execute_tools.tools.multi_edit import MAX_EDITS, multi_edit
from nodes.execute_tools.tools.read_file import read_file
from nodes.records import JsonMap, ToolErrorCode
from tests.nodes.execute_tools.tools.conftest import Bench

CALC = "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"


def edit(old: str, new: str, *, everywhere: bool = False) -> JsonMap:
    return {"old_str": old, "new_str": new, "replace_all": everywhere}


def test_edits_are_made_in_order_and_the_file_is_written_once(bench: Bench) -> None:
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


def test_a_file_that_changed_since_it_was_read_is_not_edited_but_shown_in_outline(bench: Bench) -> None:
    bench.put({"calc.py": "old\n"})
    bench.data(read_file, path="calc.py")
    bench.put({"calc.py": CALC})
    error = bench.error(multi_edit, path="calc.py", edits=[edit("add", "plus")])
    assert (error.code, error.message) == (
        ToolErrorCode.CONFLICT,
        (
            "'calc.py' has changed since it was read: read_file it again, and base your change on what it holds now."
            " It has 6 lines now, with these definitions:\n1: def add(a, b):\n5: def sub(a, b):"
        ),
    )
    assert bench.bytes_of("calc.py") == CALC.encode()
    bench.data(read_file, path="calc.py")
    data = bench.data(multi_edit, path="calc.py", edits=[edit("add", "plus")])
    assert data == {"path": "calc.py", "edits": 1, "replacements": 1, "lines_changed": 1}


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (
            [edit("add", "plus"), edit("a - b", "a + b")],
            (
                "Edit 2 of 2 failed, so none was made: old_str occurs 2 times in 'calc.py', at lines 2, 6: add lines"
                " around it until it occurs once, or set replace_all."
            ),
        ),
        (
            [edit("add", "plus"), edit("add", "minus")],
            (
                "Edit 2 of 2 failed, so none was made: old_str does not occur in 'calc.py'. Nothing in it is near:"
                " read_file it first."
            ),
        ),
        (
            [edit("x", "x")],
            "Edit 1 of 1 failed, so none was made: old_str and new_str are equal, so the edit would change nothing.",
        ),
        (
            [edit("", "x")],
            (
                "Edit 1 of 1 failed, so none was made: 'calc.py' exists: old_str may be empty only to create a file."
                " Give the text to replace."
            ),
        ),
        (
            [edit("add", "x\x00"), edit("sub", "y")],
            (
                "Edit 1 of 2 failed, so none was made: new_str holds the character U+0000 in line 1, which no text file"
                " can hold; leave it out."
            ),
        ),
        (
            [edit("add", "plus"), edit("plus", "add")],
            "The edits undo each other, so nothing of 'calc.py' would change.",
        ),
    ],
)
def test_one_edit_that_fails_leaves_the_file_as_it_was(bench: Bench, edits: list[JsonMap], message: str) -> None:
    bench.put({"calc.py": CALC})
    bench.data(read_file, path="calc.py")
    error = bench.error(multi_edit, path="calc.py", edits=edits)
    assert (error.code, error.message, error.suggestions) == (ToolErrorCode.INVALID_ARGUMENT, message, ())
    assert bench.bytes_of("calc.py") == CALC.encode()


def test_a_miss_shows_the_nearest_lines_as_they_are_after_the_edits_before(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    bench.data(read_file, path="calc.py")
    edits = [edit("def add(a, b):", "def plus(a, b):"), edit("def plus(a,b):\n  return a-b", "x")]
    error = bench.error(multi_edit, path="calc.py", edits=edits)
    assert error.message == (
        "Edit 2 of 2 failed, so none was made: old_str does not occur in 'calc.py'. The nearest lines are 1-2, 5-6:"
        " take old_str from the suggestions, which show them as they are."
    )
    assert error.suggestions == ("def plus(a, b):\n    return a - b", "def sub(a, b):\n    return a - b")


def test_the_syntax_is_judged_after_all_edits(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    bench.syntax_gate = "refuse"
    bench.data(multi_edit, path="calc.py", edits=[edit("add(a, b)", "add("), edit("add(", "add(a)")])
    bench.error(multi_edit, path="calc.py", edits=[edit("sub(a, b)", "sub("), edit("add", "plus")])
    assert bench.bytes_of("calc.py") == CALC.replace("add(a, b)", "add(a)").encode()


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("calc.yp", ToolErrorCode.NOT_FOUND, "No such file: 'calc.yp'. Did you mean 'calc.py'?"),
        (
            "binary",
            ToolErrorCode.INVALID_ARGUMENT,
            "'binary' is a binary file of 3 bytes; only UTF-8 text can be edited.",
        ),
        (".env", ToolErrorCode.PERMISSION_DENIED, ".env is secret (for_write=False)."),
    ],
)
def test_files_that_cannot_be_edited(bench: Bench, path: str, code: ToolErrorCode, message: str) -> None:
    bench.put({"calc.py": CALC, "binary": b"a\x00b", ".env": "a"})
    error = bench.error(multi_edit, path=path, edits=[edit("a", "b")])
    assert (error.code, error.message) == (code, message)


@pytest.mark.parametrize(("count", "fits"), [(0, False), (1, True), (MAX_EDITS, True), (MAX_EDITS + 1, False)])
def test_the_number_of_edits_is_bounded(count: int, fits: bool) -> None:
    arguments = {"path": "a", "edits": [edit("a", "b")] * count}
    assert isinstance(multi_edit.validate(arguments), dict) is fits


def test_an_edit_with_unknown_fields_is_refused() -> None:
    wrong = multi_edit.validate({"path": "a", "edits": [{"old_str": "a", "new_str": "b", "count": 1}]})
    assert wrong == ["edits.0.count: unknown argument"]


def test_the_loosest_match_is_told(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    edits = [edit(" def sub(a, b):\n", " def minus(a, b):\n"), edit("def add(a, b): \n", "def plus(a, b):\n")]
    data = bench.data(multi_edit, path="calc.py", edits=edits)
    assert data == {"path": "calc.py", "edits": 2, "replacements": 2, "lines_changed": 2, "matched": "indentation"}
    assert bench.bytes_of("calc.py") == CALC.replace("add", "plus").replace("def sub", "def minus").encode()


def test_an_edit_of_a_file_that_was_not_read_is_answered_with_the_file(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    data = bench.data(multi_edit, path="calc.py", edits=[edit("add", "plus"), edit("print('Hello')", "x")])
    assert (data["content"], data["changed"]) == (CALC, False)
    assert bench.bytes_of("calc.py") == CALC.encode()
    bench.error(multi_edit, path="calc.py", edits=[edit("print('Hello')", "x")])
