"""A file is named after the idea that it holds; these names hold none."""

from pathlib import PurePosixPath

import pytest

from tests.architecture.product import PACKAGES, sources

EMPTY_WORDS = frozenset({"util", "utils", "helper", "helpers", "common", "core", "base", "manager", "managers", "misc"})


def empty_words(path: str) -> set[str]:
    """The words in a path that say nothing of what is there."""
    return {word for part in PurePosixPath(path).with_suffix("").parts for word in part.split("_")} & EMPTY_WORDS


def test_names_say_something() -> None:
    assert [path for path in sources(*PACKAGES, "tests", "benchmarks") if empty_words(path)] == []


@pytest.mark.parametrize("path", ["nodes/core/a.py", "nodes/utils.py", "nodes/guard/path_helpers.py"])
def test_empty_names_are_noticed(path: str) -> None:
    assert empty_words(path) != set()
