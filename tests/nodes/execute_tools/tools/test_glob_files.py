import sys

import pytest

from nodes.execute_tools.registry import Tool, ToolOutput
from nodes.execute_tools.tools.glob_files import MAX_PATHS, glob_files
from nodes.execute_tools.tools.search_files import search_files
from nodes.records import ToolErrorCode
from tests.nodes.execute_tools.tools.conftest import Bench

FILES = {
    "a.py": "",
    "src/b.py": "",
    "src/sub/c.py": "",
    "src/.env": "",
    "docs/d.md": "",
    "build/e.py": "",
    ".gitignore": "build/\n",
    ".git/f.py": "",
    ".github/g.py": "",
}


@pytest.mark.parametrize(
    ("pattern", "path", "paths"),
    [
        ("*.py", ".", [".github/g.py", "a.py", "src/b.py", "src/linked.py", "src/sub/c.py"]),
        ("*.py", "src", ["src/b.py", "src/linked.py", "src/sub/c.py"]),
        ("sub/*.py", "src", ["src/sub/c.py"]),
        ("src/sub/*.py", "src", ["src/sub/c.py"]),
        ("src/*", ".", ["src/b.py", "src/linked.py"]),
        ("*.{md,rst}", ".", ["docs/d.md"]),
        ("*", "link", ["src/b.py", "src/linked.py", "src/sub/c.py"]),
    ],
)
def test_paths_are_sorted_readable_and_not_ignored(bench: Bench, pattern: str, path: str, paths: list[str]) -> None:
    bench.put(FILES)
    (bench.root / "link").symlink_to("src")
    (bench.root / "src" / "linked.py").symlink_to("b.py")
    (bench.root / "src" / "secret").symlink_to(".env")
    (bench.root / "src" / "outside").symlink_to("/etc/hosts")
    assert bench.data(glob_files, pattern=pattern, path=path)["paths"] == paths


@pytest.mark.parametrize("tool", [glob_files, search_files], ids=["glob_files", "search_files"])
def test_an_absolute_pattern_means_the_place_that_it_names(bench: Bench, tool: Tool) -> None:
    bench.put(FILES)

    def asked(glob: str) -> ToolOutput:
        return bench.run(tool, pattern=glob) if tool is glob_files else bench.run(tool, pattern="^", glob=glob)

    (bench.root.parent / "alias").symlink_to(bench.root)
    for root in (bench.root, bench.root.parent / "alias"):
        assert asked(f"{root}/src/*.py") == asked("src/*.py")
    for elsewhere in ("/tmp/other/src/*.py", "~/src/*.py", "C:\\work\\src\\*.py", "file:///src/*.py"):
        error = asked(elsewhere).result.error
        assert error is not None
        assert (error.code, error.suggestions) == (ToolErrorCode.PERMISSION_DENIED, ("src/*.py",))


def test_no_match_gives_guidance(bench: Bench) -> None:
    bench.put(FILES)
    assert bench.data(glob_files, pattern="*.rs") == {
        "paths": [],
        "has_more": False,
        "guidance": "no matches found; try list_files, check alternate naming, or broaden the filters",
    }
    assert bench.data(glob_files, pattern="*", path=".github")["has_more"] is False


def test_many_matches_are_cut(bench: Bench) -> None:
    bench.put({f"{number:04}": "" for number in range(MAX_PATHS + 1)})
    data = bench.data(glob_files, pattern="*")
    assert (len(data["paths"]), data["has_more"]) == (MAX_PATHS, True)
    assert data["guidance"] == "there are more matches; narrow the pattern or the path"


def test_a_very_large_workspace_is_not_walked_to_its_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put({f"{number}": "" for number in range(9)})
    monkeypatch.setattr(sys.modules[glob_files.run.__module__], "MAX_VISITED", 3)
    data = bench.data(glob_files, pattern="[2-8]")
    assert (data["paths"], data["has_more"]) == (["2"], True)


@pytest.mark.parametrize(
    ("pattern", "path", "code"),
    [
        ("{a,b}" * 7, ".", ToolErrorCode.INVALID_ARGUMENT),
        ("*", "nothing", ToolErrorCode.NOT_FOUND),
        ("*", "..", ToolErrorCode.PERMISSION_DENIED),
        ("*", "a.py", ToolErrorCode.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_be_searched(bench: Bench, pattern: str, path: str, code: ToolErrorCode) -> None:
    bench.put(FILES)
    assert bench.error(glob_files, pattern=pattern, path=path).code is code


def test_a_kept_result_is_no_directory(bench: Bench) -> None:
    error = bench.error(glob_files, pattern="*", path="@result/1")
    assert error.code is ToolErrorCode.INVALID_ARGUMENT
    assert error.message == '@result/1 is a kept result, not a directory: read_file path="@result/1" reads it.'
