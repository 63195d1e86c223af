"""Requests about names, and the blocks sent for them: deletions, renames, moves and imports."""

from mendgraph.nodes.execute_tools.edits.asked_edits import AskedEdits, Merged, carry_out, definition_text, rename_uses
from mendgraph.nodes.execute_tools.edits.definitions import Refusal, replace_definitions
from mendgraph.nodes.execute_tools.edits.units import PythonSource, read_units
from tests.row_tables import rows

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
COUNT = "def count(text):\n    return len(text)\n"
NUMBER = "def number(text):\n    return len(text)\n"
MOVE = "Move the function count from a.py to b.py."


def merged(block: str, task: str = "", path: str = "", source: str = SOURCE) -> Merged:
    outcome = replace_definitions(source, block, task=task, path=path)
    assert isinstance(outcome, Merged), outcome
    return outcome


@rows(
    ("del count\n", "Remove count.", "count"),
    ("x = 1\n", "Remove count from b.py.", ""),
    ("def count(text):\n    return 0\n", "Remove count.", ""),
    ("def total(self):\n    return 0\n", "Remove Cart.total.", ""),
    ("x = 1\n", "Remove the unused import json.", ""),
    ("MAX = 3\n", "gone is not used any more. Get rid of it.", "gone"),
    ("MAX = 3\n", "Nothing calls gone: delete it.", "gone"),
    ("MAX = 3\n", "a.py has the unused function `gone`. Please drop it.", "gone"),
    ("MAX = 3\n", "The function gone of a.py isn't called anywhere. Delete it.", "gone"),
    *(
        ("MAX = 3\n", task, None)
        for task in (
            "gone should drop empty lines.",
            "The text of gone is not used. Remove it.",
            "The parameter of the function gone is unused. Delete it.",
            "Remove the unused variable in gone.",
            "gone is not used yet. Do not remove it: it is not dead.",
            "Do not remove gone.",
            "gone is wrong.",
            "gone and count are unused.",
        )
    ),
)
def test_definition_is_deleted_if_the_request_says_so(block: str, task: str, deleted: str | None) -> None:
    outcome = replace_definitions(SOURCE, block, task=task, path="a.py")
    if deleted is None:  # the block changes nothing either
        assert isinstance(outcome, Refusal)
    else:
        assert isinstance(outcome, Merged)
        assert " ".join(outcome.deleted) == deleted


@rows(
    ("def size(text):\n    return 1\n", "Rename count to size.", "def count", "def size(text):\n    return 1"),
    ("def size(self):\n    return 0\n", "Rename total to size.", "total", "def size(self):\n        return 0"),
    ("from settings import get\n", "Rename load to get.", "import load", "import get"),
    ("x = get()\n", "Rename load to get.", "import load", "import get"),
    (NUMBER, "count is a poor name: call it number.", "def count", "def number"),
    (NUMBER, "Give count a better name: `number`", "def count", "def number"),
    (NUMBER, "count in a.py should be called number.", "def count", "def number"),
)
def test_definition_is_renamed_if_request_and_block_say_so(block: str, task: str, old: str, new: str) -> None:
    text = merged(block, task).text
    assert new in text
    assert old not in text


def test_renamed_import_is_not_added_again() -> None:
    source = "from store import load\n\n\ndef f():\n    return load()\n"
    text = source.replace("load", "get")
    assert merged(text, "Rename load to get.", source=source).text == text


def test_two_names_of_one_import_are_renamed() -> None:
    source = "from store import load, dump\n\n\ndef f():\n    return load(dump)\n"
    text = source.replace("load", "get").replace("dump", "put")
    assert merged(text, "Rename load to get and dump to put.", source=source).text == text


@rows(
    ("x = put()\n", "Rename dump to put."),
    ("x = dump()\n", "Rename load to dump."),
    ("x = 1\n", "Rename load to get."),
    ("def size(text): return 1\ndef count(text): return 2\n", "Rename count to size."),
    ("MAX = 4\n", "Rename count to MAX."),
    (NUMBER, "Add number, which does what count does not."),
    (NUMBER, "Write a function like count and call it number."),
    (NUMBER.replace("(text)\n", "(text) + 1\n"), "Call count number."),
    (NUMBER, "Call it number."),
)
def test_name_that_the_block_does_not_rename_is_kept(block: str, task: str) -> None:
    text = merged(block, task).text
    assert "from settings import load" in text
    assert "def count" in text


@rows(
    ("from b import count\n", "a.py", True),
    ("import b\n", "a.py", True),
    ("del count\n", "a.py", True),
    (SOURCE.replace(COUNT, "import b\n"), "a.py", True),
    (SOURCE.replace(COUNT, ""), "a.py", True),
    ("MAX = 4\n", "a.py", False),
    ("from b import count\ndef count(text):\n    return 0\n", "a.py", False),
)
def test_moved_definition_is_removed_if_the_block_says_so(block: str, path: str, moved: bool) -> None:
    result = merged(block, MOVE, path)
    assert (result.deleted, "def count" not in result.text) == (("count",) if moved else (), moved)


@rows(
    ("from c import count\n", MOVE, "c.py"),
    ("from b import count\n", MOVE, "b.py"),
    ("from a import count\n", "Mend count.", "a.py"),
    ("def count(text):\n    return count(text)\n", "Mend count.", "a.py"),
)
def test_import_from_itself_and_self_calling_function_are_refused(block: str, task: str, path: str) -> None:
    assert isinstance(replace_definitions(SOURCE, block, task=task, path=path), Refusal)


