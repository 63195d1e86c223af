import ast

import pytest

from nodes.execute_tools.tools.named_units import named_units
from nodes.execute_tools.tools.python_units import PythonText, read_python
from nodes.execute_tools.tools.renames import (
    Place,
    UsesRenamed,
    attribute_lines,
    bare_uses,
    place_of_name,
    rename_uses,
    replace_places,
)


def test_the_place_of_a_name() -> None:
    source = 'é = 1\nx: int = 2\n@d\nasync  def f(def_f): ...\nclass  A:\n    def f(self): ...\n"é"; print(1)\n'
    text = read_python(source)
    assert isinstance(text, PythonText)
    assert [place_of_name(text, each.unit) for each in named_units(text)] == [
        Place(1, 0, 1),
        Place(2, 0, 1),
        Place(4, 11, 12),
        Place(5, 7, 8),
        Place(6, 8, 9),
    ]
    assert place_of_name(text, text.units[-1]) is None


def test_replacing() -> None:
    places = [Place(1, 0, 1), Place(1, 2, 3), Place(2, 0, 0)]
    assert replace_places(["a b\n", "c"], places, "new") == "new new\nnewc"


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


def test_a_builtin_is_not_what_was_renamed() -> None:
    source = "def total(xs): return sum(xs)\n"
    assert rename_uses(source, "sum", "total") == UsesRenamed(source, 0, (1,))


def test_uses() -> None:
    source = "a.old\nb(old)\n'old'\n"
    assert (attribute_lines(source, "old"), bare_uses(source, "old")) == ((1,), (2, 3))
    assert (attribute_lines("(", "old"), bare_uses("(", "old"), rename_uses("(", "a", "b")) == ((), (), ("(", 0, ()))
