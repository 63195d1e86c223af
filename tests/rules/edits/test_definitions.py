from textwrap import indent
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.edits import definitions
from mendgraph.nodes.execute_tools.edits.asked_edits import Merged
from mendgraph.nodes.execute_tools.edits.definitions import Refusal, replace_definitions
from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem
from tests.extent import slow
from tests.row_tables import rows

CALC = "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"


class Piece(NamedTuple):
    """One statement of a generated module, and another form of it with the same name."""

    name: str
    text: str
    other: str


def function(name: str, number: int) -> Piece:
    head = f"def {name}(x):\n" if number % 2 else f"@deco\n# why\nasync def {name}(\n    x,\n):\n"
    text = f'{head}    """Says {number}.\n\n    More.\n    """\n    y = """\nraw"""\n    return x + {number}\n'
    return Piece(name, text, f"{head}    return {number} * x  # new\n")


def assignment(name: str, number: int) -> Piece:
    return Piece(name, f"{name} = [\n    {number},\n]\n", f"{name} = {number + 1}\n")


def class_of(name: str, number: int) -> Piece:
    text = f'class {name}(Base):\n    """Doc."""\n\n    size = 1\n\n    def get(self):\n        return 1\n'
    return Piece(name, text, text.replace("return 1", f"return {number + 2}"))


NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)

KINDS = st.sampled_from([function, assignment, class_of])

GAPS = st.sampled_from(["", "\n", "\n\n\n", "# note\n", "\nprint('x')\n\n", "\nif x:\n    import y\n", "    \n"])


@st.composite
def modules(draw: st.DrawFn) -> tuple[list[str], list[Piece]]:
    """The gaps of a module (one more than pieces), and its pieces."""
    pieces = [draw(KINDS)(name, draw(st.integers(0, 9))) for name in draw(NAMES)]
    return [draw(GAPS) for _ in range(len(pieces) + 1)], pieces


def joined(gaps: list[str], texts: list[str]) -> str:
    return gaps[0] + "".join(text + gap for text, gap in zip(texts, gaps[1:], strict=True))


def written(text: str, newline: str, *, open_end: bool) -> str:
    return (text.rstrip("\n") if open_end else text).replace("\n", newline)


@slow
@given(modules(), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.data())
def test_only_definitions_in_the_block_change(
    module: tuple[list[str], list[Piece]], newline: str, open_end: bool, data: st.DataObject
) -> None:
    gaps, pieces = module
    chosen = data.draw(st.sets(st.sampled_from(range(len(pieces))), min_size=1))
    order = data.draw(st.permutations(sorted(chosen)))
    texts = [piece.other if index in chosen else piece.text for index, piece in enumerate(pieces)]
    source = written(joined(gaps, [piece.text for piece in pieces]), newline, open_end=open_end)
    merged = replace_definitions(source, "\n".join(pieces[index].other for index in order))
    assert isinstance(merged, Merged)
    assert merged.text == written(joined(gaps, texts), newline, open_end=open_end)


@given(st.text(alphabet="ab =:()\"'#\n\r\t@,;", max_size=40), st.text(alphabet="ab =:()\"'#\n\r\t@,;", max_size=40))
def test_replace_definitions_never_raises(source: str, block: str) -> None:
    assert isinstance(replace_definitions(source, block), Merged | Refusal)


A = "class A:\n    def f(self):\n        return 1\n"
RAW_TEXT = '"""\n        raw\n  """'
RAW = f"    import x\n    def f(self):\n        return {RAW_TEXT}\n"
F = "def f():\n    return\n"
SUBTRACT = "import math\n\ndef sub(a, b):\n    return math.fsum([a, -b])\n\nprint(add(1, 2))\n"
SUBTRACTED = f"import math\n\n\n{CALC[:-6]}math.fsum([a, -b])\n"


