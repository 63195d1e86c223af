import pytest

from mendgraph.nodes.execute_tools.edits.placeholders import (
    elision_in,
    function_names,
    is_elision,
    torn_statement,
    unwritten_bodies,
)
from mendgraph.nodes.execute_tools.edits.python_text import PythonText, Unit, read_python

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


STUB = 'def is_valid(number):\n    """Whether it is."""\n    # Your implementation here\n    pass\n'


def text_of(code: str) -> PythonText:
    text = read_python(code)
    assert isinstance(text, PythonText)
    return text


def names(code: str, task: str = "Write luhn.py with is_valid", path: str = "luhn.py") -> list[str]:
    return unwritten_bodies(text_of(code), (), task, path)


@pytest.mark.parametrize(
    "code",
    [
        STUB,
        "def f(x):\n    pass\n",
        "def f(x): ...\n",
        'def f(x):\n    """Says much."""\n',
        "async def f(x):\n    # later\n    ...\n",
        "def f(x):\n    # TODO: count\n    return 0\n",
        "def f(x):\n    # Your code here\n    return {}\n",
        "def f(x):\n    # placeholder\n    return\n",
        "@cache\ndef f(x):\n    pass\n",
        "@(lambda f: f)\ndef f(x):\n    pass\n",
        "class A:\n    def f(self):\n        pass\n",
        "class A:\n    class B:\n        def f(self): ...\n",
        "class A(Base):\n    def __init__(self):\n        # Your code here\n        pass\n",
    ],
)
def test_bodies_that_are_left_out(code: str) -> None:
    assert len(names(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "x = 1\n",
        "def f(x):\n    return None\n",
        "def f(x):\n    return False\n",
        "def f(x):\n    # Your code here\n    return x + 1\n",
        "def f(x):\n    # TODO: faster\n    for y in x:\n        pass\n",
        "def f(x):\n    raise NotImplementedError\n",
        "def f(x):\n    # subclasses implement this\n    raise NotImplementedError\n",
        "class TooLong(Exception):\n    pass\n",
        'class TooLong(Exception):\n    """It is too long."""\n',
        "class A:\n    def __init__(self):\n        pass\n",
        "class A(Protocol):\n    def f(self): ...\n",
        "class A(typing.Protocol[T]):\n    def f(self): ...\n",
        "class A(abc.ABC):\n    def f(self):\n        pass\n",
        "class A(metaclass=ABCMeta):\n    def f(self):\n        pass\n",
        "class A:\n    @abc.abstractmethod\n    def f(self):\n        pass\n",
        "@overload\ndef f(x: int) -> int: ...\n",
        '@click.group()\ndef cli():\n    """A tool."""\n',
        "def f(x):\n    def g():\n        pass\n    return g\n",
    ],
)
def test_bodies_that_say_what_is_done(code: str) -> None:
    assert names(code) == []


@pytest.mark.parametrize(
    ("task", "refused"),
    [
        ("Write luhn.py with a stub of is_valid", False),
        ("Add a placeholder for is_valid", False),
        ("Write the interface of a store", False),
        ("Write a skeleton", False),
        ("is_valid is a no-op for now", False),
        ("Write is_valid without a body", False),
        ("Write a function that does nothing", False),
        ("Write is_valid, no stubs", True),
        ("Don't leave any placeholders", True),
        ("Replace the placeholder is_valid", True),
        ("Write a command line interface", True),
        ("Write is_valid", True),
        ("", True),
    ],
)
def test_where_the_request_asks_for_a_stub(task: str, refused: bool) -> None:
    assert names(STUB, task) == ["is_valid"] * refused


def test_known_ones_are_left_to_others() -> None:
    known = function_names(text_of("class A:\n    class B:\n        def f(self): ...\n\n\ndef g(): ...\n"))
    assert known == {"A.B.f", "f", "g"}
    code = (
        "def f(): ...\n\n\ndef g(): ...\n\n\nclass A:\n    def f(self): ...\n\n    class B:\n        def f(self): ...\n"
    )
    assert unwritten_bodies(text_of(code), known) == ["A.f"]
