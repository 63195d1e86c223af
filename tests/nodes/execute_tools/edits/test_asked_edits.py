import pytest

from mendgraph.nodes.execute_tools.edits.definitions import (
    AskedEdits,
    Merged,
    Rename,
    asked_edits,
    carry_out,
    without_comment_bodies,
)
from mendgraph.nodes.execute_tools.edits.python_names import Place
from mendgraph.nodes.execute_tools.edits.python_text import PythonText, read_python

SOURCE = """\
import json
from settings import load, other as o
from json import dump

MAX = 3


def count(text):
    return len(text)


def gone(): ...


class Cart:
    def total(self):
        return MAX
"""


def read(text: str) -> PythonText:
    found = read_python(text)
    assert isinstance(found, PythonText)
    return found


def asked(block: str, task: str, path: str = "a.py") -> AskedEdits:
    return asked_edits(read(SOURCE), read(block), task, path)


@pytest.mark.parametrize(
    ("block", "task", "deletions"),
    [
        ("del count\n", "Remove count.", {"count"}),
        ("x = 1\n", "Remove count from a.py.", {"count"}),
        ("x = 1\n", "Remove count from b.py.", set()),
        ("def count(text):\n    pass\n", "Remove count.", {"count"}),
        ("def count(text):\n    return 0\n", "Remove count.", set()),
        ("def total(self):\n    return 0\n", "Remove Cart.total.", set()),
        ("class Cart:\n    def total(self):\n        return 0\n", "Remove Cart.total.", set()),
        ("class Cart:\n    x = 1\n", "Remove Cart.total and MAX.", {"Cart.total", "MAX"}),
        ("x = 1\n", "Remove gone.", {"gone"}),
        ("def gone(): ...\n", "Remove gone.", set()),
        ("import json\n", "Remove the import json.", set()),
        ("x = 1\n", "Remove the unused import json.", {"json"}),
        ("del count\n", "Fix count.", set()),
    ],
)
def test_what_is_deleted(block: str, task: str, deletions: set[str]) -> None:
    assert asked(block, task) == AskedEdits((), frozenset(deletions))


COUNT, TOTAL = Place(8, 4, 9), Place(16, 8, 13)


@pytest.mark.parametrize(
    ("block", "task", "rename"),
    [
        ("def size(text): ...\n", "Rename count to size.", Rename("count", "size", (COUNT,))),
        ("LIMIT = 3\n", "Rename MAX to LIMIT.", Rename("MAX", "LIMIT", (Place(5, 0, 3),))),
        ("class Shop: ...\n", "Rename Cart to Shop.", Rename("Cart", "Shop", (Place(15, 6, 10),))),
        ("def size(self): ...\n", "Rename total to size.", Rename("Cart.total", "size", (TOTAL,))),
        (
            "class Cart:\n    def size(self): ...\n",
            "Rename Cart.total to size.",
            Rename("Cart.total", "size", (TOTAL,)),
        ),
        ("from settings import get\n", "Rename load to get.", Rename("load", "get", (Place(2, 21, 25),))),
        ("x = get()\n", "Rename load to get.", Rename("load", "get", (Place(2, 21, 25),))),
        ("from settings import more as o\n", "Rename other to more.", Rename("other", "more", (Place(2, 27, 32),))),
        ("from elsewhere import get\n", "Rename load to get.", None),
        ("x = put()\n", "Rename dump to put.", None),
        ("x = dump()\n", "Rename load to dump.", None),
        ("x = 1\n", "Rename load to get.", None),
        ("def size(text): ...\ndef count(text): ...\n", "Rename count to size.", None),
        ("def size(text): ...\n", "Rename count to length.", None),
        ("MAX = 4\n", "Rename count to MAX.", None),
        ("def size(text): ...\n", "Write size.", None),
    ],
)
def test_what_is_renamed(block: str, task: str, rename: Rename | None) -> None:
    assert asked(block, task) == AskedEdits((rename,) if rename else ())


def test_uses_of_a_method_are_only_told() -> None:
    rename = Rename("Cart.total", "size", ())
    text = "class Cart:\n    def size(self): ...\n\nc.total\nd.total()\n"
    assert rename.label == "Cart.size"
    assert carry_out(text, AskedEdits((rename,))) == Merged(text, (), (), (), 0, ("total at lines 4, 5",))
    text = "class Cart: ...\n\nclass A:\n    def b(self): ...\n    c = 1\n\nx.b\n"
    assert carry_out(text, AskedEdits((), frozenset({"A.b"}))).still == ("b at line 6",)


def test_a_body_that_is_a_comment() -> None:
    block = "def count(text):\n    # removed\n\ndef other(x):\n    # removed\n"
    mended = without_comment_bodies(block, "Remove count.")
    assert mended == block.replace("(text):", "(text): pass")
    assert without_comment_bodies(block, "Fix count.") == block
