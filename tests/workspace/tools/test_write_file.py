import stat

from mendgraph.nodes.execute_tools.tools.edit_file import edit_file
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.execute_tools.tools.write_file import append_file, write_file
from mendgraph.nodes.records import ChangeKind
from tests.extent import slow
from tests.row_tables import rows
from tests.workspace.conftest import Bench


def test_file_is_created_with_its_folders(bench: Bench) -> None:
    output = bench.run(write_file, path="src/new.py", content="x = 'é'\ny = 2")
    assert output.result.data == {"path": "src/new.py", "action": "created", "bytes": 14, "lines": 2}
    assert bench.bytes_of("src/new.py") == "x = 'é'\ny = 2".encode()
    assert [change.kind for change in output.changes] == [ChangeKind.CREATED]


def test_new_file_has_a_bom_if_its_text_starts_with_one(bench: Bench) -> None:
    data = bench.data(write_file, path="a.cs", content="\ufeffclass A;\r\n")
    bench.data(edit_file, path="b.cs", old_str="", new_str="\ufeffclass B;\n")
    assert (data["bytes"], bench.bytes_of("a.cs")) == (13, b"\xef\xbb\xbfclass A;\r\n")
    assert bench.bytes_of("b.cs") == b"\xef\xbb\xbfclass B;\n"


def test_file_is_shown_before_it_is_replaced_and_keeps_its_mode(bench: Bench) -> None:
    bench.put({"a.py": "old\n"})
    (bench.root / "a.py").chmod(0o755)
    data = bench.data(write_file, path="a.py", content="new\n")
    assert (data["content"], data["changed"]) == ("old\n", False)
    assert bench.bytes_of("a.py") == b"old\n"

    data = bench.data(write_file, path="a.py", content="new\n")
    assert data == {"path": "a.py", "action": "overwritten", "bytes": 4, "lines": 1}
    bench.data(write_file, path="a.py", content="newer\n")
    assert bench.bytes_of("a.py") == b"newer\n"
    assert stat.S_IMODE((bench.root / "a.py").stat().st_mode) == 0o755


@rows(
    (b"a\r\nb\r\n", "a\nc\n", b"a\r\nc\r\n"),
    (b"\xef\xbb\xbfa\n", "c\n", b"\xef\xbb\xbfc\n"),
    (b"\xef\xbb\xbfa\n", "\ufeffc\n", b"\xef\xbb\xbfc\n"),
    (b"a\n", "a\r\n", b"a\r\n"),
    (b"a\nb\r\nc\r\n", "x\na\nb\nd\nc\n", b"x\na\nb\r\nd\r\nc\r\n"),
    (b"a\nb\nc\r\nd", "a\nc\ne\n", b"a\nc\r\ne\n"),
)
def test_bom_and_line_endings_are_kept(old: bytes, content: str, new: bytes, bench: Bench) -> None:
    bench.put({"a": old})
    bench.data(read_file, path="a")
    bench.data(write_file, path="a", content=content)
    assert bench.bytes_of("a") == new


def test_append_creates_a_missing_file(bench: Bench) -> None:
    output = bench.run(append_file, file_name="logs/new.md", content="one")
    assert output.result.data == {"path": "logs/new.md", "action": "created", "start_line": 1, "lines": 1}
    assert bench.bytes_of("logs/new.md") == b"one"


@rows(
    (b"one", "two\n", b"one\ntwo\n", 2),
    (b"one\r\ntwo", "three\nfour", b"one\r\ntwo\r\nthree\r\nfour", 3),
    (b"\xef\xbb\xbfone\n", "two", b"\xef\xbb\xbfone\ntwo", 2),
    (b"one\n", "two\r\n", b"one\ntwo\n", 2),
    (b"", "two\r\n", b"two\r\n", 1),
)
def test_append_changes_only_a_missing_final_newline(
    old: bytes, content: str, new: bytes, start_line: int, bench: Bench
) -> None:
    bench.put({"a": old})
    assert bench.data(append_file, path="a", content=content)["start_line"] == start_line
    assert bench.bytes_of("a") == new


LONG = "".join(f"line {number}\n" for number in range(1, 41))


@rows("# ... rest of the code remains unchanged ...", "...", "// existing code")
def test_placeholder_for_most_of_a_file_is_refused(placeholder: str, bench: Bench) -> None:
    bench.put({"a.txt": LONG})
    bench.data(read_file, path="a.txt")
    error = bench.error(write_file, path="a.txt", content=f"line 1!\nline 2\n{placeholder}\n")
    assert f"it says `{placeholder}` and loses 39 of 40 lines, from line 1 to line 40" in error.message
    assert bench.bytes_of("a.txt") == LONG.encode()


@slow
def test_placeholder_is_written_if_nothing_is_lost(bench: Bench) -> None:
    bench.put({"a.txt": LONG, "b.txt": "...\n" + LONG})
    for path, content in (("a.txt", LONG + "...\n"), ("a.txt", "line 1\n"), ("b.txt", "...\nline 1\n")):
        bench.data(read_file, path=path)
        bench.data(write_file, path=path, content=content)
        assert bench.bytes_of(path) == content.encode()
