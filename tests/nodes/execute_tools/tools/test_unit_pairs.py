import pytest

from nodes.execute_tools.tools.python_units import PythonText, Unit, read_python
from nodes.execute_tools.tools.unit_pairs import adds_nothing, beyond, is_method, pair_units


def units(code: str) -> tuple[Unit, ...]:
    text = read_python(code)
    assert isinstance(text, PythonText)
    return text.units


def paired(old: str, new: str) -> tuple[list[tuple[int, int | None]], tuple[str, ...]]:
    found = pair_units(units(old), units(new))
    return [(pair.new.first, pair.old.first if pair.old else None) for pair in found.pairs], found.ambiguous


@pytest.mark.parametrize(
    ("old", "new", "pairs", "ambiguous"),
    [
        ("a = 1\nb = 2", "c = 1\nb = 1\na = 1", [(1, None), (2, 2), (3, 1)], ()),
        ("a = 1\na = 2", "a = 3\na = 4", [(1, 1), (2, 2)], ()),
        ("a = 1\na = 2", "a = 3", [], ("a",)),
        ("a = 1\na = 2", "a = 2", [], ()),
        ("a = 1", "a = 1\na = 2", [(2, 1)], ()),
        ("a = 1", "a = 1\na = 1", [], ()),
        ("a = 1", "a = 2\na = 3", [], ("a",)),
        ("", "a = 2\na = 3", [(1, None), (2, None)], ()),
        ("f()", "f()\nimport x", [], ()),
    ],
)
def test_pairs(old: str, new: str, pairs: list[tuple[int, int | None]], ambiguous: tuple[str, ...]) -> None:
    assert paired(old, new) == (pairs, ambiguous)


def test_beyond_counts() -> None:
    assert [unit.first for unit in beyond(units("f()\ng()\nf()"), units("f()"))] == [2, 3]


@pytest.mark.parametrize(
    ("old", "new", "nothing"),
    [
        ("def f(): return 1", "def f():\n    return (1)\n", True),
        ("def f():\n    # why\n    return 1\n", "def f(): return 1", True),
        ("def f(): return 1", "def f():\n    # why\n    return 1\n", False),
        ("def f(): return 1", "def f(): return 2", False),
        ("@a\ndef f(): return 1", "def f(): return 1", True),
        ("@a\ndef f(): return 1", "@b\ndef f(): return 1", False),
        ("x = 1", "x=1", True),
    ],
)
def test_what_adds_nothing(old: str, new: str, nothing: bool) -> None:
    before, after = read_python(old), read_python(new)
    assert isinstance(before, PythonText)
    assert isinstance(after, PythonText)
    assert adds_nothing((before, before.units[0]), (after, after.units[0])) is nothing


@pytest.mark.parametrize(
    ("code", "method"),
    [
        ("def f(self, x): pass", True),
        ("async def f(cls): pass", True),
        ("def f(self, /): pass", True),
        ("@staticmethod\ndef f(): pass", True),
        ("def f(x, self): pass", False),
        ("def f(): pass", False),
        ("x = 1", False),
    ],
)
def test_methods(code: str, method: bool) -> None:
    assert is_method(units(code)[0].node) is method
