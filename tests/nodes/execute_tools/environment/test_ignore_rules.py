from typing import Any

import pytest

from nodes.execute_tools.environment.ignore_rules import IgnoreRules
from nodes.execute_tools.environment.listing import Entry


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