@rows(
    (CALC, SUBTRACT, Merged(SUBTRACTED, ("import math", "sub"), ("line 6 `print(add(1, 2))`",))),
    (A, RAW, Merged("import x\n\n\n" + A.replace("1", RAW_TEXT), ("import x", "A.f"))),
    ("# mine\n", "    def f():\n        return\n", Merged(f"# mine\n\n{F}", ("f",))),
    ("x = 1\n", "    def f():\n        return", Merged(f"x = 1\n\n\n{F}", ("f",))),
    ("x = 1", "def f(): return", Merged("x = 1\n\n\ndef f(): return", ("f",))),
    ("x = 1\ny = 2\r\nz = 3\r\n", "w = 1\ny = 4\n", Merged("x = 1\nw = 1\r\ny = 4\r\nz = 3\r\n", ("y", "w"))),
    ("x = 1\ry = 2\r", "y = 3\nw = 1\n", Merged("x = 1\ry = 3\rw = 1\r", ("y", "w"))),
    ("x = 1; \\\nz = 3\ny = 2\n", "y = 4\n", Merged("x = 1; \\\nz = 3\ny = 4\n", ("y",))),
    (
        A.replace("    ", "\t"),
        "def f(self):\n\treturn 2\n",
        Merged(A.replace("    ", "\t").replace("1", "2"), ("A.f",)),
    ),
)
def test_block_is_merged_into_its_file(source: str, block: str, merged: Merged) -> None:
    assert replace_definitions(source, block) == merged


NESTED = "if 1:\n    def f():\n        try:\n            g()\n        except E:\n            return 1\n"
SAME = "already has, so nothing would change."


@rows(
    (
        "from calc import add\n\nassert add(1, 2)\n",
        "def add(a, b):\n    return a\n",
        "calc.py imports add: change it in",
    ),
    (CALC, CALC, f"The block is identical to what add, sub in calc.py {SAME}"),
    ("x = 1\ndel x\n", "x = 1\ndel x\n", f"The block is identical to what calc.py {SAME}"),
    (NESTED, NESTED, f"The block is identical to what calc.py {SAME}"),
    (CALC, "# nothing", "The block holds no code. Give the new text of the functions, methods or classes that"),
    (CALC, "def f(:\n", "The block is not valid Python (line 1: invalid syntax). Send it again: complete, and"),
    (
        "def f(:\n",
        "def f(): pass",
        "calc.py is not valid Python (line 1: invalid syntax), so its definitions cannot",
    ),
    (CALC, "print(add(1, 2))", "Only functions, classes, imports and assignments to one name are merged, and the"),
    (A, "def f(self):\n    if self:\n        return 2\n\treturn 3\n", "The block is not valid Python (line 4: "),
    (A, " \n    def f(self): pass\ndef g(): pass", "The block is not valid Python (line 3: it is indented less"),
)
def test_block_that_cannot_be_merged_is_refused(source: str, block: str, reason: str) -> None:
    outcome = replace_definitions(source, block, "calc.py")
    assert isinstance(outcome, Refusal)
    assert outcome.reason.startswith(reason)
    assert outcome.unchanged is ("identical" in reason)


@slow
@rows(900, 1500, 100_000)
def test_deep_nesting_is_merged_or_refused(terms: int) -> None:
    merged = replace_definitions("x = " + "+".join("1" * terms), "x = " + "+".join("2" * terms))
    assert isinstance(merged, Merged | Refusal)
    assert "x = " not in str(merged) or terms == 900


SOURCE = '''\
"""Shapes."""
import math

PI = 3  # rough


# area of a circle
def area(r):
    return PI * r  # wrong


try:
    import fast
except ImportError:
    def fast():
        return 0


class Circle(Shape):
    """A circle."""

    sides: int = 0

    def size(self):
        return 1

    def grow(self):
        """Grow.

        By one.
        """
        self.r += 1


class Square(Shape):
    def size(self):
        return 2


class Point:
    """A point."""

    pass


class Empty: pass


print(area(1))
'''


