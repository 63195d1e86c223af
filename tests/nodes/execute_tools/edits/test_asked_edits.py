import pytest

from mendgraph.nodes.execute_tools.edits.asked_edits import AskedEdits, Merged, carry_out, definition_text, rename_uses
from mendgraph.nodes.execute_tools.edits.definitions import Refusal, replace_definitions

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


@pytest.mark.parametrize(
    ("block", "task", "deleted"),
    [
        ("del count\n", "Remove count.", ["count"]),
        ("x = 1\n", "Remove count from b.py.", []),
        ("def count(text):\n    return 0\n", "Remove count.", []),
        ("def total(self):\n    return 0\n", "Remove Cart.total.", []),
        ("x = 1\n", "Remove the unused import json.", []),
    ],
)
def test_what_is_deleted(block: str, task: str, deleted: list[str]) -> None:
    found = replace_definitions(SOURCE, block, task=task, path="a.py")
    assert isinstance(found, Merged)
    assert list(found.deleted) == deleted


@pytest.mark.parametrize(
    ("block", "task", "old", "new"),
    [
        (
            "def size(text):\n    return 1\n",
            "Rename count to size.",
            "count(text):\n    return len(text)",
            "size(text):\n    return 1",
        ),
        (
            "def size(self):\n    return 0\n",
            "Rename total to size.",
            "total(self):\n        return MAX",
            "size(self):\n        return 0",
        ),
        ("from settings import get\n", "Rename load to get.", "import load", "import get"),
        ("x = get()\n", "Rename load to get.", "import load", "import get"),
    ],
)
def test_what_is_renamed(block: str, task: str, old: str, new: str) -> None:
    found = replace_definitions(SOURCE, block, task=task)
    assert isinstance(found, Merged)
    assert new in found.text
    assert old not in found.text


@pytest.mark.parametrize(
    ("block", "task"),
    [
        ("x = put()\n", "Rename dump to put."),
        ("x = dump()\n", "Rename load to dump."),
        ("x = 1\n", "Rename load to get."),
        ("def size(text): return 1\ndef count(text): return 2\n", "Rename count to size."),
        ("MAX = 4\n", "Rename count to MAX."),
    ],
)
def test_what_the_block_does_not_carry_out_keeps_its_name(block: str, task: str) -> None:
    found = replace_definitions(SOURCE, block, task=task)
    assert isinstance(found, Merged)
    assert {"from settings import load", "def count"} <= {
        line.partition(",")[0].partition("(")[0] for line in found.text.splitlines()
    }


@pytest.mark.parametrize(
    ("block", "path", "moved"),
    [
        ("from b import count\n", "a.py", True),
        ("import b\n", "a.py", True),
        ("del count\n", "a.py", True),
        (SOURCE.replace("def count(text):\n    return len(text)\n", "import b\n"), "a.py", True),
        (SOURCE.replace("def count(text):\n    return len(text)\n", ""), "a.py", True),
        ("MAX = 4\n", "a.py", False),
        ("from b import count\ndef count(text):\n    return 0\n", "a.py", False),
        ("from c import count\n", "c.py", None),
        ("from b import count\n", "b.py", None),
    ],
)
def test_what_is_moved_goes_where_the_block_says_so(block: str, path: str, moved: bool | None) -> None:
    found = replace_definitions(SOURCE, block, task="Move the function count from a.py to b.py.", path=path)
    if moved is None:  # a file that imports from itself
        assert isinstance(found, Refusal)
        return
    assert isinstance(found, Merged)
    assert (found.deleted, "def count" not in found.text) == (("count",) if moved else (), moved)


@pytest.mark.parametrize(("block", "still"), [("del count\n", ("count at line 16",)), ("from b import count\n", ())])
def test_what_is_moved_is_still_used_where_it_is_not_imported(block: str, still: tuple[str, ...]) -> None:
    found = replace_definitions(f"{SOURCE}\n\nprint(count)\n", block, task="Move count from a.py to b.py.", path="a.py")
    assert isinstance(found, Merged)
    assert found.still == still


def test_what_is_moved_is_imported_from_there_alone() -> None:
    source = "from a import count, size\n\nfrom a import (\n    other,\n)\n\nprint(count, size, other)\n"
    block = "from b import count\nfrom b import other\nfrom c import size\n"
    found = replace_definitions(source, block, task="Move count and other from a.py to b.py.", path="d.py")
    assert isinstance(found, Merged)
    assert found.text == ("from a import size\n\n" + block + "\nprint(count, size, other)\n")


