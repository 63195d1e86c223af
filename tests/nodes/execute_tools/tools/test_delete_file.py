import hashlib
from typing import Any

import pytest

from nodes.execute_tools.tools.delete_file import delete_file
from nodes.execute_tools.tools.edit_file import edit_file
from nodes.execute_tools.tools.read_file import read_file
from nodes.execute_tools.tools.write_file import write_file
from nodes.records import ChangeKind, FileChange, ToolErrorCode
from tests.nodes.execute_tools.tools.conftest import Bench


def test_a_file_that_was_read_is_deleted(bench: Bench) -> None:
    bench.put({"src/a.py": "x = 1\n", "src/b.py": ""})
    bench.data(read_file, path="src/a.py")
    output = bench.run(delete_file, path="src/a.py")
    assert output.result.data == {"path": "src/a.py", "action": "deleted"}
    assert [path.name for path in bench.root.rglob("*")] == ["src", "b.py"]
    assert output.changes == (
        FileChange(
            path="src/a.py",
            kind=ChangeKind.DELETED,
            sha256_before=hashlib.sha256(b"x = 1\n").hexdigest(),
            sha256_after="",
            diff="--- a/src/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n",
        ),
    )
    assert output.files_read == {"src/a.py": ""}


def test_a_file_that_was_written_is_deleted_and_can_be_made_again(bench: Bench) -> None:
    bench.data(write_file, path="a.py", content="")
    assert bench.data(delete_file, filename="./a.py") == {"path": "a.py", "action": "deleted"}
    assert bench.error(delete_file, path="a.py").code is ToolErrorCode.NOT_FOUND
    bench.data(edit_file, path="a.py", old_str="", new_str="x\n")
    bench.data(delete_file, path="a.py")


def test_a_file_that_was_not_read_is_not_deleted(bench: Bench) -> None:
    bench.put({"a.py": "x\n"})
    error = bench.error(delete_file, path="a.py")
    assert (error.code, error.message) == (
        ToolErrorCode.CONFLICT,
        "'a.py' exists, and was not read yet: read_file it before you delete it.",
    )
    assert bench.bytes_of("a.py") == b"x\n"


def test_a_file_that_has_changed_since_is_not_deleted(bench: Bench) -> None:
    bench.put({"a.py": "x\n"})
    bench.data(read_file, path="a.py")
    bench.put({"a.py": "theirs\n"})
    error = bench.error(delete_file, path="a.py")
    assert (error.code, error.message) == (
        ToolErrorCode.CONFLICT,
        (
            "'a.py' has changed since it was read: read_file it again, and base your change on what it holds now."
            " It has 1 line now, beginning with:\n1: theirs"
        ),
    )
    assert bench.bytes_of("a.py") == b"theirs\n"


def test_a_file_that_changes_at_the_last_moment_is_not_deleted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put({"a.py": "x\n"})
    bench.data(read_file, path="a.py")
    change_files = bench.workspace.change_files

    def late(changes: Any) -> Any:
        bench.put({"a.py": "theirs\n"})
        return change_files(changes)

    monkeypatch.setattr(bench.workspace, "change_files", late)
    error = bench.error(delete_file, path="a.py")
    assert error.message == "Cannot delete 'a.py': it has changed since it was read; read it again."
    assert bench.bytes_of("a.py") == b"theirs\n"


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("a.yp", ToolErrorCode.NOT_FOUND, "No such file: 'a.yp'. Did you mean 'a.py'?"),
        (
            "binary",
            ToolErrorCode.INVALID_ARGUMENT,
            "'binary' is a binary file of 3 bytes; only UTF-8 text can be deleted.",
        ),
        ("folder", ToolErrorCode.INVALID_ARGUMENT, "Cannot read 'folder': it is a directory, and a file is needed."),
        (
            "link.py",
            ToolErrorCode.INVALID_ARGUMENT,
            "Cannot delete 'link.py': it is a symbolic link to 'a.py'. Name the file itself.",
        ),
        (".env", ToolErrorCode.PERMISSION_DENIED, ".env is secret (for_write=False)."),
    ],
)
def test_what_is_not_deleted(bench: Bench, path: str, code: ToolErrorCode, message: str) -> None:
    bench.put({"a.py": "x\n", "binary": b"a\x00b", ".env": "KEY=1"})
    (bench.root / "folder").mkdir()
    (bench.root / "link.py").symlink_to("a.py")
    bench.data(read_file, path="a.py")
    before = sorted(each.name for each in bench.root.iterdir())
    error = bench.error(delete_file, path=path)
    assert (error.code, error.message) == (code, message)
    assert sorted(each.name for each in bench.root.iterdir()) == before
