import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.registry import Tool, ToolOutput
from mendgraph.nodes.execute_tools.tools.search_files import (
    MAX_ENTRIES,
    MAX_PATHS,
    glob_files,
    list_files,
    search_files,
)
from mendgraph.nodes.records import ToolErrorCode
from mendgraph.nodes.workspace.files.tree_walk import parse_glob
from tests.row_tables import rows
from tests.workspace.conftest import Bench

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


@rows(
    ("*.py", ".", [".github/g.py", "a.py", "src/b.py", "src/linked.py", "src/sub/c.py"]),
    ("*.py", "src", ["src/b.py", "src/linked.py", "src/sub/c.py"]),
    ("src/sub/*.py", "src", ["src/sub/c.py"]),
    ("*.{md,rst}", ".", ["docs/d.md"]),
    ("*", "link", ["src/b.py", "src/linked.py", "src/sub/c.py"]),
)
def test_readable_paths_are_listed_sorted_without_ignored_ones(
    pattern: str, path: str, paths: list[str], bench: Bench
) -> None:
    bench.put(FILES)
    (bench.root / "link").symlink_to("src")
    (bench.root / "src" / "linked.py").symlink_to("b.py")
    (bench.root / "src" / "secret").symlink_to(".env")
    (bench.root / "src" / "outside").symlink_to("/etc/hosts")
    assert bench.data(glob_files, pattern=pattern, path=path)["paths"] == paths


@rows(glob_files, search_files)
def test_absolute_pattern_is_resolved_to_its_place(tool: Tool, bench: Bench) -> None:
    bench.put(FILES)

    def output_of(glob: str) -> ToolOutput:
        return bench.run(tool, pattern=glob) if tool is glob_files else bench.run(tool, pattern="^", glob=glob)

    alias = bench.root.with_name(f"{bench.root.name}-alias")
    alias.symlink_to(bench.root)
    for root in (bench.root, alias):
        assert output_of(f"{root}/src/*.py") == output_of("src/*.py")
    for elsewhere in ("/tmp/other/src/*.py", "~/src/*.py", "C:\\work\\src\\*.py", "file:///src/*.py"):
        error = output_of(elsewhere).result.error
        assert error is not None
        assert (error.code, error.suggestions) == (ToolErrorCode.PERMISSION_DENIED, ("src/*.py",))


def test_no_match_gives_guidance(bench: Bench) -> None:
    bench.put(FILES)
    guidance = "no matches found; try list_files, check alternate naming, or broaden the filters"
    assert bench.data(glob_files, pattern="*.rs") == {"paths": [], "has_more": False, "guidance": guidance}
    assert bench.data(glob_files, pattern="*", path=".github")["has_more"] is False


PATTERNS: list[tuple[str, list[str], list[str]]] = [
    ("*.py", ["a.py", "src/deep/a.py", ".py"], ["a.pyi", "a.py/x"]),
    ("src/*.py", ["src/a.py"], ["a.py", "src/deep/a.py", "x/src/a.py"]),
    ("/a.py", [], ["a.py", "src/a.py"]),
    ("src/**/*.py", ["src/a.py", "src/x/y/a.py"], ["a.py", "lib/src/a.py"]),
    ("src/", ["src/a", "src/x/a"], ["lib/a"]),
    ("a?.[ch]", ["ab.c", "x/ab.h"], ["a.c", "ab.o"]),
    ("*.{ts,tsx}", ["a.ts", "x/a.tsx"], ["a.js", "a.{ts,tsx}"]),
    ("{src,lib/{a,b}}/*.py", ["src/x.py", "lib/a/x.py", "lib/b/x.py"], ["lib/c/x.py"]),
    ("a{b", ["a{b"], ["ab"]),
]


def test_glob_pattern_matches_paths() -> None:
    for pattern, fits, fails in PATTERNS:
        glob = parse_glob(pattern)
        assert glob is not None
        assert (pattern, [path for path in fits + fails if glob.matches(path)]) == (pattern, fits)


def test_walk_of_a_very_large_workspace_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put({f"{number}": "" for number in range(9)})
    monkeypatch.setattr(sys.modules[glob_files.run.__module__], "MAX_VISITED", 3)
    data = bench.data(glob_files, pattern="[2-8]")
    assert (data["paths"], data["has_more"]) == (["2"], True)


