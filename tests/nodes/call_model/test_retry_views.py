import ast
import re

import pytest
from hypothesis import given, strategies as st

from nodes.call_model.block_prompt import Focus, find_focus, what_must_be, without_body

CALC = "def add(a, b):\n    return a - b\n\n\ndef mean(values):\n    return add(*values) / 2\n"
SHAPES = "class Square:\n    def area(self):\n        return self.side\n\n\nasync def draw(shape):\n    pass\n"
FILES = {"calc.py": CALC, "shapes.py": SHAPES, "notes.md": "def total(): add mean\n"}
ADD, MEAN, AREA = Focus("calc.py", "add"), Focus("calc.py", "mean"), Focus("shapes.py", "area")


@pytest.mark.parametrize(
    ("words", "focus"),
    [
        (["Fix add."], ADD),
        (["Fix `add` in calc.py"], ADD),
        (["area is wrong"], AREA),
        (["Mend draw"], Focus("shapes.py", "draw")),
        (["add(1, 2) gives -1, but must give 3."], ADD),
        (["mean([1, 2]) gives -1, but must give add."], MEAN),
        (["add and add again"], ADD),
        (["Fix it.", "add is wrong"], ADD),
        (["mean is wrong", "Fix add."], MEAN),
        (["Fix add and mean.", "add is wrong"], None),
        (["Fix the adding of Square."], None),
        (["Fix address"], None),
        (["Write total"], None),
        ([""], None),
        ([], None),
    ],
)
def test_the_work_is_about_the_one_function_that_the_first_telling_text_names(
    words: list[str], focus: Focus | None
) -> None:
    assert find_focus(words, FILES) == focus


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"calc.txt": CALC},
        {"calc.py": CALC, "old.py": CALC},
        {"calc.py": f"{CALC}\n\ndef add(a):\n    pass\n"},
        {"calc.py": "class A:\n    def add(self): ...\n\n\nclass B:\n    def add(self): ...\n"},
        {"calc.py": f"{CALC}def broken(:\n"},
        {"calc.py": "(" * 10_000},
        {"calc.py": "add = 1\n"},
        {"calc.py": "class add:\n    pass\n"},
    ],
)
def test_where_there_is_no_such_function_or_more_than_one_there_is_no_focus(files: dict[str, str]) -> None:
    assert find_focus(["Fix add."], files) is None


def test_a_stub_is_code_too() -> None:
    assert find_focus(["Fix add."], {"calc.pyi": "def add(a: int) -> int: ...\n"}) == Focus("calc.pyi", "add")


@given(st.lists(st.text("adment( ", max_size=20), max_size=3))
def test_a_focus_is_a_function_that_is_named_and_known(words: list[str]) -> None:
    focus = find_focus(words, FILES)
    assert focus is None or (focus.name in re.findall(r"\w+", " ".join(words)) and f"def {focus.name}(" in CALC)


# --- A file without the body that a model would copy

DOCUMENTED = '''\
"""Numbers."""

import math


@cached
def area(
    radius: float,
) -> float:  # in square metres
    """Say how large it is.

    >>> area(0)
    0.0
    """
    if radius < 0:
        return 0.0

    # the whole circle
    return math.pi * radius


PI = 3
'''


@pytest.mark.parametrize(
    ("text", "name", "hidden"),
    [
        (CALC, "add", CALC.replace("return a - b", "...")),
        (CALC, "mean", CALC.replace("return add(*values) / 2", "...")),
        (SHAPES, "area", SHAPES.replace("return self.side", "...")),
        (SHAPES, "draw", SHAPES.replace("pass", "...")),
        (CALC.removesuffix("\n"), "mean", CALC.replace("return add(*values) / 2", "...").removesuffix("\n")),
        (
            DOCUMENTED,
            "area",
            DOCUMENTED[: DOCUMENTED.index("    if ")] + "    ...\n" + DOCUMENTED[DOCUMENTED.index("\n\nPI") :],
        ),
        (
            "def f():\n    # why\n    x = 1\n    def g():\n        return x\n    return g\ny = 2\n",
            "f",
            "def f():\n    # why\n    ...\ny = 2\n",
        ),
        (
            "def f():\n    def g():\n        return 1\n    return g\n",
            "g",
            "def f():\n    def g():\n        ...\n    return g\n",
        ),
        ('def f():\n    return """\nx\n"""\nz = 1\n', "f", "def f():\n    ...\nz = 1\n"),
        ("def f():\n\t'said'\n\tif a:\n\t\treturn 1\n", "f", "def f():\n\t'said'\n\t...\n"),
        ("class A:\n\tdef f(self):\n\t\treturn 1\n", "f", "class A:\n\tdef f(self):\n\t\t...\n"),
        ("def f(g):\n    @wraps(g)\n    def h():\n        pass\n    return h\n", "f", "def f(g):\n    ...\n"),
        ("x = 'é'\ndef f():\n    'é'\n    return 'é'\n", "f", "x = 'é'\ndef f():\n    'é'\n    ...\n"),
    ],
)
def test_the_body_is_left_out_and_the_documentation_kept(text: str, name: str, hidden: str) -> None:
    assert without_body(text, name) == hidden


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CALC, "total"),
        (SHAPES, "Square"),
        ("def f(): return 1\n", "f"),
        ("class A:\n    def f(self): return 1\n", "f"),
        ('def f():\n    """Only said."""\n', "f"),
        ("def f(\n    a,\n): return a\n", "f"),
        ("def f():\n    'said'; x = 1\n    return x\n", "f"),
        (f"{CALC}\n\ndef add(a):\n    pass\n", "add"),
        ("def f(:\n    pass\n", "f"),
        ("def f():\n    x = '\0'\n", "f"),
        ("(" * 10_000, "f"),
        ("x = 1\rdef f():\r    return 1\r", "f"),
        ("", "f"),
    ],
)
def test_a_file_in_which_no_one_body_can_be_left_out_is_not_shown_in_part(text: str, name: str) -> None:
    assert without_body(text, name) is None


