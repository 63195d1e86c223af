import pytest

from nodes.execute_tools.tools.imports import NewImport, Place, missing_imports, place_of_imports
from nodes.execute_tools.tools.python_units import PythonText, read_python


def read(code: str) -> PythonText:
    text = read_python(code)
    assert isinstance(text, PythonText)
    return text


@pytest.mark.parametrize(
    ("source", "block", "missing"),
    [
        ("import a", "import a", []),
        ("import a", "import a as b", [NewImport("import a as b", from_future=False)]),
        ("import a", "import a, b", [NewImport("import b", from_future=False)]),
        ("from a import b", "from a import b, c as d", [NewImport("from a import c as d", from_future=False)]),
        ("from a import b", "from .a import b", [NewImport("from .a import b", from_future=False)]),
        ("", "from . import a", [NewImport("from . import a", from_future=False)]),
        (
            "",
            "from a import (\n    b,\n)  # why\n",
            [NewImport("from a import (\n    b,\n)  # why", from_future=False)],
        ),
        ("", "import a\nimport a", [NewImport("import a", from_future=False)]),
        ("try:\n    import a\nexcept E:\n    a = None", "import a", []),
        ("def f():\n    import a", "import a", [NewImport("import a", from_future=False)]),
        ("", "from __future__ import x", [NewImport("from __future__ import x", from_future=True)]),
        ("", "def f():\n    import a", []),
    ],
)
def test_missing(source: str, block: str, missing: list[NewImport]) -> None:
    assert list(missing_imports(read(source), read(block))) == missing


@pytest.mark.parametrize(
    ("source", "place", "future"),
    [
        ('"""Doc."""\nimport a\nfrom b import (\n    c,\n)\n\nx = 1\n', Place(5), Place(1)),
        ("import a\nx = 1\nimport b\ndef f(): pass\nimport c\n", Place(3), Place(0)),
        ('"""Doc."""\n\nx = 1\n', Place(1, blank_before=1), Place(1, blank_before=1)),
        ("# licence\nx = 1\n", Place(1, blank_after=1), Place(1, blank_after=1)),
        ("#!/bin/python\n\n# adds\ndef f(): pass\n", Place(2, blank_after=2), Place(2, blank_after=2)),
        ("class A: pass\n", Place(0, blank_after=2), Place(0, blank_after=2)),
        ("", Place(0), Place(0)),
        ("# only\n", Place(1, blank_before=1), Place(1, blank_before=1)),
    ],
)
def test_place(source: str, place: Place, future: Place) -> None:
    assert place_of_imports(read(source), from_future=False) == place
    assert place_of_imports(read(source), from_future=True) == future
