import ast
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools import definitions
from nodes.execute_tools.tools.definitions import Merged, Refusal, replace_definitions
from nodes.execute_tools.tools.python_units import SyntaxProblem

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
    lines = [
        f"class {name}(Base):",
        '    """Doc."""',
        "",
        "    size = 1",
        "",
        "    def get(self):",
        "        return 1",
        "",
    ]
    return Piece(name, "\n".join(lines), "\n".join(lines).replace("return 1", f"return {number + 2}"))


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


@given(modules(), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.data())
def test_only_what_the_block_names_changes(
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


@given(modules(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_module_merged_into_itself_stays(module: tuple[list[str], list[Piece]], newline: str, open_end: bool) -> None:
    source = written(joined(module[0], [piece.text for piece in module[1]]), newline, open_end=open_end)
    expected = Refusal("The block is identical to what f.py already has, so nothing would change.", unchanged=True)
    assert replace_definitions(source, source, "f.py") == expected


@given(modules(), modules())
def test_nothing_is_ever_dropped(one: tuple[list[str], list[Piece]], other: tuple[list[str], list[Piece]]) -> None:
    source, block = (joined(gaps, [piece.text for piece in pieces]) for gaps, pieces in (one, other))
    merged = replace_definitions(source, block)
    if isinstance(merged, Merged):
        mentioned = {piece.name for piece in other[1]}
        assert [piece.name for piece in one[1] if piece.name not in mentioned and piece.text not in merged.text] == []
        assert {piece.name for piece in one[1]} | mentioned <= top_level_names(merged.text)


def top_level_names(text: str) -> set[str]:
    targets = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return targets | {getattr(node, "name", "") for node in ast.parse(text).body}


@given(st.text(alphabet="ab =:()\"'#\n\r\t@,;", max_size=40), st.text(alphabet="ab =:()\"'#\n\r\t@,;", max_size=40))
def test_no_text_makes_it_raise(source: str, block: str) -> None:
    assert isinstance(replace_definitions(source, block), Merged | Refusal)


@pytest.mark.parametrize(
    ("source", "block", "merged"),
    [
        (
            CALC,
            "def add(a, b):\n    return a + b\n",
            Merged(CALC.replace("return a - b", "return a + b", 1), ("add",)),
        ),
        (
            CALC,
            "\n    def add(a, b):\n        return a + b\n",
            Merged(CALC.replace("return a - b", "return a + b", 1), ("add",)),
        ),
        (
            CALC,
            "import math\n\ndef sub(a, b):\n    return math.fsum([a, -b])\n\nprint(add(1, 2))\n",
            Merged(
                "import math\n\n\n" + CALC[:-6] + "math.fsum([a, -b])\n",
                ("import math", "sub"),
                ("line 6 `print(add(1, 2))`",),
            ),
        ),
        (
            "class A:\n    def f(self):\n        return 1\n",
            '    import x\n    def f(self):\n        return """\n        raw\n  """\n',
            Merged(
                'import x\n\n\nclass A:\n    def f(self):\n        return """\n        raw\n  """\n',
                ("import x", "A.f"),
            ),
        ),
        ("# mine\n", "    def f():\n        return\n", Merged("# mine\n\ndef f():\n    return\n", ("f",))),
        ("", "def f():\n    return\n", Merged("def f():\n    return\n", ("f",))),
        ("x = 1", "def f(): return", Merged("x = 1\n\n\ndef f(): return", ("f",))),
        ("x = 1\r\ny = 2", "y = 3", Merged("x = 1\r\ny = 3", ("y",))),
        (
            "class A:\n\tdef f(self):\n\t\treturn 1\n",
            "def f(self):\n\treturn 2\n",
            Merged("class A:\n\tdef f(self):\n\t\treturn 2\n", ("A.f",)),
        ),
    ],
)
def test_merging(source: str, block: str, merged: Merged) -> None:
    assert replace_definitions(source, block) == merged


def test_a_new_function_without_a_body_is_refused() -> None:
    block = 'def mul(a, b):\n    """The product."""\n    # Your implementation here\n'
    refusal = Refusal("The block leaves out the body of mul: send it whole.")
    assert replace_definitions(CALC, block, task="Add a function mul to calc.py") == refusal
    assert isinstance(replace_definitions(CALC, block, task="Add a stub of mul to calc.py"), Merged)
    assert isinstance(replace_definitions(CALC, block, task="Add mul", path="calc.pyi"), Merged)
    method = "class A:\n    def f(self):\n        pass\n"
    old = "class A:\n    def g(self):\n        return 1\n"
    assert replace_definitions(old, method, task="Add f") == Refusal(
        "The block leaves out the body of A.f: send it whole."
    )


@pytest.mark.parametrize(
    ("source", "block", "reason"),
    [
        (CALC, CALC, "The block is identical to what calc.py already has, so nothing would change."),
        (
            CALC,
            "# nothing",
            "The block holds no code. Give the new text of the functions, methods or classes that change.",
        ),
        (
            CALC,
            "def f(:\n",
            "The block is not valid Python (line 1: invalid syntax). Send it again: complete, and nothing but code.",
        ),
        (
            "def f(:\n",
            "def f(): pass",
            "calc.py is not valid Python (line 1: invalid syntax), so its definitions cannot be replaced by name.",
        ),
        (
            CALC,
            "print(add(1, 2))",
            (
                "Only functions, classes, imports and assignments to one name are merged, and the block changes none of"
                " those in calc.py. Left aside: line 1 `print(add(1, 2))`. Use edit_file for such statements."
            ),
        ),
        (
            "class A:\n\tdef f(self):\n\t\treturn 1\n",
            "def f(self):\n    if self:\n        return 2\n\treturn 3\n",
            (
                "The block is not valid Python (line 4: inconsistent use of tabs and spaces in indentation). Send it"
                " again: complete, and nothing but code."
            ),
        ),
    ],
)
def test_refusals(source: str, block: str, reason: str) -> None:
    unchanged = reason.startswith("The block is identical")
    assert replace_definitions(source, block, "calc.py") == Refusal(reason, unchanged)


@pytest.mark.parametrize("terms", [900, 1500, 5000, 100_000])
def test_deep_nesting_is_no_accident(terms: int) -> None:
    merged = replace_definitions("x = " + "+".join("1" * terms), "x = " + "+".join("2" * terms))
    assert isinstance(merged, Merged | Refusal)
    assert "x = " not in str(merged) or terms == 900


def test_a_result_that_would_not_parse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "parse", lambda _text: SyntaxProblem(3, "invalid syntax"))
    assert replace_definitions("x = 1\n", "x = 2\n", "calc.py") == Refusal(
        "With this block calc.py would not be valid Python (line 3: invalid syntax), so nothing was changed."
    )
