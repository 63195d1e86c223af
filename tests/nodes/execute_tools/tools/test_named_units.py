from nodes.execute_tools.tools.named_units import imported_names, named_units
from nodes.execute_tools.tools.python_units import PythonText, read_python

SOURCE = '''\
"""Doc."""
import os.path, json as j
from .a import b, c as d
from math import pi
X = 1
y: int = 2
p, q = 1, 2


def f(): ...


class A:
    """Doc."""

    z = 1

    @property
    def w(self): ...

    @w.setter
    def w(self, value): ...


if __name__ == "__main__":
    f()
'''


def test_names() -> None:
    text = read_python(SOURCE)
    assert isinstance(text, PythonText)
    found = [(each.name, each.last, each.unit.first, each.home and each.home.key) for each in named_units(text)]
    assert found == [
        ("X", "X", 5, None),
        ("y", "y", 6, None),
        ("f", "f", 10, None),
        ("A", "A", 13, None),
        ("A.z", "z", 16, "A"),
        ("A.w", "w", 18, "A"),
        ("A.w", "w", 21, "A"),
    ]
    assert [(each.name, each.alias.name, each.origin) for each in imported_names(text)] == [
        ("os", "os.path", ("", -1)),
        ("j", "json", ("", -1)),
        ("b", "b", ("a", 1)),
        ("d", "c", ("a", 1)),
        ("pi", "pi", ("math", 0)),
    ]
