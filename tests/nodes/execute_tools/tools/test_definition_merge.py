import pytest

from nodes.execute_tools.tools.definition_merge import merge_module
from nodes.execute_tools.tools.line_edits import apply_edits
from nodes.execute_tools.tools.merge_draft import MergeDraft
from nodes.execute_tools.tools.python_units import PythonText, read_python

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


def merged(
    block: str, *, source: str = SOURCE, methods: bool = False, gone: frozenset[str] = frozenset(), task: str = ""
) -> MergeDraft:
    old, new = read_python(source), read_python(block)
    assert isinstance(old, PythonText)
    assert isinstance(new, PythonText)
    draft = MergeDraft(old, new, "f.py", "\n", gone=gone, task=task)
    merge_module(draft, methods=methods)
    return draft


def result(draft: MergeDraft) -> str:
    assert (draft.refusals, draft.ignored) == ([], [])
    return apply_edits(draft.source.lines, draft.edits)


REPLACED = [
    ("def area(r):\n    return PI * r**2\n", "    return PI * r  # wrong\n", "    return PI * r**2\n", ["area"]),
    ("PI = math.pi", "PI = 3  # rough", "PI = math.pi", ["PI"]),
    ('"""Forms."""', '"""Shapes."""', '"""Forms."""', ["the docstring"]),
    ("def area(r):\n    return PI * r  # right\n", "# wrong", "# right", ["area"]),
    ("class Circle:\n    sides = 1\n", "sides: int = 0", "sides: int = 1", ["Circle.sides"]),
    (
        "class Circle:\n    # other methods stay\n    def size(self):\n        return 3\n    ...\n",
        "return 1",
        "return 3",
        ["Circle.size"],
    ),
    (
        "def grow(self):\n    '''Grow.\n\n    A lot.\n    '''\n    self.r += 9\n",
        '        """Grow.\n\n        By one.\n        """\n        self.r += 1\n',
        "        '''Grow.\n\n        A lot.\n        '''\n        self.r += 9\n",
        ["Circle.grow"],
    ),
    ("class Circle(Shape, Round):\n    sides: int = 0\n", "Circle(Shape)", "Circle(Shape, Round)", ["Circle"]),
    (
        "@final\nclass Square(Shape):\n    def size(self):\n        return 2\n",
        "class Sq",
        "@final\nclass Sq",
        ["Square"],
    ),
    ("class Empty(Shape):\n    x = 1\n", "Empty: pass\n", "Empty(Shape):\n    x = 1\n", ["Empty"]),
    ("class Point(Shape):\n    pass\n", "class Point:", "class Point(Shape):", ["Point"]),
    (
        'class Point:\n    """A place."""\n\n    x = 1\n',
        '    """A point."""\n\n    pass\n',
        '    """A place."""\n\n    x = 1\n',
        ["Point"],
    ),
]


@pytest.mark.parametrize(("block", "old", "new", "changed"), REPLACED)
def test_namesakes_are_replaced(block: str, old: str, new: str, changed: list[str]) -> None:
    draft = merged(block)
    assert result(draft) == SOURCE.replace(old, new)
    assert draft.changed == changed


ADDED = [
    ("def new():\n    pass\n", SOURCE, f"{SOURCE}\n\ndef new():\n    pass\n", ["new"]),
    ("def area(r):\n    return PI * r  # wrong\ndef new(): ...\n", "wrong\n", "wrong\n\n\ndef new(): ...\n", ["new"]),
    ("TWO = 2\n\ndef area(r):\n    return PI * r\n", "# area of", "TWO = 2\n\n\n# area of", ["TWO"]),
    (
        "class Circle:\n    def size(self):\n        return 1\n    def cut(self): return 0\n",
        "        return 1\n",
        "        return 1\n\n    def cut(self): return 0\n",
        ["Circle.cut"],
    ),
    (
        "class Circle:\n    colour = 1\n",
        "        self.r += 1\n",
        "        self.r += 1\n\n    colour = 1\n",
        ["Circle.colour"],
    ),
    ("class Point:\n    x = 1\n", "    pass\n", "    pass\n\n    x = 1\n", ["Point.x"]),
    (
        'class Square:\n    """Four."""\n',
        "class Square(Shape):\n",
        'class Square(Shape):\n    """Four."""\n\n',
        ["Square.the docstring"],
    ),
    ("import os\nimport math\n", "import math\n", "import math\nimport os\n", ["import os"]),
    (
        "from __future__ import annotations\nfrom math import (\n    pi,\n)\n",
        "import math\n",
        "from __future__ import annotations\nimport math\nfrom math import (\n    pi,\n)\n",
        ["from __future__ import annotations", "from math import ("],
    ),
]


