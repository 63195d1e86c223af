import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import example, given, settings, strategies as st

from mendgraph.nodes.workspace.files.sandbox import JudgedPaths, Place
from mendgraph.nodes.workspace.files.tree_walk import (
    DEEPEST,
    LARGEST_IGNORE_FILE,
    LONGEST_PATTERN,
    MOST_WORK,
    Entry,
    IgnoreRules,
    judged_entries,
)
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.doubles.system_calls import after_each
from tests.extent import slow
from tests.workspace.files.layout import DENIAL, allow, no_env


def walked(root: Path, start: str, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return [entry.path for entry in Workspace(str(root), allow).walk(start)]


def test_walk_lists_everything_in_order_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(".")
    names = walked(tmp_path, ".", {"b/c.py": "", "b/a/x.py": "", "a.py": "", ".git/config": "", "b/.git/config": ""})
    assert names == ["a.py", "b", "b/a", "b/a/x.py", "b/c.py", "loop"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (".", [".gitignore", "keep", "keep/.gitignore", "keep/a.log", "keep/b.py", "src", "src/x.py"]),
        ("keep", ["keep/.gitignore", "keep/a.log", "keep/b.py"]),
        ("src", ["src/x.py"]),
        ("build", ["build/out.log", "build/out.py"]),
    ],
)
def test_walk_leaves_out_what_git_ignores(tmp_path: Path, start: str, expected: list[str]) -> None:
    files = {
        ".gitignore": "*.log\n/build/\nsecret\n# a comment\n\n!/keep/a.log\n",
        "build/out.py": "",
        "build/out.log": "",
        "keep/.gitignore": "*.tmp\n",
        "keep/a.log": "",
        "keep/b.py": "",
        "keep/c.tmp": "",
        "keep/d.log": "",
        "src/x.py": "",
        "src/x.log": "",
        "src/secret/y.py": "",
    }
    assert walked(tmp_path, start, files) == expected


def test_byte_order_mark_of_an_ignore_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbfbuild\n")
    (tmp_path / "build").touch()
    paths = [entry.path for entry in Workspace(str(tmp_path), allow).walk()]
    assert paths == [".gitignore"]


def test_walk_does_not_enter_denied_directories(root: Path) -> None:
    workspace = Workspace(str(root), lambda path, _: DENIAL if path == "src" else None)
    assert "src/b.py" not in [entry.path for entry in workspace.walk()]


def test_walk_ends_at_its_maximum_depth(tmp_path: Path) -> None:
    deep = "/".join(["d"] * (DEEPEST + 5))
    assert len(walked(tmp_path, ".", {f"{deep}/f": ""})) == DEEPEST


def test_directory_moved_while_opened_is_judged_and_listed_under_its_new_name(root: Path) -> None:
    paths = JudgedPaths(str(root), no_env)
    with pytest.raises(NotADirectoryError):
        judged_entries(paths, Place("a.py", "a.py"))

    def listed_when_moved_to(target: str) -> object:
        def move(name: str, *_: object) -> None:
            if name == "src" and (root / "src").exists():
                os.rename(root / "src", root / target)

        with after_each("open", move):
            return judged_entries(paths, Place("src", "src"))

    assert listed_when_moved_to("other") == [Entry("other/b.py", "file", 6)]
    os.rename(root / "other", root / "src")
    assert listed_when_moved_to(".git/src") == DENIAL


FOLDERS = ("a", "b", "a b", "!a")
FILES = ("ab", "aa", "*", "a*", "-", " b", "#", "b ", "1")
PIECES = (*"a/*?!- #\r", "b", "**", "**/", "/**", "\\*", "\\#", "[ab]", "[!a]", "[^b]", "[a-c]", "[]a]", "a**")
LINES = st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), max_size=3)
NAMES = st.tuples(st.lists(st.sampled_from(FOLDERS), max_size=2), st.sampled_from((*FILES, "")))


@cache
def repository() -> Path:
    """A repository with directories in it, two deep."""
    top = Path(mkdtemp())
    subprocess.run(["git", "init", "-q", str(top)], check=True)
    for outer in FOLDERS:
        for inner in FOLDERS:
            (top / outer / inner).mkdir(parents=True)
    return top


def hidden(text: str, parts: Sequence[str], name: str) -> bool:
    """Whether the rules hide the path or a directory above it."""
    rules = IgnoreRules().within(".", [Entry(".gitignore", "file", 0)], lambda _: text.encode())
    folders = [Entry("/".join(parts[: depth + 1]), "directory", 0) for depth in range(len(parts))]
    return any(map(rules.ignores, folders)) or (
        bool(name) and rules.ignores(Entry("/".join([*parts, name]), "file", 0))
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git: install it")
@settings(max_examples=40)
@example(["b\\ "], [([], "b "), ([], "b")])
@given(LINES, st.lists(NAMES, min_size=12, max_size=12))
def test_ignore_rules_match_those_of_git(lines: list[str], names: list[tuple[list[str], str]]) -> None:
    text, names = "\n".join(lines), [(parts, name) for parts, name in names if parts or name]
    (repository() / ".gitignore").write_bytes(text.encode())
    paths = "\0".join("/".join([*parts, name] if name else parts) for parts, name in names)
    command = ["git", "-C", str(repository()), "check-ignore", "--no-index", "-z", "-v", "-n", "--stdin"]
    answer = subprocess.run(command, input=f"{paths}\0".encode(), capture_output=True, check=False).stdout.split(b"\0")
    ignored = [bool(pattern) and not pattern.startswith(b"!") for pattern in answer[2::4]]
    assert [hidden(text, parts, name) for parts, name in names] == ignored


def test_time_for_any_ignore_pattern_is_bounded() -> None:
    rows = [
        ("*a" * 20 + "b", ["a" * 255]),
        ("**/a*/" * 40 + "b", ["a" * 60] * 60),
        ("**/*a*a" * 30 + "/b", ["a" * 60] * 60),
        ("*[a-z]" * 80 + "1", ["a" * 255]),
    ]
    for line, parts in rows:
        assert not hidden(f"{line}\n" * 5, parts, "a" * 255)


@slow
def test_ignore_files_are_bounded_and_what_exceeds_the_bound_hides_nothing() -> None:
    assert hidden("x\n" * (LARGEST_IGNORE_FILE // 2), [], "x")
    assert not hidden("x\n" * (LARGEST_IGNORE_FILE // 2 + 1), [], "x")
    assert hidden("x" * LONGEST_PATTERN, [], "x" * LONGEST_PATTERN)
    assert not hidden("x" * (LONGEST_PATTERN + 1), [], "x" * (LONGEST_PATTERN + 1))
    assert [hidden("*x\n" + "*y\n" * MOST_WORK, [], name) for name in ("y", "x")] == [True, False]
    assert not hidden("z\n" + "x\n!y\n" * MOST_WORK, [], "z")
    assert hidden("x\n!y\n" * MOST_WORK + "z", [], "z")
