import pytest

from nodes.execute_tools.tools.elisions import elision_in, is_elision, is_placeholder, is_stub, torn_statement
from nodes.execute_tools.tools.python_units import PythonText, Unit, read_python

WHOLE = "def f(x):\n    # keep the rest of the code\n    y = x\n    return y\n"


def first(code: str) -> tuple[PythonText, Unit]:
    text = read_python(code)
    assert isinstance(text, PythonText)
    return text, text.units[0]


@pytest.mark.parametrize(
    "comment",
    [
        "# ...",
        "# ... rest unchanged",
        "#… other methods",
        "# rest of the code",
        "# the rest of the function remains the same",
        "# existing code here",
        "# Remaining implementation",
        "# unchanged",
        "# same as before",
        "# no changes needed here.",
        "# code omitted for brevity",
        "# your code here",
        "# add the logic here",
        "# Implementation goes here",
        "# (previous code)",
    ],
)
def test_elisions(comment: str) -> None:
    assert is_elision(comment)


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "#",
        "# the rest is computed from the previous row",
        "# leave the input unchanged",
        "# existing users keep their name",
        "# returns the same list",
        "# no change of sign, so no root",
        "# here be dragons",
        "# TODO: rest",
    ],
)
def test_ordinary_comments(comment: str) -> None:
    assert not is_elision(comment)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("def f(x):\n    return x\n", ""),
        ("def f(x):\n    # keep the rest of the code\n    return x\n", ""),
        ("def f(x):\n    # rest of the code\n    return x\n", "line 2 says `# rest of the code`"),
        ("def f(x):\n    y = 2\n    # ... as before\n", "line 3 says `# ... as before`"),
        ("def f(x):\n    y = 2\n    ...\n", "line 3 says `...`"),
        ("def f(x):\n    if x:\n        ...\n    return x\n", "line 3 says `...`"),
        ("def f(x):\n    pass\n", "line 1 gives f no body"),
        ('def f(x):\n    """Says much."""\n    ...\n', "line 1 gives f no body"),
        ("def f(x):\n    raise NotImplementedError('later')\n", ""),
        ("def f(x):\n    return x[..., 0]\n", ""),
    ],
)
def test_elision_in_the_new_form_of_a_function(new: str, said: str) -> None:
    assert elision_in(first(WHOLE), first(new)) == said


@pytest.mark.parametrize("old", ["def f(x): ...", "def f(x):\n    pass", "def f(x):\n    raise NotImplementedError"])
def test_what_had_no_body_may_stay_without(old: str) -> None:
    assert elision_in(first(old), first("def f(x, y):\n    ...\n")) == ""


@pytest.mark.parametrize(
    ("code", "stub"),
    [
        ("class A: pass", True),
        ('class A:\n    """Doc."""', True),
        ("def f():\n    return 1", False),
        ("x = 1", False),
        ("def f():\n    raise ValueError", False),
        ("def f():\n    raise", False),
    ],
)
def test_stubs(code: str, stub: bool) -> None:
    assert is_stub(first(code)[1].node) is stub


def test_placeholders() -> None:
    assert [is_placeholder(first(code)[1].node) for code in ("pass", "...", "'...'", "f()")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("code", "torn"),
    [
        ("def f():\n    return 1\n", ""),
        ("x = 1\nif x:\n    return x\n", "line 3 `return x`"),
        ("yield 1\n", "line 1 `yield 1`"),
        ("class A:\n    def f(self):\n        yield 1\n", ""),
    ],
)
def test_a_return_outside_of_any_function(code: str, torn: str) -> None:
    text, _unit = first(code)
    assert torn_statement(text) == torn