@pytest.mark.parametrize(
    "block",
    [
        "from tools import count\n",
        "from tools import count\n\ndef count(text):\n    return count(text)\n",
        "from tools import count\n\ndef count(text):\n    return len(text)\n",
    ],
)
def test_what_is_imported_takes_the_place_of_what_the_file_defines(block: str) -> None:
    found = replace_definitions(SOURCE, block, task="Use the count of tools.py.", path="a.py")
    assert isinstance(found, Merged)
    assert (found.deleted, "from tools import count" in found.text) == (("count",), True)


@pytest.mark.parametrize(
    ("source", "block", "task"),
    [
        ("path = 'x'\n\ndef f():\n    return path\n", "from os import path\n", "Mend f."),
        ("from b import C\n\nclass C(C):\n    X = 1\n", "from b import C\n\ndef f():\n    return C\n", "Add f to C."),
    ],
)
def test_what_the_request_is_not_about_or_the_file_imports_already_takes_no_place(
    source: str, block: str, task: str
) -> None:
    found = replace_definitions(source, block, task=task, path="a.py")
    assert isinstance(found, Merged)
    assert found.deleted == ()


@pytest.mark.parametrize(
    ("path", "line", "kept"),
    [
        ("foo/__init__.py", "from .foo import X", True),
        ("app/types.py", "from types import X", True),
        ("app/sub/shop.py", "from ..shop import X", True),
        ("app/shop.py", "from .shop import X", False),
        ("foo/__init__.py", "from foo import X", False),
    ],
)
def test_file_imports_from_another_one_of_its_name(path: str, line: str, kept: bool) -> None:
    found = replace_definitions("Y = 1\n", f"{line}\n\nY = 2\n", path=path)
    assert isinstance(found, Merged)
    assert found.text == (f"{line}\n\nY = 2\n" if kept else "Y = 2\n")


@pytest.mark.parametrize("block", ["def count(text):\n    return count(text)\n", "from a import count\n"])
def test_function_that_only_calls_itself_and_an_own_import_are_nothing(block: str) -> None:
    assert isinstance(replace_definitions(SOURCE, block, task="Mend count.", path="a.py"), Refusal)


@pytest.mark.parametrize(
    ("block", "task", "renamed"),
    [
        ("def number(text):\n    return len(text)\n", "count is a poor name: call it number.", True),
        ("def number(text):\n    return len(text)\n", "Give count a better name: `number`", True),
        ("def number(text):\n    return len(text)\n", "count in a.py should be called number.", True),
        ("def number(text):\n    return len(text)\n", "Add number, which does what count does not.", False),
        ("def number(text):\n    return len(text)\n", "Write a function like count and call it number.", False),
        ("def number(text):\n    return len(text) + 1\n", "Call count number.", False),
        ("def number(text):\n    return len(text)\n", "Call it number.", False),
    ],
)
def test_what_a_block_gives_another_name_is_renamed_where_the_request_has_both(
    block: str, task: str, renamed: bool
) -> None:
    found = replace_definitions(f"{SOURCE}\n\nprint(count)\n", block, task=task)
    assert isinstance(found, Merged)
    assert ("def count" in found.text, "print(number)" in found.text) == (not renamed, renamed)


@pytest.mark.parametrize(
    ("task", "deleted"),
    [
        ("gone is not used any more. Get rid of it.", True),
        ("Nothing calls gone: delete it.", True),
        ("a.py has the unused function `gone`. Please drop it.", True),
        ("The function gone of a.py isn't called anywhere. Delete it.", True),
        ("gone should drop empty lines.", False),
        ("The text of gone is not used. Remove it.", False),
        ("The parameter of the function gone is unused. Delete it.", False),
        ("Remove the unused variable in gone.", False),
        ("gone is not used yet. Do not remove it: it is not dead.", False),
        ("Do not remove gone.", False),
        ("gone is wrong.", False),
        ("gone and count are unused.", False),
    ],
)
def test_what_is_said_to_be_unused_goes_where_the_request_says_to_delete_it(task: str, deleted: bool) -> None:
    found = replace_definitions(SOURCE, "MAX = 3\n", task=task)
    assert isinstance(found, Merged if deleted else Refusal)


@pytest.mark.parametrize("line", ["from a import count as n\n", "from a import count; X = 1\n"])
def test_what_is_imported_beside_or_under_another_name_stays(line: str) -> None:
    found = replace_definitions(line, "from b import count\n", task="Move count from a.py to b.py.", path="c.py")
    assert isinstance(found, Merged)
    assert line in found.text


def test_where_a_name_is_still_used_is_told() -> None:
    source = "class A:\n    def b(self): ...\n    c = 1\n\n\nx.b\ny.b\nold(b)\n"
    assert carry_out(source, AskedEdits((), frozenset({"A.b"}))).still == ("b at lines 5, 6",)
    found = replace_definitions(source, "class A:\n    def size(self): return 1\n", task="Rename the method b to size.")
    assert isinstance(found, Merged)
    assert (found.still, found.changed) == (("b at lines 6, 7",), ("A.size",))


