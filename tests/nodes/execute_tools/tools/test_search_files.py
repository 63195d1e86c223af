import sys
from typing import Any

import pytest

from nodes.execute_tools.environment.processes import ProcessResult
from nodes.execute_tools.tools.search_files import search_files
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.tools.conftest import Bench

MODULE = sys.modules[search_files.run.__module__]
FILES: dict[str, str | bytes] = {
    "a.py": "import os\n\n\ndef add(a, b):\n    return a + b\n",
    "src/b.py": "def Add(x):\n    return x\n",
    "src/sub/c.txt": "add it\r\n",
    "src/gen/d.py": "def add(): pass\n",
    "src/gen.txt": "add\n",
    ".env": "add=secret\n",
    ".github/e.yml": "add: 1\n",
    ".git/config": "add\n",
    "build/f.py": "def add(): pass\n",
    "binary": b"add\x00add",
    ".gitignore": "build/\n/src/gen.txt\n",
    "src/.gitignore": "gen/\n",
    ".ignore": "a.py\n",
}


@pytest.fixture(params=["ripgrep", "by hand"])
def finder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to search: with the program, and without it."""
    if request.param == "by hand":
        monkeypatch.setattr(MODULE, "ripgrep_path", lambda: None)
    return str(request.param)


def places(bench: Bench, **arguments: Any) -> list[str]:
    matches = bench.data(search_files, **arguments)["matches"]
    return [f"{match['path']}:{match['line']}:{match['text']}" for match in matches]


@pytest.mark.usefixtures("finder")
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "def add"}, ["a.py:4:def add(a, b):"]),
        (
            {"pattern": "ADD", "ignore_case": True},
            [".github/e.yml:1:add: 1", "a.py:4:def add(a, b):", "src/b.py:1:def Add(x):", "src/sub/c.txt:1:add it"],
        ),
        ({"pattern": "(a, b)", "literal": True}, ["a.py:4:def add(a, b):"]),
        ({"pattern": "add", "path": "src"}, ["src/sub/c.txt:1:add it"]),
        ({"pattern": "add", "path": "src/sub/c.txt"}, ["src/sub/c.txt:1:add it"]),
        ({"pattern": "add", "glob": "*.py"}, ["a.py:4:def add(a, b):"]),
        ({"pattern": "add", "glob": "src/**/*.txt"}, ["src/sub/c.txt:1:add it"]),
        ({"pattern": "add", "glob": "sub/*", "path": "src"}, ["src/sub/c.txt:1:add it"]),
        ({"pattern": "add", "glob": "*.{yml,toml}"}, [".github/e.yml:1:add: 1"]),
        ({"pattern": "add", "glob": "gen.txt"}, []),
        ({"pattern": "add", "path": "link"}, ["src/sub/c.txt:1:add it"]),
        ({"pattern": "-add", "literal": True}, []),
        ({"pattern": "add", "path": "empty"}, []),
    ],
)
def test_matches(bench: Bench, arguments: dict[str, Any], found: list[str]) -> None:
    bench.put(FILES)
    (bench.root / "empty").mkdir()
    (bench.root / "link").symlink_to("src")
    (bench.root / "outside").symlink_to("/etc")
    assert sorted(places(bench, **arguments)) == found


@pytest.mark.usefixtures("finder")
def test_context(bench: Bench) -> None:
    bench.put(FILES)
    [match] = bench.data(search_files, pattern="def add", context_lines=3)["matches"]
    before, after = ["import os", "", ""], ["    return a + b"]
    assert match == {"path": "a.py", "line": 4, "text": "def add(a, b):", "before": before, "after": after}


@pytest.mark.usefixtures("finder")
def test_no_match_gives_guidance(bench: Bench) -> None:
    """Spec 3, How to verify: zero results return the guidance message."""
    bench.put(FILES)
    assert bench.data(search_files, pattern="nothing like it") == {
        "matches": [],
        "has_more": False,
        "guidance": "no matches found; try list_files, check alternate naming, or broaden the filters",
    }


@pytest.mark.usefixtures("finder")
def test_many_matches_are_cut(bench: Bench) -> None:
    bench.put({"a": "x\n" * 200, "b": "x\n"})
    data = bench.data(search_files, pattern="x", max_results=100)
    assert (len(data["matches"]), data["has_more"]) == (100, True)
    assert data["guidance"] == "there are more matches; narrow the pattern or the path"


def test_regular_expressions(bench: Bench) -> None:
    bench.put(FILES)
    assert places(bench, pattern=r"^def \w+\(a") == ["a.py:4:def add(a, b):"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            {"pattern": "add("},
            ToolErrorCode.INVALID_ARGUMENT,
            (
                "The pattern is not a valid regular expression (unclosed group). Set literal to true to search for it"
                " as plain text."
            ),
        ),
        ({"pattern": "a\nb"}, ToolErrorCode.INVALID_ARGUMENT, "The pattern spans several lines"),
        ({"pattern": "a\x00"}, ToolErrorCode.INVALID_ARGUMENT, "pattern holds the character U+0000"),
        ({"pattern": "a", "glob": "{a,b}" * 7}, ToolErrorCode.INVALID_ARGUMENT, "The glob is too long"),
        ({"pattern": "a", "path": "scr"}, ToolErrorCode.NOT_FOUND, "Did you mean 'src'?"),
        ({"pattern": "a", "path": ".."}, ToolErrorCode.PERMISSION_DENIED, "leads out of the workspace"),
        ({"pattern": "a", "path": "outside"}, ToolErrorCode.PERMISSION_DENIED, "leads out of the workspace"),
        ({"pattern": "a", "path": ".env"}, ToolErrorCode.PERMISSION_DENIED, ".env is secret"),
    ],
)
def test_what_cannot_be_searched(bench: Bench, arguments: dict[str, Any], code: ToolErrorCode, message: str) -> None:
    bench.put(FILES)
    (bench.root / "outside").symlink_to("/etc")
    error = bench.error(search_files, **arguments)
    assert error.code is code
    assert message in error.message


def test_without_ripgrep_an_expression_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "ripgrep_path", lambda: None)
    bench.put(FILES)
    error = bench.error(search_files, pattern="a.*b")
    assert error.message == "Regular expressions need ripgrep, which is not installed: set literal to true."


def test_without_ripgrep_a_search_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "ripgrep_path", lambda: None)
    monkeypatch.setattr(MODULE, "MAX_SCANNED_BYTES", 10)
    bench.put({"a": "x\n", "b": "x" * 20})
    data = bench.data(search_files, pattern="x")
    assert ([match["path"] for match in data["matches"]], data["has_more"]) == (["a"], True)


@pytest.mark.parametrize(
    ("result", "code", "message"),
    [
        (
            ToolError(code=ToolErrorCode.TIMEOUT, message="rg was stopped."),
            ToolErrorCode.TIMEOUT,
            "The search took longer than 10 s: narrow it with path or glob.",
        ),
        (ToolError(code=ToolErrorCode.IO_ERROR, message="rg failed."), ToolErrorCode.IO_ERROR, "rg failed."),
    ],
)
def test_a_search_that_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, result: ToolError, code: ToolErrorCode, message: str
) -> None:
    bench.put(FILES)
    monkeypatch.setattr(MODULE, "run_process", lambda *_, **__: result)
    error = bench.error(search_files, pattern="a")
    assert (error.code, error.message) == (code, message)


def test_output_that_was_cut_means_more(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(FILES)
    cut = ProcessResult(-9, b'{"type":"begi', b"", truncated=True)
    monkeypatch.setattr(MODULE, "run_process", lambda *_, **__: cut)
    assert bench.data(search_files, pattern="a")["has_more"] is True