def merged(block: str, *, source: str = SOURCE, task: str = "") -> Merged:
    outcome = replace_definitions(source, block, "f.py", task=task)
    assert isinstance(outcome, Merged)
    return outcome


GROW = "    '''Grow.\n\n    A lot.\n    '''\n    self.r += 9\n"
OLD_GROW = '        """Grow.\n\n        By one.\n        """\n        self.r += 1\n'
SIZE = "class Circle:\n    # other methods stay\n    def size(self):\n        return 3\n    ...\n"
AREA = "def area(r):\n    return PI * r"
REPLACED = [
    (f"{AREA}**2\n", "    return PI * r  # wrong\n", "    return PI * r**2\n", ["area"]),
    (f"{AREA}  # right\n", "# wrong", "# right", ["area"]),
    (SIZE, "return 1", "return 3", ["Circle.size"]),
    (f"def grow(self):\n{GROW}", OLD_GROW, indent(GROW, "    "), ["Circle.grow"]),
    (
        "class Circle(Shape, Round):\n\n    # x\n    sides: int = 0\n",
        '(Shape):\n    """A',
        '(Shape, Round):\n    """A',
        ["Circle"],
    ),
    ("class Empty(Shape):\n    x = 1\n", "Empty: pass\n", "Empty(Shape):\n    x = 1\n", ["Empty"]),
]

FUTURE, PI_IMPORT = "from __future__ import annotations\n", "from math import (\n    pi,\n)\n"
COLOUR, FOUR = "    colour = 1\n", '    """Four."""\n'
ADDED = [
    (f"{AREA}  # wrong\ndef new(): return 0\n", "wrong\n", "wrong\n\n\ndef new(): return 0\n", ["new"]),
    (f"TWO = 2\n\n{AREA}\n", "# area of", "TWO = 2\n\n\n# area of", ["TWO"]),
    (f"class Circle:\n{COLOUR}", "+= 1\n", f"+= 1\n\n{COLOUR}", ["Circle.colour"]),
    (f"class Square:\n{FOUR}", "Square(Shape):\n", f"Square(Shape):\n{FOUR}\n", ["Square.the docstring"]),
    (
        FUTURE + PI_IMPORT,
        "import math\n",
        f"{FUTURE}import math\n{PI_IMPORT}",
        [FUTURE.strip(), "from math import ("],
    ),
]


@rows(*REPLACED + ADDED)
def test_definition_of_the_same_name_is_replaced_and_a_new_one_added(
    block: str, old: str, new: str, changed: list[str]
) -> None:
    assert merged(block) == Merged(SOURCE.replace(old, new), tuple(changed))


@rows(SOURCE, "class Point: pass\n", "class Empty:\n    pass\n", "import math\nprint(area(1))\n...\n")
def test_block_identical_to_the_source_changes_nothing(block: str) -> None:
    outcome = replace_definitions(SOURCE, block, "f.py")
    assert isinstance(outcome, Refusal)
    assert outcome.unchanged


@rows(
    ("def area(r):\n    pass", "The block leaves out part of area: line 1 gives area no body. Send area with its"),
    (
        "class Circle:\n    def grow(self):\n        # ... rest\n        return 1",
        "The block leaves out part of Circle.grow: line 3 says",
    ),
    ("class area: x = 1", "area is a function in f.py and a class in the block; use edit_file for it."),
    ("def Point(self): return 1", "Point is a class in f.py and a function in the block; use edit_file for it."),
    ("def fast(): return 1", "fast is defined inside an `if` or `try` of f.py; use edit_file for it."),
    ("def cut(self): return 1", "No class of f.py has a method cut; put it inside its class."),
    ("PI = 4\nPI = 5", "f.py and the block define PI differently often; use edit_file for it."),
    (
        "class Circle(Round):\n    sides = 1",
        "The block gives Circle another base class or decorator; use edit_file",
    ),
    ("class Circle: sides = 1", "Write the class Circle over several lines, as it is in f.py."),
)
def test_ambiguous_block_is_refused(block: str, refusal: str) -> None:
    outcome = replace_definitions(SOURCE, block, "f.py")
    assert isinstance(outcome, Refusal)
    assert outcome.reason.startswith(refusal)


