import pytest

from nodes.execute_tools.tools.list_files import MAX_ENTRIES, list_files
from nodes.records import ToolErrorCode
from tests.nodes.execute_tools.tools.conftest import Bench


def test_directories_come_first_and_paths_are_those_of_the_workspace(bench: Bench) -> None:
    bench.put({"src/b.py": "", "src/a.py": "", "src/sub/c.py": "", "README.md": ""})
    (bench.root / "src" / "link").symlink_to("a.py")
    assert bench.data(list_files) == {
        "entries": ["src/", "README.md"],
        "directories": 1,
        "files": 1,
        "has_more": False,
    }
    entries = ["src/sub/", "src/a.py", "src/b.py", "src/link"]
    assert bench.data(list_files, path="./src") == {"entries": entries, "directories": 1, "files": 3, "has_more": False}


def test_an_empty_directory(bench: Bench) -> None:
    assert bench.data(list_files) == {"entries": [], "directories": 0, "files": 0, "has_more": False}


def test_a_large_directory_is_cut_and_counted(bench: Bench) -> None:
    bench.put({f"{number:04}": "" for number in range(MAX_ENTRIES + 1)})
    data = bench.data(list_files)
    assert (len(data["entries"]), data["files"], data["has_more"]) == (MAX_ENTRIES, MAX_ENTRIES + 1, True)


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("scr", ToolErrorCode.NOT_FOUND, "Did you mean 'src'?"),
        ("..", ToolErrorCode.PERMISSION_DENIED, "outside the workspace"),
        ("src/a.py", ToolErrorCode.INVALID_ARGUMENT, "is a file, not a directory"),
        ("@result/1", ToolErrorCode.INVALID_ARGUMENT, 'kept result, not a directory: read_file path="@result/1"'),
    ],
)
def test_what_cannot_be_listed(bench: Bench, path: str, code: ToolErrorCode, message: str) -> None:
    bench.put({"src/a.py": ""})
    error = bench.error(list_files, path=path)
    assert error.code is code
    assert message in error.message
