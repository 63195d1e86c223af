import pytest

from nodes.execute_tools.tools.edit_blocks import edit_blocks
from nodes.execute_tools.tools.read_file import read_file
from nodes.records import ChangeKind, ToolErrorCode
from tests.nodes.execute_tools.tools.conftest import Bench

CALC = "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
BROKEN = "def add(a, b:\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"
CONFIG = "".join(f"key{number}: {number}\n" for number in range(30))


def test_a_function_is_replaced_by_name(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    output = bench.run(edit_blocks, path="calc.py", content=FIXED)
    fixed = CALC.replace("a - b", "a + b", 1)
    assert output.result.data == {"path": "calc.py", "changed": ["add"], "action": "merged", "content": fixed}
    assert bench.bytes_of("calc.py") == fixed.encode()
    [change] = output.changes
    assert (change.kind, change.path) == (ChangeKind.EDITED, "calc.py")
    assert "-    return a - b\n+    return a + b\n" in change.diff


def test_line_ends_and_bom_are_kept(bench: Bench) -> None:
    bench.put({"calc.py": b"\xef\xbb\xbf" + CALC.replace("\n", "\r\n").encode()})
    data = bench.data(edit_blocks, path="calc.py", content=f"\ufeff{FIXED}")
    assert data["content"] == CALC.replace("a - b", "a + b", 1)
    expected = CALC.replace("a - b", "a + b", 1).replace("\n", "\r\n").encode()
    assert bench.bytes_of("calc.py") == b"\xef\xbb\xbf" + expected


def test_what_is_left_aside_is_said(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    data = bench.data(edit_blocks, path="calc.py", content=f"{FIXED}\nprint(add(1, 2))\n")
    assert data["ignored"] == ["line 4 `print(add(1, 2))`"]


def test_new_files(bench: Bench) -> None:
    data = bench.data(edit_blocks, path="src/calc.py", content=CALC)
    assert data == {"path": "src/calc.py", "changed": ["add", "sub"], "action": "created", "content": CALC}
    assert bench.bytes_of("src/calc.py") == CALC.encode()
    data = bench.data(edit_blocks, path="a.txt", content="a\n")
    assert data == {"path": "a.txt", "changed": [], "action": "created", "content": "a\n"}


def test_another_file_is_replaced_as_a_whole_once_it_was_read(bench: Bench) -> None:
    bench.put({"config.yaml": CONFIG.replace("\n", "\r\n")})
    error = bench.error(edit_blocks, path="config.yaml", content=CONFIG + "new: 1\n")
    assert (error.code, "was not read yet" in error.message) == (ToolErrorCode.CONFLICT, True)
    bench.data(read_file, path="config.yaml")
    data = bench.data(edit_blocks, path="config.yaml", content=CONFIG + "new: 1\n")
    assert data == {"path": "config.yaml", "changed": [], "action": "replaced", "content": CONFIG + "new: 1\n"}
    assert bench.bytes_of("config.yaml") == (CONFIG + "new: 1\n").replace("\n", "\r\n").encode()


def test_broken_python_is_replaced_as_a_whole(bench: Bench) -> None:
    bench.put({"calc.py": BROKEN})
    bench.data(read_file, path="calc.py")
    assert bench.data(edit_blocks, path="calc.py", content=CALC)["action"] == "replaced"
    assert bench.bytes_of("calc.py") == CALC.encode()


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("calc.py", CALC, "The block is identical to what 'calc.py' already has, so nothing would change."),
        ("calc.py", "def add(\n", "The block is not valid Python (line 1: '(' was never closed)."),
        ("calc.py", " \n", "content is empty: give the new text."),
        ("calc.py", "x = '\x00'", "content holds the character U+0000 in line 1"),
        ("calc.py", "def add(a, b):\n    pass\n", "The block leaves out part of add: line 1 gives add no body."),
        ("new.py", "def add(:\n", "The block for 'new.py' is not valid Python (line 1: invalid syntax)."),
        ("broken.py", FIXED, "The block would drop sub from 'broken.py'. Send the whole text, or use edit_file."),
        (
            "broken.py",
            f"{CALC}x = (\n",
            "The block for 'broken.py' is not valid Python (line 7: '(' was never closed).",
        ),
        ("broken.py", BROKEN, "The block is identical to what 'broken.py' already has, so nothing would change."),
        (
            "config.yaml",
            "key1: 2\n",
            "The block looks like an excerpt of 'config.yaml': it has 1 lines where the file has 30. Send",
        ),
        (
            "config.yaml",
            CONFIG + "# ... rest unchanged\n",
            "The block looks like an excerpt of 'config.yaml': it says `# ... rest unchanged` in place of text.",
        ),
        ("binary.py", "x = 1", "'binary.py' is a binary file of 3 bytes"),
    ],
)
def test_refusals(bench: Bench, path: str, content: str, message: str) -> None:
    files = {
        "calc.py": CALC.encode(),
        "broken.py": BROKEN.encode(),
        "config.yaml": CONFIG.encode(),
        "binary.py": b"a\x00b",
    }
    bench.put(files)
    for name in ("calc.py", "broken.py", "config.yaml"):
        bench.data(read_file, path=name)
    error = bench.error(edit_blocks, path=path, content=content)
    unchanged = message.startswith("The block is identical")
    assert error.code is (ToolErrorCode.UNCHANGED if unchanged else ToolErrorCode.INVALID_ARGUMENT)
    assert error.message.startswith(message)
    assert {name: bench.bytes_of(name) for name in files} == files


def test_a_file_that_changed_since_it_was_read_is_read_again_first(bench: Bench) -> None:
    bench.put({"calc.py": "x = 1\n"})
    bench.data(read_file, path="calc.py")
    bench.put({"calc.py": CALC})
    error = bench.error(edit_blocks, path="calc.py", content=FIXED)
    assert (error.code, error.message) == (
        ToolErrorCode.CONFLICT,
        (
            "'calc.py' has changed since it was read: read_file it again, and base your change on what it holds now."
            " It has 6 lines now, with these definitions:\n1: def add(a, b):\n5: def sub(a, b):"
        ),
    )
    bench.data(read_file, path="calc.py")
    bench.data(edit_blocks, path="calc.py", content=FIXED)
    bench.data(edit_blocks, path="calc.py", content=FIXED.replace("a + b", "b + a"))


def test_a_block_that_breaks_a_file_says_so(bench: Bench) -> None:
    bench.put({"a.json": "{}\n"})
    bench.data(read_file, path="a.json")
    bench.syntax_gate = "refuse"
    error = bench.error(edit_blocks, path="a.json", content="{,}\n")
    assert error.message.startswith("With this edit 'a.json' no longer parses as JSON: line 1: Expecting property name")
    assert bench.bytes_of("a.json") == b"{}\n"
    bench.syntax_gate = "report"
    data = bench.data(edit_blocks, path="a.json", content="{,}\n")
    assert (data["action"], data["syntax"][:32]) == ("replaced", "no longer parses as JSON: line 1")


def test_what_is_denied_stays_denied(bench: Bench) -> None:
    bench.put({".env": "KEY=1"})
    assert bench.error(edit_blocks, path=".env", content="KEY=2").code is ToolErrorCode.PERMISSION_DENIED
