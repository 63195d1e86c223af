import ast

import pytest

from mendgraph.nodes.execute_tools.edits.asked_edits import (
    AskedEdits,
    Merged,
    Place,
    Rename,
    UsesRenamed,
    asked_edits,
    attribute_lines,
    bare_uses,
    carry_out,
    delete_names,
    rename_uses,
    without_comment_bodies,
)
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


# --- Uses of a name


@pytest.mark.parametrize(
    ("source", "result", "renamed", "left"),
    [
        ("def new(): ...\nold(old)\n", "def new(): ...\nnew(new)\n", 2, ()),
        ("new = 1\r\n'é', old\r\n", "new = 1\r\n'é', new\r\n", 1, ()),
        ("class new: ...\ndef f(x: 'old') -> 'old': ...\n", "class new: ...\ndef f(x: 'new') -> 'new': ...\n", 2, ()),
        ('__all__ = ["old", "x"]\nnew = 1\n', '__all__ = ["new", "x"]\nnew = 1\n', 1, ()),
        ("new = 1\nf'{old} {x.old}'\n", "new = 1\nf'{new} {x.old}'\n", 1, ()),
        ("from a import new\nf(old=old)\n", "from a import new\nf(old=new)\n", 1, ()),
        (
            'def new():\n    """Old.\n\n    >>> old(1)\n    old\n    ... x.old\n    """\n',
            'def new():\n    """Old.\n\n    >>> new(1)\n    old\n    ... x.old\n    """\n',
            1,
            (),
        ),
        ("new = 1\nd['old'] = old\n", "new = 1\nd['old'] = new\n", 1, (2,)),
        ("new = 1\nold.old\n", "new = 1\nnew.old\n", 1, ()),
    ],
)
def test_certain_uses(source: str, result: str, renamed: int, left: tuple[int, ...]) -> None:
    assert rename_uses(source, "old", "new") == UsesRenamed(result, renamed, left)


@pytest.mark.parametrize(
    "source",
    [
        "new = 1\ndef f(old): return old\n",
        "new = 1\nfor old in x: old\n",
        "new = 1\nimport old\nold\n",
        "new = 1\n[old for old in x]\n",
        "new = 1\nlambda old: old\n",
        "new = 1\ndef f():\n    global old\n    old\n",
        "new = 1\ntry: x\nexcept E as old: old\n",
        "new = 1\nmatch x:\n    case old: old\n",
        "new = 1\nmatch x:\n    case {**old}: old\n",
        "new = 1\n(old := 1)\nold\n",
        "new = 1\ndef f(new): return old\n",
        "from x import *\nnew = 1\nold\n",
        "new = 1\nf'an old {old}'\n",
        "old\n",
    ],
)
def test_where_a_use_may_mean_something_else_all_are_told_and_none_is_renamed(source: str) -> None:
    done = rename_uses(source, "old", "new")
    lines = {node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name) and node.id == "old"}
    assert done == UsesRenamed(source, 0, tuple(sorted(lines)))
    assert done.left


def test_uses() -> None:
    source = "a.old\nb(old)\n'old'\n"
    assert (attribute_lines(source, "old"), bare_uses(source, "old")) == ((1,), (2, 3))
    assert (attribute_lines("(", "old"), bare_uses("(", "old"), rename_uses("(", "a", "b")) == ((), (), ("(", 0, ()))


DEFINED = '''\
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
    source = DEFINED.replace("\n", newline)
    expected = DEFINED.replace(gone, left, 1).replace("\n", newline)
    assert delete_names(source, {name}) == (expected, (name,))


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
    assert delete_names(source, {name}) == ((source, ()) if left is None else (left, (name,)))