@pytest.mark.parametrize(("block", "old", "new", "changed"), ADDED)
def test_what_is_new_is_added(block: str, old: str, new: str, changed: list[str]) -> None:
    draft = merged(block)
    assert result(draft) == SOURCE.replace(old, new)
    assert draft.changed == changed


@pytest.mark.parametrize(
    "block",
    [
        SOURCE,
        "def area( r ):\n\n    return (PI * r)\n",
        "class Circle:\n    pass\n",
        "class Square:\n    def size(self):\n        return 2\n",
        "class Point: pass\n",
        "class Empty:\n    pass\n",
        "import math\nprint(area(1))\n...\n",
        "",
    ],
)
def test_equal_code_changes_nothing(block: str) -> None:
    draft = merged(block)
    assert (draft.edits, draft.changed, draft.ignored, draft.refusals) == ([], [], [], [])


@pytest.mark.parametrize(
    ("block", "refusal"),
    [
        (
            "def area(r):\n    pass",
            "The block leaves out part of area: line 1 gives area no body. Send area with its whole body.",
        ),
        (
            "class Circle:\n    def grow(self):\n        # ... rest\n        return 1",
            "The block leaves out part of Circle.grow: line 3 says `# ... rest`. Send Circle.grow with its whole body.",
        ),
        ("class area: x = 1", "area is a function in f.py and a class in the block; use edit_file for it."),
        ("def fast(): return 1", "fast is defined inside an `if` or `try` of f.py; use edit_file for it."),
        ("def size(self): return 1", "2 classes have a method size (Circle, Square); give the class line too."),
        ("def cut(self): return 1", "No class of f.py has a method cut; put it inside its class."),
        ("PI = 4\nPI = 5", "f.py and the block define PI differently often; use edit_file for it."),
        (
            "class Circle(Round):\n    sides = 1",
            "The block gives Circle another base class or decorator; use edit_file for its class line.",
        ),
        ("class Circle: sides = 1", "Write the class Circle over several lines, as it is in f.py."),
    ],
)
def test_refusals(block: str, refusal: str) -> None:
    assert merged(block).refusals == [refusal]


def test_a_method_is_no_assignment_of_the_same_name() -> None:
    source = SOURCE.replace("PI = 3", "grow = 3")
    draft = merged("def grow(self):\n    return 3\n", source=source)
    assert draft.changed == ["Circle.grow"]
    assert "    def grow(self):\n        return 3\n" in result(draft)


@pytest.mark.parametrize(
    ("block", "changed"),
    [
        ("def size(shape):\n    return 4\n", ["size"]),
        ("def size(self):\n    return 4\n", ["A.size"]),
        ("def width(self):\n    return 4\n", ["width"]),
    ],
)
def test_a_method_and_a_function_of_the_same_name_are_told_apart(block: str, changed: list[str]) -> None:
    source = (
        "class A:\n    def size(self):\n        return 1\n\ndef size(x):\n    return 2\n\ndef width(x):\n    return 3\n"
    )
    assert merged(block, source=source).changed == changed


def test_an_indented_function_is_a_method_only_where_a_class_has_it() -> None:
    assert merged("def grow():\n    return 1\n", methods=True).changed == ["Circle.grow"]
    assert merged("def other():\n    return 1\n", methods=True).changed == ["other"]


