import pytest

from mendgraph.nodes.execute_tools.edits.left_out import (
    TextHunk,
    elision_in,
    function_names,
    is_elision,
    keys_inside,
    lost_definitions,
    lost_keys,
    read_diff,
    torn_statement,
    unwritten_bodies,
    why_not_whole,
    why_too_little,
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


# --- A block in place of a whole file

LONG = "".join(f"line {number}\n" for number in range(30))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (LONG, LONG[: len(LONG) // 2], ""),
        (LONG, LONG[:56], "it has 8 lines where the file has 30"),
        ("short\n" * 20, "short\n", ""),
        ("", "a\n", ""),
        ("a: 1\nb: 2\n", "a: 2\n# ... rest unchanged\n", "it says `# ... rest unchanged` in place of text"),
        ("a", "  // existing code here\n", "it says `// existing code here` in place of text"),
        ("a", "<!-- rest of the file -->\n", "it says `<!-- rest of the file -->` in place of text"),
        ("a", "/* ... */\n", "it says `/* ... */` in place of text"),
        ("a", "x\n...\n", "it says `...` in place of text"),
        ("---\n...\n", "a: 1\n...\n", ""),
        ("a", "# the rest of us\n", ""),
    ],
)
def test_why_not_whole(old: str, new: str, why: str) -> None:
    assert why_not_whole(old, new) == why


def test_lost_definitions() -> None:
    old = "def f(:\nasync  def g(x):\nclass A\n    def m(self):\ndef f():\n"
    assert lost_definitions(old, "def g(x): pass\n") == ("f", "A")
    assert lost_definitions(old, old) == ()


@pytest.mark.parametrize(
    ("old", "new", "task", "why"),
    [
        ("a\nb\n", "c\n", "", "it holds 0 of the 2 lines that the file has"),
        ("a\nb\n", "a\n", "", ""),
        ("a\n\nb\nc\n", " a\n", "", "it holds 1 of the 3 lines that the file has"),
        ("a\nb\n", "c\n", "Shorten it", ""),
        ("a\n", "c\n", "Say c", ""),
        ("a\n", "c\n", "Add c", "it holds 0 of the 1 lines that the file has"),
        ("a\n", "c\na\n", "Add c", ""),
        ("\n", "c\n", "Add c", ""),
        ("a\nb\n", "c\nd\n", "Translate it", ""),
    ],
)
def test_why_too_little(old: str, new: str, task: str, why: str) -> None:
    assert why_too_little(old, new, task) == why


@pytest.mark.parametrize(
    ("path", "old", "new", "lost"),
    [
        ("a.json", '{"a": {"b": 1}, "c\\"": 2}', '{"a": 1}', ("b", 'c\\"')),
        ("a.json", '{"a": "b: c"}', '{"a": 1}', ()),
        ("a.yaml", "a: 1\nb:\n  - c: 2\n'd': 3\n", "a: 1\n", ("b", "c", "d")),
        ("a.toml", "[tool.x]\na = 1\n[[y]]\n", "a = 2\n", ("tool.x", "y")),
        ("a.ini", "[s]\na=1\n", "[s]\na = 2\nb = 3\n", ()),
        ("a.md", "a: 1\n", "", ()),
    ],
)
def test_lost_keys(path: str, old: str, new: str, lost: tuple[str, ...]) -> None:
    assert lost_keys(path, old, new) == lost


def test_keys_inside() -> None:
    text = '{"a": {"b": [{"c": 1}]}, "d": {"e": 1}}'
    assert keys_inside(text, {"a"}) == {"b", "c"}
    assert keys_inside(text, {"x"}) == keys_inside("{", {"a"}) == keys_inside("[" * 100_000, {"a"}) == set()


@pytest.mark.parametrize(
    ("block", "hunks"),
    [
        ("-a\n+b\n", (TextHunk("a\n", "b\n"),)),
        (" x\n-a\n+b\n y\n", (TextHunk("x\na\ny\n", "x\nb\ny\n"),)),
        ("def f():\r\n-    a\r\n+    b\r\n", (TextHunk("def f():\n    a\n", "def f():\n    b\n"),)),
        (
            (
                "diff --git a/x b/x\nindex 1a..2b 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@ def f\n x\n-a\n+b\n\n"
                "@@ -9 +9 @@\n-c\n"
            ),
            (TextHunk("x\na\n", "x\nb\n"), TextHunk("c\n", "")),
        ),
        ("@@\n+a\n\\ No newline at end of file\n", (TextHunk("", "a\n"),)),
        (" x\n\n-a\n", (TextHunk("x\n\na\n", "x\n\n"),)),
        ("@@\n x\n@@\n-a\n", (TextHunk("a\n", ""),)),
        ("a\nb\n", ()),
        ("@@ -1 +1 @@\na\n", ()),
        ("", ()),
    ],
)
def test_hunks(block: str, hunks: tuple[TextHunk, ...]) -> None:
    assert read_diff(block, has_header=False) == hunks


@pytest.mark.parametrize(
    ("block", "is_diff"),
    [("- one\n- two\n", False), ("---\na: 1\n", False), ("@@\n-a\n", True), ("--- a\n+++ b\n-a\n", True)],
)
def test_a_list_is_no_diff_where_a_header_is_asked_for(block: str, is_diff: bool) -> None:
    assert bool(read_diff(block, has_header=True)) is is_diff