STATEMENTS = st.sampled_from(
    [
        "return a",
        "# a remark",
        "",
        "x = 'é' * 2",
        'y = """\ntext\n"""',
        "if a:\n    x = 1\nelse:\n    x = 2",
        "def inner():\n    return 1",
        "class Local:\n    z = 3",
        "x = (\n    1,\n)  # why",
        "x = 1; y = 2",
        "@d\ndef decorated():\n    return 1",
        "@d\nclass Decorated:\n    z = 3",
        "return [\n]",
    ]
)
HEADS = st.sampled_from(["def f(a):", "async def f(a, *, b=1) -> None:", "@d\ndef f(\n    a,\n):  # why"])
DOCS = st.sampled_from([None, '"""Said."""', '"""Said.\n\n>>> f(1)\n2\n"""', "'said'", '"""\n"""'])
AROUND = st.lists(
    st.sampled_from(["x = 1", "", "# f", "class A:\n    def g(self):\n        return f(1)", "import re"]), max_size=3
).map("\n".join)


def indented(text: str, by: str) -> str:
    """All lines further in, those of a text in triple quotes as well: they are the text's."""
    return "\n".join(f"{by}{line}" if line else line for line in text.split("\n"))


@st.composite
def modules(draw: st.DrawFn) -> tuple[str, str, str]:
    """What stands before the body of `f`, the body, and what stands after it; some lines of remarks are in neither."""
    deep = draw(st.booleans())
    by = draw(st.sampled_from(["    ", "  ", "\t"]))
    inner = by * 2 if deep else by
    head, doc = draw(HEADS), draw(DOCS)
    before, after = draw(AROUND), draw(AROUND)
    body = [*draw(st.lists(STATEMENTS, max_size=3)), "last = 0"]
    opened = indented(head, by) if deep else head
    opened = f"{before}\n" + ("class B:\n" if deep else "") + opened
    documented = f"{opened}\n{indented(doc, inner)}" if doc else opened
    return documented, indented("\n".join(body), inner), after


@given(modules())
def test_what_is_shown_is_the_module_without_one_body(module: tuple[str, str, str]) -> None:
    before, body, after = module
    text = f"{before}\n{body}\n{after}"
    hidden = without_body(text, "f")
    assert hidden is not None
    old, new = ast.parse(text), ast.parse(hidden)
    assert hidden.startswith(before)
    assert hidden.endswith(f"...\n{after}")
    [whole], [rest] = ([each for each in ast.walk(tree) if getattr(each, "name", "") == "f"] for tree in (old, new))
    assert isinstance(whole, ast.FunctionDef | ast.AsyncFunctionDef)
    assert isinstance(rest, ast.FunctionDef | ast.AsyncFunctionDef)
    assert ast.get_docstring(whole) == ast.get_docstring(rest)
    assert ast.unparse(rest.body[-1]) == "..."
    assert len(rest.body) == 1 + (ast.get_docstring(whole) is not None)
    whole.body = rest.body
    assert ast.dump(old) == ast.dump(new)


@given(st.text("def f():\n\t '\"#;.", max_size=60))
def test_of_any_text_something_is_left_that_python_can_read(text: str) -> None:
    hidden = without_body(text, "f")
    assert hidden is None or ast.parse(hidden)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("add(1, 2) gives -1, but must give 3.", "add(1, 2) must give 3."),
        ("total([]) raises ZeroDivisionError: division by zero, but must give 0.", "total([]) must give 0."),
        (
            "a(1) gives 2, but must give 3.\nb('gives') gives 'x', but must give 'y, but must give z'.",
            "a(1) must give 3.\nb('gives') must give z'.",
        ),
        ("f() gives 2, but must raise ValueError.", "f() must raise ValueError."),
        ("f() does not end within 5 s.", "f() does not end within 5 s."),
        ("old is still in app.py, line 3.", "old is still in app.py, line 3."),
        ("", ""),
    ],
)
def test_only_what_must_be_is_said_of_code_that_is_not_shown(found: str, told: str) -> None:
    assert what_must_be(found) == told