def test_statements_without_a_name_are_left_aside() -> None:
    draft = merged("def area(r):\n    return 1\n\nprint(area(2))\nclass Circle:\n    sides = 1\n    f(x)\n")
    assert draft.ignored == ["line 7 `f(x)`", "line 4 `print(area(2))`"]
    assert draft.changed == ["area", "Circle.sides"]


def test_statements_without_a_name_are_replaced_in_a_whole_text() -> None:
    source = "import sys\n\nx = 1\nfor i in range(3):\n    print(i)\nprint(x)\n"
    draft = merged(source.replace("range(3)", "range(4)"), source=source)
    assert result(draft) == source.replace("range(3)", "range(4)")
    assert draft.changed == ["line 4"]


def test_a_statement_of_a_whole_text_is_not_replaced_by_an_elision() -> None:
    source = "for i in range(3):\n    print(i)\n"
    draft = merged("for i in range(4):\n    pass\n", source=source)
    assert draft.refusals == [
        "The block leaves out part of line 1: line 1 gives the statement no body. Send line 1 with its whole body."
    ]


def test_a_source_without_code_takes_the_block() -> None:
    draft = merged("x = 1\n", source="# mine\n")
    assert (result(draft), draft.changed) == ("# mine\n\nx = 1\n", ["x"])


@pytest.mark.parametrize(
    ("block", "methods", "changed", "refusals"),
    [
        ("sides = 4\n", False, ["Circle.sides"], []),
        ("    sides = 4\n", True, ["Circle.sides"], []),
        ("sides = 4\n\n\ndef area(r):\n    return 0\n", False, ["sides", "area"], []),
        ("PI = 4\n", True, ["PI"], []),
        ("depth = 4\n", False, ["depth"], []),
    ],
)
def test_a_lone_assignment_is_an_attribute_where_one_class_has_it(
    block: str, methods: bool, changed: list[str], refusals: list[str]
) -> None:
    text = read_python(block, indented=methods)
    assert isinstance(text, PythonText)
    old = read_python(SOURCE)
    assert isinstance(old, PythonText)
    draft = MergeDraft(old, text, "f.py", "\n")
    merge_module(draft, methods=methods)
    assert (sorted(draft.changed), draft.refusals) == (sorted(changed), refusals)


def test_an_attribute_of_several_classes_needs_the_class_line() -> None:
    draft = merged("x = 1\n", source="class A:\n    x = 2\n\nclass B:\n    x = 3\n")
    assert draft.refusals == ["2 classes have an attribute x (A, B); give the class line too."]


def test_a_new_method_goes_to_the_class_that_the_request_names_or_to_the_only_one() -> None:
    block = "def cut(self):\n    return 1\n"
    assert merged(block, task="Add cut to Circle").changed == ["Circle.cut"]
    assert merged(block, source="class A:\n    x = 1\n").changed == ["A.cut"]
    assert merged(block, task="Circle and Square").changed == []


def test_an_example_with_its_values_is_left_aside() -> None:
    block = "def area(r):\n    return 1\n\nr = 2\nresult = area(r)\nprint(result)\nused = 1\ndef f(): return used\n"
    draft = merged(block)
    assert draft.ignored == ["line 4 `r = 2`", "line 5 `result = area(r)`", "line 6 `print(result)`"]
    assert draft.changed == ["area", "used", "f"]


def test_a_statement_that_uses_what_is_deleted_goes_from_a_whole_text() -> None:
    source = "def f(): return 1\n\n\ndef g(): return 2\n\n\nprint(f())\nprint(g())\n"
    block = "def g(): return 2\n\n\nprint(g())\n"
    draft = merged(block, source=source, gone=frozenset({"f"}))
    assert (result(draft), draft.changed) == (source.replace("print(f())\n", ""), ["line 7"])
    assert merged("def g(): return 2\n", source=source, gone=frozenset()).changed == []
    draft = merged(block.replace("print(g())", "print(1, g())\nprint(2)"), source=source, gone=frozenset({"f"}))
    assert result(draft) == source.replace("print(f())\nprint(g())", "print(1, g())\nprint(2)")