@pytest.mark.parametrize(
    ("source", "result", "renamed"),
    [
        ("def new(): ...\nold(old)\n", "def new(): ...\nnew(new)\n", 2),
        ("new = 1\r\n'é', old\r\n", "new = 1\r\n'é', new\r\n", 1),
        ('__all__ = ["old", "x"]\nnew = 1\n', '__all__ = ["new", "x"]\nnew = 1\n', 1),
        (
            'def new():\n    """\n    >>> old(1)\n    old\n    """\n',
            'def new():\n    """\n    >>> new(1)\n    old\n    """\n',
            1,
        ),
    ],
)
def test_certain_uses(source: str, result: str, renamed: int) -> None:
    assert rename_uses(source, "old", "new") == (result, renamed)


@pytest.mark.parametrize(
    "source",
    [
        *("new = 1\ndef f(old): return old\n", "new = 1\nimport old\nold\n"),
        *("new = 1\ndef f():\n    global old\n    old\n", "new = 1\ndef f(new): return old\n"),
        *("from x import *\nnew = 1\nold\n", "old\n"),
    ],
)
def test_where_a_use_may_mean_something_else_none_is_renamed(source: str) -> None:
    assert rename_uses(source, "old", "new") == (source, 0)


def test_builtin_is_not_what_was_renamed() -> None:
    source = "def total(xs): return sum(xs)\n"
    assert rename_uses(source, "sum", "total") == (source, 0)


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
            '# counts words\n@cached\ndef count(text):\n    """Count."""\n    return len(text)\n    # end\n\n\n',
            "",
        ),
        ("Cart.size", "    size = 3\n\n", ""),
        ("Lone.only", "    def only(self):\n        return path\n", "    pass\n"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_goes_and_what_stays(name: str, gone: str, left: str, newline: str) -> None:
    found = carry_out(DEFINED.replace("\n", newline), AskedEdits((), frozenset({name})))
    assert (found.text, found.deleted) == (DEFINED.replace(gone, left, 1).replace("\n", newline), (name,))


@pytest.mark.parametrize(
    ("source", "name", "left"),
    [
        (
            "class A:\n    @property\n    def x(self): ...\n    @x.setter\n    def x(self, v): ...\n",
            "A.x",
            "class A:\n    pass\n",
        ),
        ("x = 1\n", "y", None),
    ],
)
def test_small_texts(source: str, name: str, left: str | None) -> None:
    found = carry_out(source, AskedEdits((), frozenset({name})))
    assert (found.text, found.deleted) == ((source, ()) if left is None else (left, (name,)))


@pytest.mark.parametrize(
    ("block", "task", "taken"),
    [
        ("def count(text, word=None):\n    return len(text)\n", "Give count a parameter word.", False),
        ("def count(text, word=None):\n    return text.count(word)\n", "Give count a parameter word.", True),
        ("def count(text, word=None):\n    return len(text)\n", "Let count take more.", True),
        ("def count(text, word=None):\n    return len(locals())\n", "Give count a parameter word.", True),
        ("@fixture\ndef count(text, word):\n    return len(text)\n", "Let count use the fixture word.", True),
    ],
)
def test_parameter_that_the_request_names_is_used(block: str, task: str, taken: bool) -> None:
    assert isinstance(replace_definitions(SOURCE, block, task=task), Merged if taken else Refusal)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "from h import i, j\r\nimport e\r\n\r\ndef f():\r\n    return e, i\r\n",
            "from h import i\nimport e\n\ndef f():\n    return e, i\n",
        ),
        (
            "@overload\ndef f(a: int): ...\ndef f(a):\n    return a\n",
            "\n@overload\ndef f(a: int): ...\ndef f(a):\n    return a\n",
        ),
    ],
)
def test_definition_comes_whole_with_what_it_uses(source: str, text: str) -> None:
    assert definition_text(source, "f") == text


def test_what_is_moved_is_brought_with_its_imports_and_goes_where_it_is_there() -> None:
    source = "import json\nimport re\n\nX = 1\n\n\n# counts\ndef count(text):\n    return re.sub('a', '', text)\n"
    text = "import re\n\n# counts\ndef count(text):\n    return re.sub('a', '', text)\n"
    assert (definition_text(source, "count"), definition_text(source, "json"), definition_text("(", "x")) == (
        text,
        "",
        "",
    )
    task = "Move count from a.py to b.py."
    found = replace_definitions(
        source, "X = 2\ndef count(text):\n    return 2\n", task=task, path="a.py", there={"count"}
    )
    assert isinstance(found, Merged)
    assert (found.deleted, "def count" in found.text, "X = 2" in found.text) == (("count",), False, True)