def test_pattern_is_limited_to_500_characters_and_64_alternatives() -> None:
    assert [parse_glob("a" * length) is None for length in (500, 501)] == [False, True]
    assert [parse_glob("{" + "a," * commas + "a}") is None for commas in (63, 64)] == [False, True]


def test_time_for_any_pattern_is_bounded() -> None:
    glob = parse_glob("*a" * 40 + "b/" + "**/" * 50 + "x")
    assert glob is not None
    assert not glob.matches("a" * 250 + "/a" * 100)


def test_directories_come_first_and_paths_are_relative_to_the_workspace(bench: Bench) -> None:
    bench.put({"src/b.py": "", "src/a.py": "", "src/sub/c.py": "", "README.md": ""})
    (bench.root / "src" / "link").symlink_to("a.py")
    assert bench.data(list_files) == {"entries": ["src/", "README.md"], "directories": 1, "files": 1, "has_more": False}
    entries = ["src/sub/", "src/a.py", "src/b.py", "src/link"]
    assert bench.data(list_files, path="./src") == {"entries": entries, "directories": 1, "files": 3, "has_more": False}


ROUTES: dict[str, str | bytes] = {
    "app/[slug]/page.tsx": "title\n",
    "app/s/page.tsx": "other\n",
    "app/(shop)/cart.tsx": "cart\n",
    "app/{id}/page.tsx": "id\n",
}


@rows(
    ("app/[slug]/page.tsx", ["app/[slug]/page.tsx"]),
    ("app/[slug]/**", ["app/[slug]/page.tsx"]),
    ("app/\\[slug\\]/page.tsx", ["app/[slug]/page.tsx"]),
    ("app/\\(shop\\)/*", ["app/(shop)/cart.tsx"]),
    ("app/(shop)/*", ["app/(shop)/cart.tsx"]),
    ("app/{id}/*", ["app/{id}/page.tsx"]),
    ("app/[a-z]/*", ["app/s/page.tsx"]),
    ("app/{s,x}/*", ["app/s/page.tsx"]),
)
@rows(glob_files, search_files)
def test_literal_path_takes_precedence_over_glob_characters(
    tool: Any, pattern: str, paths: list[str], bench: Bench
) -> None:
    bench.put(ROUTES)
    if tool is glob_files:
        result = bench.data(tool, pattern=pattern)["paths"]
    else:
        result = [match["path"] for match in bench.data(tool, pattern="^", glob=pattern)["matches"]]
    assert result == paths


@rows(
    (list_files, {}, "a.txt b\\udce9.txt"),
    (glob_files, {"pattern": "*.txt"}, "a.txt b\\udce9.txt"),
    (search_files, {"pattern": "same"}, "a.txt"),
)
def test_non_utf8_name_is_reported(tool: Any, arguments: dict[str, str], expected: str, bench: Bench) -> None:
    bench.put({"a.txt": "same\n"})
    assert "note" not in bench.data(tool, **arguments)
    Path(os.fsdecode(os.fsencode(bench.root) + b"/b\xe9.txt")).write_text("same\n", "utf-8")
    data = bench.data(tool, **arguments)
    entries = data.get("entries") or data.get("paths") or [match["path"] for match in data["matches"]]
    assert " ".join(entries) == expected
    assert data["note"] == "b\\udce9.txt is not UTF-8: no tool opens a file with such a name."


def test_many_paths_are_truncated_only_above_the_limit(bench: Bench) -> None:
    bench.put({f"{number:04}": "" for number in range(MAX_PATHS + 1)})
    data = bench.data(glob_files, pattern="*")
    assert (len(data["paths"]), data["has_more"]) == (MAX_PATHS, True)
    assert data["guidance"] == "there are more matches; narrow the pattern or the path"
    assert bench.data(glob_files, pattern="0*[1-9]")["has_more"] is False
    (bench.root / "0000").unlink()
    data = bench.data(glob_files, pattern="*")
    assert (len(data["paths"]), data["has_more"]) == (MAX_PATHS, False)


def test_large_directory_is_truncated_and_counted(bench: Bench) -> None:
    bench.put({f"{number:04}": "" for number in range(MAX_ENTRIES + 1)})
    data = bench.data(list_files)
    assert (len(data["entries"]), data["files"], data["has_more"]) == (MAX_ENTRIES, MAX_ENTRIES + 1, True)
    (bench.root / "0000").unlink()
    data = bench.data(list_files)
    assert (len(data["entries"]), data["files"], data["has_more"]) == (MAX_ENTRIES, MAX_ENTRIES, False)
