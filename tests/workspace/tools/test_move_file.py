import hashlib
import stat

from mendgraph.nodes.execute_tools.tools.edit_file import edit_file
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.write_file import delete_file, move_file, write_file
from mendgraph.nodes.records import ChangeKind, FileChange
from tests.workspace.conftest import Bench


def test_file_is_moved_with_its_mode_into_new_folders(bench: Bench) -> None:
    bench.put({"a.py": b"\xef\xbb\xbfx = 1\r\n"})
    (bench.root / "a.py").chmod(0o750)
    output = bench.run(move_file, path="./a.py", target="src/deep/b.py")
    assert output.result.data == {"path": "a.py", "target": "src/deep/b.py", "action": "moved"}
    assert bench.bytes_of("src/deep/b.py") == b"\xef\xbb\xbfx = 1\r\n"
    assert stat.S_IMODE((bench.root / "src/deep/b.py").stat().st_mode) == 0o750
    assert not (bench.root / "a.py").exists()
    sha256 = hashlib.sha256(b"\xef\xbb\xbfx = 1\r\n").hexdigest()
    gone, created = output.changes
    assert gone.diff == "--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    assert (gone.path, gone.kind, gone.sha256_before, gone.sha256_after) == ("a.py", ChangeKind.DELETED, sha256, "")
    assert created.diff == "--- /dev/null\n+++ b/src/deep/b.py\n@@ -0,0 +1 @@\n+x = 1\n"
    assert (created.path, created.kind, created.sha256_after) == ("src/deep/b.py", ChangeKind.CREATED, sha256)
    assert output.files_read == {"a.py": ""}


def test_read_state_moves_with_a_file(bench: Bench) -> None:
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


def test_file_is_deleted_whether_read_or_not(bench: Bench) -> None:
    bench.put({"src/a.py": "x = 1\n", "src/b.py": ""})
    bench.data(read_file, path="src/a.py")
    output = bench.run(delete_file, path="src/a.py")
    assert output.result.data == {"path": "src/a.py", "action": "deleted"}
    assert [path.name for path in bench.root.rglob("*")] == ["src", "b.py"]
    sha256 = hashlib.sha256(b"x = 1\n").hexdigest()
    diff = "--- a/src/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    change = FileChange(path="src/a.py", kind=ChangeKind.DELETED, sha256_before=sha256, sha256_after="", diff=diff)
    assert output.changes == (change,)
    assert output.files_read == {"src/a.py": ""}

    assert bench.data(delete_file, path="src/b.py") == {"path": "src/b.py", "action": "deleted"}
