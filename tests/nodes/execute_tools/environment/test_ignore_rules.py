import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.environment.ignore_rules import LARGEST_IGNORE_FILE, LONGEST_PATTERN, MOST_WORK, IgnoreRules
from nodes.execute_tools.environment.listing import Entry

FOLDERS = ("a", "b", "a b", "!a", "]", "\\", "\u00e9")
FILES = ("ab", "aa", "*", "a*", "[", "-", " b", "#", "b ", "1")
PIECES = (
    *"a/*?[]!-\\ #\r",
    "b",
    "**",
    "**/",
    "/**",
    "\\/",
    "\\*",
    "[ab]",
    "[!a]",
    "[^b/]",
    "[a-c]",
    "[--0]",
    "[]a]",
    "[!]a]",
)
CLASSES = ("[[:alpha:]]", "[![:digit:]x]", "[[:foo:]]", "[z-a]", "[a-\\]]", "[a/b]", "[/]", "\u00e9", "a**", "***")
LINES = st.lists(st.lists(st.sampled_from(PIECES + CLASSES), max_size=6).map("".join), max_size=3)
NAMES = st.tuples(st.lists(st.sampled_from(FOLDERS), max_size=2), st.sampled_from((*FILES, "")))


def rules(**files: str) -> IgnoreRules:
    """Rules as they hold in `sub`, which itself has files as named."""
    texts = {name.replace("__", "/"): text for name, text in files.items()}

    def read(path: str) -> bytes:
        return texts.get(path.replace(".gitignore", "ignore"), "").encode()

    return IgnoreRules.above(("sub", "x"), read)


@pytest.mark.parametrize(
    ("found", "path", "kind", "ignored"),
    [
        (rules(), "sub/a.log", "file", False),
        (rules(ignore="*.log"), "sub/a.log", "file", True),
        (rules(ignore="*.log"), "sub/a.py", "file", False),
        (rules(ignore="*.log", sub__ignore="!a.log"), "sub/a.log", "file", False),
        (rules(sub__ignore="/a.log"), "sub/a.log", "file", True),
        (rules(sub__ignore="/a.log"), "sub/deep/a.log", "file", False),
        (rules(ignore="/a.log"), "sub/a.log", "file", False),
        (rules(ignore="x/"), "sub/y/x", "directory", False),
        (rules(ignore="y/"), "sub/y", "directory", True),
        (rules(ignore="y/"), "sub/y", "file", False),
        (rules(ignore="*.log\n!a.log"), "sub/a.log", "file", False),
        (rules(ignore="# x\n\n  \n"), "sub/# x", "file", False),
        (rules(ignore="*.log\n!\n"), "sub/a.log", "file", True),
        (rules(ignore="\ufeff*.log"), "sub/a.txt", "file", False),
    ],
)
def test_which_names_are_ignored(found: IgnoreRules, path: str, kind: Any, ignored: bool) -> None:
    assert found.ignores(Entry(path, kind, 0)) is ignored


def test_rules_that_hide_the_directory_itself_are_dropped() -> None:
    assert rules(ignore="sub/") == IgnoreRules()


def test_a_directory_without_an_ignore_file_adds_no_rules() -> None:
    def read(_: str) -> bytes:
        raise AssertionError("there is nothing to read")

    assert IgnoreRules().within("sub", [Entry("sub/.gitignore", "link", 0)], read) == IgnoreRules()


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
    found = IgnoreRules().within(".", [Entry(".gitignore", "file", 0)], lambda _: text.encode())
    folders = [Entry("/".join(parts[: depth + 1]), "directory", 0) for depth in range(len(parts))]
    return any(map(found.ignores, folders)) or (
        bool(name) and found.ignores(Entry("/".join([*parts, name]), "file", 0))
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git: install it")
@given(LINES, st.lists(NAMES, min_size=12, max_size=12))
def test_the_verdicts_are_those_of_git(lines: list[str], names: list[tuple[list[str], str]]) -> None:
    text, names = "\n".join(lines), [(parts, name) for parts, name in names if parts or name]
    (repository() / ".gitignore").write_bytes(text.encode())
    asked = "\0".join("/".join([*parts, name] if name else parts) for parts, name in names)
    command = ["git", "-C", str(repository()), "check-ignore", "--no-index", "-z", "-v", "-n", "--stdin"]
    answer = subprocess.run(command, input=f"{asked}\0".encode(), capture_output=True, check=False).stdout.split(b"\0")
    said = [bool(pattern) and not pattern.startswith(b"!") for pattern in answer[2::4]]
    assert [hidden(text, parts, name) for parts, name in names] == said


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("*a" * 20 + "b", ["a" * 255]),
        ("a*" * 200 + "b", ["a" * 255]),
        ("?*" * 200 + "b", ["a" * 255]),
        ("**/a*/" * 40 + "b", ["a" * 60] * 60),
        ("**/*a*a" * 30 + "/b", ["a" * 60] * 60),
        ("*[a-z]" * 80 + "1", ["a" * 255]),
        ("/**/" * 100 + "b", ["a" * 60] * 60),
        ("!" + "*a" * 20 + "b", ["a" * 255]),
    ],
)
def test_no_pattern_takes_for_ever(line: str, parts: list[str]) -> None:
    assert not hidden(f"{line}\n" * 5, parts, "a" * 255)


def test_what_a_repository_brings_is_bounded_and_the_rest_of_it_hides_nothing() -> None:
    assert hidden("x\n" * (LARGEST_IGNORE_FILE // 2), [], "x")
    assert not hidden("x\n" * (LARGEST_IGNORE_FILE // 2 + 1), [], "x")
    assert hidden("x" * LONGEST_PATTERN, [], "x" * LONGEST_PATTERN)
    assert not hidden("x" * (LONGEST_PATTERN + 1), [], "x" * (LONGEST_PATTERN + 1))
    assert hidden("*y\n" * (MOST_WORK // 2 - 11) + "x", [], "x")
    assert hidden("*x\n" + "*y\n" * MOST_WORK, [], "y")
    assert not hidden("*x\n" + "*y\n" * MOST_WORK, [], "x")
    assert not hidden("z\n" + "x\n!y\n" * MOST_WORK, [], "z")


def test_the_last_lines_are_kept_as_they_decide() -> None:
    assert hidden("*y\n" * MOST_WORK + "*x", [], "x")
    assert hidden("x\n!y\n" * MOST_WORK + "z", [], "z")
    assert not hidden("*x\n" * MOST_WORK + "!x", [], "x")


def test_files_inside_files_share_one_bound_of_which_each_gets_a_part() -> None:
    def read(_: str) -> bytes:
        return b"*y\n" * (MOST_WORK // 4) + b"*x\n"

    found = IgnoreRules.above(("a", "b", "c", "d"), read)
    assert len(found.specs) == 4
    assert MOST_WORK < found.work <= MOST_WORK + 2 * (MOST_WORK // 10)
    assert found.ignores(Entry("a/b/c/x", "file", 0))


def test_an_outer_file_does_not_silence_one_inside_it() -> None:
    assert rules(ignore="*y\n" * MOST_WORK, sub__ignore="*.log").ignores(Entry("sub/a.log", "file", 0))
