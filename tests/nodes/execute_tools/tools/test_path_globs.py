from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.registry import ToolContext
from nodes.execute_tools.tools.path_globs import MAX_PATTERN_CHARACTERS, parse_glob, relative_glob


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("*.py", ["a.py", "src/deep/a.py", ".py"], ["a.pyi", "a.py/x"]),
        ("src/*.py", ["src/a.py"], ["a.py", "src/deep/a.py", "x/src/a.py"]),
        ("/a.py", [], ["a.py", "src/a.py"]),
        ("{/src,./src}/*.py", ["src/a.py"], []),
        ("{/src,x}/*.py", [], ["src/a.py"]),
        ("./a.py", ["a.py"], ["src/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/x/y/a.py"], ["a.py", "lib/src/a.py"]),
        ("**/test_*.py", ["test_a.py", "x/test_a.py"], ["a_test.py"]),
        ("src/**", ["src/a", "src/x/a"], ["lib/a"]),
        ("src/", ["src/a", "src/x/a"], ["lib/a"]),
        ("**", ["a", "x/a"], []),
        ("a?.[ch]", ["ab.c", "x/ab.h"], ["a.c", "ab.o"]),
        ("*.{ts,tsx}", ["a.ts", "x/a.tsx"], ["a.js", "a.{ts,tsx}"]),
        ("{src,lib/{a,b}}/*.py", ["src/x.py", "lib/a/x.py", "lib/b/x.py"], ["lib/c/x.py"]),
        ("a{b", ["a{b"], ["ab"]),
        ("A.py", ["A.py"], ["a.py"]),
    ],
)
def test_matches(pattern: str, fits: list[str], fails: list[str]) -> None:
    glob = parse_glob(pattern)
    assert glob is not None
    assert [path for path in fits + fails if glob.matches(path)] == fits


@pytest.mark.parametrize("pattern", ["a" * (MAX_PATTERN_CHARACTERS + 1), "{a,b}" * 7, "{a,b}" * 90])
def test_a_pattern_that_is_too_much(pattern: str) -> None:
    assert parse_glob(pattern) is None


def test_an_absolute_pattern_keeps_its_place(tmp_path: Path) -> None:
    context = ToolContext(Workspace(str(tmp_path.resolve()), lambda *_: None))
    assert relative_glob(context, f"{context.workspace.root}/*.py") == "./*.py"


def test_no_pattern_takes_for_ever() -> None:
    glob = parse_glob("*a" * 40 + "b/" + "**/" * 50 + "x")
    assert glob is not None
    assert not glob.matches("a" * 250 + "/a" * 100)


@given(st.text(alphabet="ab*?[]{},/!-", max_size=12), st.text(alphabet="ab/", min_size=1, max_size=12))
def test_no_pattern_fails(pattern: str, path: str) -> None:
    glob = parse_glob(pattern)
    assert glob is None or glob.matches(path) in {True, False}