def test_member_of_a_nested_class_has_its_full_name() -> None:
    source = "class A:\n    class M:\n        def x(self):\n            return 1\n"
    result = merged(source.replace("1", "2"), source=source)
    assert result == Merged(source.replace("1", "2"), ("A.M.x",))


NAMESAKES = f"{A.replace(' f', ' size')}\ndef size(x):\n    return 2\n\ndef width(x):\n    return 3\n"


@rows(("size(shape)", "size"), ("size(self)", "A.size"), ("width(self)", "width"))
def test_method_and_function_of_the_same_name_are_distinguished(definition: str, changed: str) -> None:
    assert merged(f"def {definition}:\n    return 4\n", source=NAMESAKES).changed == (changed,)


def test_unnamed_statements_are_ignored_unless_the_text_is_whole() -> None:
    result = merged("def area(r):\n    return 1\n\nprint(area(2))\nclass Circle:\n    sides = 1\n    f(x)\n")
    assert result.ignored == ("line 7 `f(x)`", "line 4 `print(area(2))`")
    assert result.changed == ("area", "Circle.sides")
    source = "import sys\n\nx = 1\nfor i in range(3):\n    print(i)\nprint(x)\n"
    other = source.replace("range(3)", "range(4)")
    assert merged(other, source=source) == Merged(other, ("line 4",))
    left_out = replace_definitions("for i in range(3):\n    print(i)\n", "for i in range(4):\n    pass\n")
    assert isinstance(left_out, Refusal)


def test_lone_assignment_is_an_attribute_if_one_class_has_it() -> None:
    assert merged("sides = 4\n").changed == ("Circle.sides",)
    assert set(merged("sides = 4\n\n\ndef area(r):\n    return 0\n").changed) == {"sides", "area"}
    refusal = Refusal("2 classes have an attribute x (A, B); give the class line too.")
    assert replace_definitions("class A:\n    x = 2\n\nclass B:\n    x = 3\n", "x = 1\n") == refusal


def test_new_method_goes_to_the_named_or_only_class() -> None:
    block = "def cut(self):\n    return 1\n"
    assert merged(block, task="Add cut to Circle").changed == ("Circle.cut",)
    assert merged(block, source="class A:\n    x = 1\n").changed == ("A.cut",)
    assert isinstance(replace_definitions(SOURCE, block, task="Circle and Square"), Refusal)


def test_usage_example_in_a_block_is_ignored() -> None:
    block = "def area(r):\n    return 1\n\nused = 1\ndef f(): return used\nr = 2\nresult = area(r)\nprint(result)\n"
    result = merged(block)
    assert result.ignored == ("line 6 `r = 2`", "line 7 `result = area(r)`", "line 8 `print(result)`")
    assert result.changed == ("area", "used", "f")


@rows(
    ("a = 1\nb = 2", "c = 1\nb = 1\na = 1", "a = 1\nc = 1\nb = 1"),
    ("a = 1\na = 2", "a = 3\na = 4", "a = 3\na = 4"),
    ("a = 1", "a = 1\na = 2", "a = 2"),
    ("def f():\n    # why\n    return 1\n", "def f(): return 1", None),
    ("@a\ndef f(): return 1", "def f(): return 2", "@a\ndef f(): return 2"),
    ("x: list[int] = [1]", "x = [2]  # x", "x: list[int] = [2]  # x"),
)
def test_definition_in_a_block_replaces_its_namesake(old: str, block: str, new: str | None) -> None:
    outcome = replace_definitions(old, block)
    assert (outcome.text if isinstance(outcome, Merged) else None) == new


