"""Calls that the file tools refuse: nothing changes, and the message says why."""

from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tools.edit_file import edit_file, multi_edit
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.search_files import glob_files, list_files, search_files
from mendgraph.nodes.execute_tools.tools.write_file import append_file, delete_file, move_file, write_file
from mendgraph.nodes.records import JsonMap, ToolErrorCode
from tests.row_tables import rows
from tests.workspace.conftest import Bench
from tests.workspace.files.layout import tree_of

INVALID, CONFLICT = ToolErrorCode.INVALID_ARGUMENT, ToolErrorCode.CONFLICT
DENIED, NOT_FOUND = ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.NOT_FOUND
FILES: dict[str, str | bytes] = {
    "a.py": "a\nb\n",
    "b.py": "b\n",
    "src/a.py": "",
    "crlf": "same\r\n",
    "binary": b"a\x00b",
    "latin": b"\xe9",
    ".env": "KEY=1",
}
MANY = "{a,b}" * 7
LINK = "it is a symbolic link to 'a.py'. Name the file itself."
KEPT = 'is a kept result, not a directory: read_file path="@result/1" reads it.'

REFUSED = [
    (read_file, {"path": "binary"}, INVALID, "'binary' is a binary file of 3 bytes; only UTF-8 text can be read."),
    (read_file, {"path": "latin"}, INVALID, "is a file of 1 byte that is not UTF-8 (line 1 has the byte 0xE9)"),
    (read_file, {"path": "a.py", "start_line": 40}, INVALID, "'a.py' has 2 lines, so there is nothing at start_line"),
    (read_file, {"path": "a.py", "start_line": 2, "start_column": 3}, INVALID, "Line 2 of 'a.py' has 1 characters, so"),
    (read_file, {"path": "a.yp"}, NOT_FOUND, "Did you mean 'a.py'"),
    (read_file, {"path": ".env"}, DENIED, ".env is secret (for_write=False)."),
    (read_file, {"path": "../a"}, DENIED, "outside the workspace"),
    (read_file, {"path": "/etc/hosts"}, DENIED, "outside the workspace"),
    (read_file, {"path": "src"}, INVALID, "directory"),
    (list_files, {"path": "scr"}, NOT_FOUND, "Did you mean 'src'"),
    (list_files, {"path": ".."}, DENIED, "outside the workspace"),
    (list_files, {"path": "src/a.py"}, INVALID, "is a file, not a directory"),
    (list_files, {"path": "@result/1"}, INVALID, KEPT),
    (glob_files, {"pattern": MANY}, INVALID, "too long"),
    (glob_files, {"pattern": "*", "path": "nothing"}, NOT_FOUND, "nothing"),
    (glob_files, {"pattern": "*", "path": "@result/1"}, INVALID, KEPT),
    (glob_files, {"pattern": "*", "path": ".."}, DENIED, "outside the workspace"),
    (glob_files, {"pattern": "*", "path": "a.py"}, INVALID, "a.py"),
    (
        search_files,
        {"pattern": "add("},
        INVALID,
        "(unclosed group). Set literal to true to search for it as plain text",
    ),
    (search_files, {"pattern": "a\nb"}, INVALID, "The pattern spans several lines"),
    (search_files, {"pattern": "a", "glob": MANY}, INVALID, "The glob is too long"),
    (search_files, {"pattern": "a", "path": "scr"}, NOT_FOUND, "Did you mean 'src'"),
    (search_files, {"pattern": "a", "path": "outside"}, DENIED, "outside the workspace"),
    (search_files, {"pattern": "a", "path": ".env"}, DENIED, ".env is secret"),
    (search_files, {"pattern": "a", "path": "@result/1"}, INVALID, KEPT),
    (
        write_file,
        {"path": "crlf", "content": "same\n"},
        INVALID,
        "'crlf' already has exactly this content, so there is",
    ),
    (write_file, {"path": "c", "content": "x\x00"}, INVALID, "content holds the character U+0000 in line 1"),
    (write_file, {"path": "binary", "content": "x"}, INVALID, "'binary' is a binary file of 3 bytes"),
    (write_file, {"path": ".env", "content": "x"}, DENIED, ".env is secret"),
    (append_file, {"path": "a.py", "content": ""}, INVALID, "content is empty: there is nothing to append."),
    (append_file, {"path": "a.py", "content": "x\x00"}, INVALID, "content holds the character U+0000 in line 1"),
    (append_file, {"path": ".env", "content": "x"}, DENIED, ".env is secret"),
    *(
        (move_file, {"path": "a.py", "target": target}, CONFLICT, f"Cannot move 'a.py': '{target}' exists. Give a path")
        for target in ("b.py", "a.py", "src")
    ),
    (move_file, {"path": "a.yp", "target": "c.py"}, NOT_FOUND, "No such file: 'a.yp'. Did you mean 'a.py'"),
    (move_file, {"path": "link.py", "target": "c.py"}, INVALID, f"Cannot move 'link.py': {LINK}"),
    (move_file, {"path": ".env", "target": "c.py"}, DENIED, ".env is secret (for_write=False)."),
    (move_file, {"path": "a.py", "target": "src/.env"}, DENIED, "src/.env is secret (for_write=True)."),
    (delete_file, {"path": "binary"}, INVALID, "'binary' is a binary file of 3 bytes; only UTF-8 text can be deleted."),
    (delete_file, {"path": "link.py"}, INVALID, f"Cannot delete 'link.py': {LINK}"),
    (delete_file, {"path": ".env"}, DENIED, ".env is secret (for_write=False)."),
]


@rows(*REFUSED)
def test_refused_call_says_why_and_changes_nothing(
    tool: Tool, arguments: JsonMap, code: ToolErrorCode, message: str, bench: Bench
) -> None:
    bench.put(FILES)
    (bench.root / "link.py").symlink_to("a.py")
    (bench.root / "outside").symlink_to("/etc")
    before = tree_of(bench.root)

    error = bench.error(tool, **arguments)

    assert error.code is code
    assert message in error.message
    assert tree_of(bench.root) == before


EDIT = {"old_str": "a", "new_str": "c"}


@rows((write_file, {"content": "x\n"}), (edit_file, EDIT), (multi_edit, {"edits": [EDIT]}), (delete_file, {}))
def test_file_changed_since_it_was_read_must_be_read_again(tool: Tool, arguments: JsonMap, bench: Bench) -> None:
    bench.put(FILES)
    bench.data(read_file, path="a.py")
    bench.put({"a.py": "a, theirs\n"})

    error = bench.error(tool, path="a.py", **arguments)

    message = "'a.py' has changed since it was read: read_file it again, and base your change on what it holds now."
    assert (error.code, error.message) == (CONFLICT, message)
    assert bench.bytes_of("a.py") == b"a, theirs\n"
    bench.data(read_file, path="a.py")
    assert bench.run(tool, path="a.py", **arguments).result.ok
