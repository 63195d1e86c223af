import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools.deletions import Pruned, delete_names

SOURCE = '''\
"""Reports."""
import json
from os import path, sep  # both

A = 1
B = 2


# counts words
@cached
def count(text):
    """Count."""
    return len(text)
    # end


def total(xs):
    return sum(xs)


class Cart:
    size = 3

    def total(self):
        return 1


class Lone:
    def only(self):
        return path
'''


@pytest.mark.parametrize(
    ("name", "gone", "left"),
    [
        (
            "count",
            ('# counts words\n@cached\ndef count(text):\n    """Count."""\n    return len(text)\n    # end\n\n\n'),
            "",
        ),
        ("total", "def total(xs):\n    return sum(xs)\n\n\n", ""),
        ("Cart", "class Cart:\n    size = 3\n\n    def total(self):\n        return 1\n\n\n", ""),
        ("Cart.total", "\n    def total(self):\n        return 1\n", ""),
        ("Cart.size", "    size = 3\n\n", ""),
        ("Lone", "\n\nclass Lone:\n    def only(self):\n        return path\n", ""),
        ("Lone.only", "    def only(self):\n        return path\n", "    pass\n"),
        ("A", "A = 1\n", ""),
        ("B", "B = 2\n", ""),
        ("json", "import json\n", ""),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_goes_and_what_stays(name: str, gone: str, left: str, newline: str) -> None:
    source = SOURCE.replace("\n", newline)
    expected = SOURCE.replace(gone, left, 1).replace("\n", newline)
    assert delete_names(source, {name}) == Pruned(expected, (name,))


def test_several_neighbours() -> None:
    pruned = delete_names(SOURCE, {"A", "B", "count", "total"})
    assert pruned.deleted == ("A", "B", "count", "total")
    assert pruned.text == SOURCE[: SOURCE.index("\nA = 1")] + "\n\n" + SOURCE[SOURCE.index("class Cart") :]


@pytest.mark.parametrize(
    ("source", "name", "left"),
    [
        ("import json\nx = 1\n", "json", "x = 1\n"),
        ("import json, os\nprint(os)\n", "json", "import os\nprint(os)\n"),
        ("from .a import b, c as d\n", "d", "from .a import b\n"),
        ("from .a import (  # why\n    b,\n    c,\n)\n", "b", None),
        ("import json\nprint(json)\n", "json", None),
        ("import json\n__all__ = ['json']\n", "json", None),
        ("x = (\n", "x", None),
        ("if y:\n    x = 1\n", "x", None),
        (
            "class A:\n    @property\n    def x(self): ...\n    @x.setter\n    def x(self, v): ...\n",
            "A.x",
            "class A:\n    pass\n",
        ),
        ("x = 1\n", "x", ""),
    ],
)
def test_small_texts(source: str, name: str, left: str | None) -> None:
    assert delete_names(source, {name}) == (Pruned(source, ()) if left is None else Pruned(left, (name,)))


@given(st.sets(st.sampled_from(["A", "B", "count", "total", "Cart", "Cart.total", "json", "none"])))
def test_only_what_is_named_goes(names: set[str]) -> None:
    text, deleted = delete_names(SOURCE, names)
    assert set(deleted) <= names
    kept = [line for line in text.split("\n") if line.strip() and line.strip() != "pass"]
    told = [line for line in SOURCE.split("\n") if line.strip()]
    position = 0
    for line in kept:
        position = told.index(line, position) + 1