MAIN = "if __name__ == 'x':\n    f()\n"
APART = "import a\nx = 1\nimport b\n{}def f(): pass\nimport c\n"


@rows(
    ("import a\n", "import a as b", "import a\nimport a as b\n"),
    ("def f():\n    import a\n", "import a", "import a\n\n\ndef f():\n    import a\n"),
    ('"""Doc."""\n\nx = 1\n', "import a", '"""Doc."""\n\nimport a\n\nx = 1\n'),
    (APART.format(""), "import d", APART.format("import d\n")),
    (
        '"""Doc."""\n\n\ndef f(): pass\n',
        '"""Doc."""\nimport a\n\n@a.b\ndef g(): pass\n',
        '"""Doc."""\n\nimport a\n\n\n@a.b\ndef g(): pass\n\n\ndef f(): pass\n',
    ),
    (
        A,
        "class A:\n    def __init__(self): pass\n    def f(self):\n        return 1\n    def g(self): pass\n",
        f"class A:\n    def __init__(self): pass\n\n{A[9:]}\n    def g(self): pass\n",
    ),
    (f"x = 1\n\n\n{MAIN}", "def f(): return 1", f"x = 1\n\n\ndef f(): return 1\n\n\n{MAIN}"),
)
def test_import_and_new_definition_are_inserted_in_their_place(source: str, block: str, text: str) -> None:
    assert merged(block, source=source).text == text


def test_elision_comments_are_not_added_and_a_moved_first_line_keeps_its_body() -> None:
    block = "# ... existing code\ndef n():\n    return 0\n    # rest of the code"
    assert merged(block).text == f"{SOURCE}\n\ndef n():\n    return 0\n"
    block = "def size(self):\n        # now\n        return 2\n"
    source = SOURCE.partition("class Square")[0]
    assert merged(block, source=source).text == source.replace(
        "        return 1\n", "        # now\n        return 2\n"
    )


def test_result_that_does_not_parse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "parse", lambda _text: SyntaxProblem(3, "invalid syntax"))
    outcome = replace_definitions("x = 1\n", "x = 2\n", "calc.py")
    assert isinstance(outcome, Refusal)
    assert outcome.reason.startswith("With this block calc.py would not be valid Python (line 3: invalid syntax)")


# --- Documentation that is kept

LOOP = '''\
def first(xs):
    """The first even number.

    >>> first([1, 2])
    2
    """
    at = 0
    while True:
        if xs[at] % 2 == 0:
            return at
        at += 1


def last(xs):
    """The last even number."""
    return first(xs[::-1])


"""
>>> first([3, 4])
4
>>> last([4, 3])
4
"""
'''


NOTE = 'def last(xs):\n    """The very last one."""\n    # from behind\n    return first(xs[::-1])\n'


@rows(
    *[("Write a docstring for first.", True), ("first has no docstring.", True), ("Fix first.", True)],
    *[("Document first and last.", False), ("Write docstrings for all functions, like first.", False)],
    *[("Improve the docstrings", False), ("Document first.py", False), ("Rename first to begin", False)],
)
def test_docstrings_that_the_request_does_not_name_are_kept(task: str, stays: bool) -> None:
    block = f'def first(xs):\n    """Finds the first."""\n    return xs[0]\n\n\n{NOTE}'
    outcome = replace_definitions(LOOP, block, task=task)
    assert isinstance(outcome, Merged)
    assert (outcome.changed, outcome.ignored) == (("first",) if stays else ("first", "last"), ())
    assert ("from behind" in outcome.text) is not stays
    alone = replace_definitions(LOOP, NOTE, "f.py", task=task)
    reason = "The block changes only comments and documentation of f.py that the request is not about."
    assert (alone == Refusal(reason, unchanged=True)) is stays