def test_moved_names_are_imported_only_from_their_new_module() -> None:
    source = "from a import count, size\n\nfrom a import (\n    other,\n)\n\nprint(count, size, other)\n"
    block = "from b import count\nfrom b import other\nfrom c import size\n"
    result = merged(block, "Move count and other from a.py to b.py.", "d.py", source)
    assert result.text == "from a import size\n\n" + block + "\nprint(count, size, other)\n"
    for line in ("from a import count as n\n", "from a import count; X = 1\n"):
        assert line in merged("from b import count\n", "Move count from a.py to b.py.", "c.py", line).text


def test_definition_moves_with_its_imports_and_leaves_its_old_file() -> None:
    definition = "# counts\ndef count(text):\n    return re.sub('a', '', text)\n"
    source = f"import json\nimport re\n\nX = 1\n\n\n{definition}"
    assert definition_text(source, "count") == f"import re\n\n{definition}"
    assert (definition_text(source, "json"), definition_text("(", "x")) == ("", "")
    block, task = "X = 2\ndef count(text):\n    return 2\n", "Move count from a.py to b.py."
    outcome = replace_definitions(source, block, task=task, path="a.py", there={"count"})
    assert isinstance(outcome, Merged)
    assert (outcome.deleted, "def count" in outcome.text, "X = 2" in outcome.text) == (("count",), False, True)


@rows(
    (
        "from h import i, j\r\nimport e\r\n\r\ndef f():\r\n    return e, i\r\n",
        "from h import i\nimport e\n\ndef f():\n    return e, i\n",
    ),
    ("@o\ndef f(a: int): ...\ndef f(a):\n    return a\n", "\n@o\ndef f(a: int): ...\ndef f(a):\n    return a\n"),
)
def test_definition_text_includes_its_imports_and_overloads(source: str, text: str) -> None:
    assert definition_text(source, "f") == text


@rows(
    "from tools import count\n",
    "from tools import count\n\ndef count(text):\n    return count(text)\n",
    f"from tools import count\n\n{COUNT}",
)
def test_import_replaces_a_definition(block: str) -> None:
    result = merged(block, "Use the count of tools.py.", "a.py")
    assert (result.deleted, "from tools import count" in result.text) == (("count",), True)


@rows(
    ("path = 'x'\n\ndef f():\n    return path\n", "from os import path\n", "Mend f."),
    ("from b import C\n\nclass C(C):\n    X = 1\n", "from b import C\n\ndef f():\n    return C\n", "Add f to C."),
)
def test_import_unrelated_to_the_request_replaces_nothing(source: str, block: str, task: str) -> None:
    assert merged(block, task, "a.py", source).deleted == ()


@rows(
    ("foo/__init__.py", "from .foo import X", True),
    ("app/types.py", "from types import X", True),
    ("app/sub/shop.py", "from ..shop import X", True),
    ("app/shop.py", "from .shop import X", False),
    ("foo/__init__.py", "from foo import X", False),
)
def test_file_may_import_from_another_module_of_its_name(path: str, line: str, stays: bool) -> None:
    assert merged(f"{line}\n\nY = 2\n", "", path, "Y = 1\n").text == (f"{line}\n\nY = 2\n" if stays else "Y = 2\n")


def without(text: str, name: str) -> Merged:
    source = read_units(text)
    assert isinstance(source, PythonSource)
    return carry_out(source, AskedEdits((), frozenset({name})))


USES = [
    ("def new(): ...\nold(old)\n", "def new(): ...\nnew(new)\n"),
    ("new = 1\r\n'é', old\r\n", "new = 1\r\n'é', new\r\n"),
    ('__all__ = ["old", "x"]\nnew = 1\n', '__all__ = ["new", "x"]\nnew = 1\n'),
    (
        'def new():\n    """\n    >>> old(1)\n    old\n    """\n',
        'def new():\n    """\n    >>> new(1)\n    old\n    """\n',
    ),
    # where a use may mean something else, none is renamed
    *(
        (text, text)
        for text in (
            "new = 1\ndef f(old): return old\n",
            "new = 1\nimport old\nold\n",
            "new = 1\ndef f():\n    global old\n    old\n",
            "new = 1\ndef f(new): return old\n",
            "from x import *\nnew = 1\nold\n",
            "old\n",
        )
    ),
]


def test_unambiguous_uses_of_a_renamed_name_are_renamed() -> None:
    assert [rename_uses(source, "old", "new") for source, _ in USES] == [text for _, text in USES]
    builtin = "def total(xs): return sum(xs)\n"
    assert rename_uses(builtin, "sum", "total") == builtin


DEFINED = '''\
"""Reports."""
from os import path, sep  # both

A = 1


# counts words
@cached
def count(text):
    """Count."""
    return len(text)
    # end


class Cart:
    size = 3

    def total(self):
        return 1


class Lone:
    def only(self):
        return path
'''
PROPERTY = "    @property\n    def x(self): ...\n    @x.setter\n    def x(self, v): ...\n"


@rows(
    (DEFINED, "count", DEFINED[DEFINED.index("# counts") : DEFINED.index("class Cart")], ""),
    (DEFINED, "Cart.size", "    size = 3\n\n", ""),
    (DEFINED, "Lone.only", "    def only(self):\n        return path\n", "    pass\n"),
    (f"class A:\n{PROPERTY}", "A.x", PROPERTY, "    pass\n"),
)
@rows("\n", "\r\n")
def test_definition_is_deleted_only_with_its_own_comments(
    newline: str, source: str, name: str, gone: str, replacement: str
) -> None:
    result = without(source.replace("\n", newline), name)
    assert (result.text, result.deleted) == (source.replace(gone, replacement, 1).replace("\n", newline), (name,))
