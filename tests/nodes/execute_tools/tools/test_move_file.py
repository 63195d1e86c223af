import hashlib
import stat

import pytest

from mendgraph.nodes.execute_tools.tools.edit_file import edit_file
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.write_file import delete_file, move_file, write_file
from mendgraph.nodes.records import ChangeKind, FileChange, ToolErrorCode
from tests.nodes.execute_tools.conftest import Bench


def test_file_is_moved_with_its_mode_into_new_folders(bench: Bench) -> None:
    bench.put({"a.py": b"\xef\xbb\xbfx = 1\r\n"})
    (bench.root / "a.py").chmod(0o750)
    output = bench.run(move_file, path="./a.py", target="src/deep/b.py")
    assert output.result.data == {"path": "a.py", "target": "src/deep/b.py", "action": "moved"}
    assert bench.bytes_of("src/deep/b.py") == b"\xef\xbb\xbfx = 1\r\n"
    assert stat.S_IMODE((bench.root / "src/deep/b.py").stat().st_mode) == 0o750
    assert not (bench.root / "a.py").exists()
    sha256 = hashlib.sha256(b"\xef\xbb\xbfx = 1\r\n").hexdigest()
    assert output.changes == (
        FileChange(
            path="a.py",
            kind=ChangeKind.DELETED,
            sha256_before=sha256,
            sha256_after="",
            diff="--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n",
        ),
        FileChange(
            path="src/deep/b.py",
            kind=ChangeKind.CREATED,
            sha256_before="",
            sha256_after=sha256,
            diff="--- /dev/null\n+++ b/src/deep/b.py\n@@ -0,0 +1 @@\n+x = 1\n",
        ),
    )
    assert output.files_read == {"a.py": ""}


def test_what_the_thread_knows_of_a_file_goes_along(bench: Bench) -> None:
    bench.put({"read.py": "x = 1\n", "stale.py": "x = 1\n", "new.py": "x = 1\n"})
    for name in ("read.py", "stale.py"):
        bench.data(read_file, path=name)
    bench.put({"stale.py": "theirs = 1\n"})
    for name in ("read.py", "stale.py", "new.py"):
        assert bench.data(move_file, path=name, target=f"moved/{name}")["action"] == "moved"
    bench.data(write_file, path="moved/read.py", content="y = 1\n")
    stale = bench.error(edit_file, path="moved/stale.py", old_str="1", new_str="2")
    assert stale.message.startswith("'moved/stale.py' has changed since it was read: read_file it again, ")
    unread = bench.data(write_file, path="moved/new.py", content="y = 1\n")
    assert unread["note"].startswith("Nothing was changed: 'moved/new.py' was not read yet. ")


@pytest.mark.parametrize("target", ["b.py", "a.py", "src"])
def test_nothing_is_overwritten(bench: Bench, target: str) -> None:
    files = {"a.py": "a", "b.py": "b", "src/c": "c"}
    bench.put(files)
    error = bench.error(move_file, path="a.py", target=target)
    message = f"Cannot move 'a.py': '{target}' exists. Give a path where nothing is."
    assert (error.code, error.message) == (ToolErrorCode.CONFLICT, message)
    assert {name: bench.bytes_of(name).decode() for name in files} == files


@pytest.mark.parametrize(
    ("path", "target", "code", "message"),
    [
        ("a.yp", "b.py", ToolErrorCode.NOT_FOUND, "No such file: 'a.yp'. Did you mean 'a.py'?"),
        (
            "link.py",
            "b.py",
            ToolErrorCode.INVALID_ARGUMENT,
            "Cannot move 'link.py': it is a symbolic link to 'a.py'. Name the file itself.",
        ),
        (".env", "b.py", ToolErrorCode.PERMISSION_DENIED, ".env is secret (for_write=False)."),
        ("a.py", ".env", ToolErrorCode.PERMISSION_DENIED, ".env is secret (for_write=True)."),
    ],
)
def test_what_is_not_moved(bench: Bench, path: str, target: str, code: ToolErrorCode, message: str) -> None:
    bench.put({"a.py": "x\n", ".env": "KEY=1", "src/b": ""})
    (bench.root / "link.py").symlink_to("a.py")
    before = sorted(str(each) for each in bench.root.rglob("*"))
    error = bench.error(move_file, path=path, target=target)
    assert (error.code, error.message) == (code, message)
    assert sorted(str(each) for each in bench.root.rglob("*")) == before


def test_file_that_was_read_is_deleted(bench: Bench) -> None:
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


def test_file_that_was_not_read_is_deleted(bench: Bench) -> None:
    bench.put({"a.py": "x\n"})
    assert bench.data(delete_file, path="a.py") == {"path": "a.py", "action": "deleted"}
    assert not (bench.root / "a.py").exists()


def test_file_that_has_changed_since_is_not_deleted(bench: Bench) -> None:
    bench.put({"a.py": "x\n"})
    bench.data(read_file, path="a.py")
    bench.put({"a.py": "theirs\n"})
    error = bench.error(delete_file, path="a.py")
    assert (error.code, error.message) == (
        ToolErrorCode.CONFLICT,
        "'a.py' has changed since it was read: read_file it again, and base your change on what it holds now.",
    )
    assert bench.bytes_of("a.py") == b"theirs\n"


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        (
            "binary",
            ToolErrorCode.INVALID_ARGUMENT,
            "'binary' is a binary file of 3 bytes; only UTF-8 text can be deleted.",
        ),
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
