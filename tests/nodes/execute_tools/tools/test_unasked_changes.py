import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools.asked_edits import AskedEdits
from nodes.execute_tools.tools.python_units import PythonText, read_python
from nodes.execute_tools.tools.unasked_changes import unasked_changes

BATCHES = '''\
"""Batches."""

SIZE = 3


def check(size):
    return size > 0


def valid(size):
    return check(size)


def chunked(items, size=SIZE):
    if valid(size):
        yield items[:size]


def flatten(parts):
    return [item for part in parts for item in part]


def regrouped(parts, size):
    return chunked(flatten(parts), size)


class Pool:
    """Doc."""

    limit = 3

    def __init__(self):
        self.items = []

    def take(self):
        return self.items.pop()

    def give(self, item):
        self.items.append(item)

    def name(self):
        return "pool"


class Queue:
    def take(self):
        return 1
'''
DOCUMENTED = ("=SIZE):\n", '=SIZE):\n    """Gives lists."""\n')
FLATTEN = ("[item for part in parts for item in part]", "sum(parts, [])")
CHECK = ("size > 0", "size >= 1")
REGROUPED = ("flatten(parts), size)", "flatten(list(parts)), size)")
TAKE = ("self.items.pop()", "self.items.pop(0)")
GIVE = ("self.items.append(item)", "self.items += [item]")
NAME = ('return "pool"', "return 'a pool'")
QUEUE = ("return 1", "return 2")
DOCSTRING = "chunked in batches.py has no docstring. Write one. Leave everything else as it is."


def text_of(code: str) -> PythonText:
    text = read_python(code)
    assert isinstance(text, PythonText)
    return text


def with_edits(*edits: tuple[str, str]) -> str:
    text = BATCHES
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def aside(task: str, *edits: tuple[str, str]) -> set[str]:
    return set(unasked_changes(text_of(BATCHES), text_of(with_edits(*edits)), task, "batches.py"))


@pytest.mark.parametrize(
    ("task", "edits", "left"),
    [
        (DOCSTRING, [DOCUMENTED], set()),
        (DOCSTRING, [DOCUMENTED, FLATTEN], {"flatten"}),
        (DOCSTRING, [DOCUMENTED, ("def flatten", "# flat\ndef flatten")], set()),
        (DOCSTRING, [DOCUMENTED, ("parts):\n", "parts):\n    # flat\n")], {"flatten"}),
        (DOCSTRING, [DOCUMENTED, NAME, QUEUE], {"Pool.name", "Queue.take", "Pool", "Queue"}),
        ("Fix `chunked`", [DOCUMENTED, CHECK, FLATTEN], {"flatten"}),
        ("Fix `chunked`", [DOCUMENTED, REGROUPED, FLATTEN], {"flatten"}),
        ("Fix `regrouped`", [REGROUPED, FLATTEN, CHECK, DOCUMENTED, NAME], {"Pool.name", "Pool"}),
        ("Fix `valid`", [CHECK, FLATTEN], set()),
        ("Fix `check` like flatten", [CHECK, FLATTEN, NAME], {"Pool.name", "Pool"}),
        ("Fix the method take of Pool", [TAKE, NAME, GIVE, FLATTEN], {"Pool.name", "Pool.give", "flatten"}),
        ("Pool.take() must be first in, first out", [TAKE, NAME], {"Pool.name"}),
        ("Pool.take() must be first in, first out", [TAKE, QUEUE], set()),
        ("Make the class Pool faster", [TAKE, NAME, QUEUE], {"Queue.take", "Queue"}),
        ("Make the class Pool faster", [TAKE, ('"""Doc."""', '"""Docs."""'), ("limit = 3", "limit = 4")], set()),
        ("Set SIZE to 5", [("SIZE = 3", "SIZE = 5"), FLATTEN, DOCUMENTED], {"flatten"}),
        ("Fix `check`", [CHECK, ('"""Doc."""', '"""Docs."""')], {"Pool"}),
    ],
)
def test_what_is_left_aside(task: str, edits: list[tuple[str, str]], left: set[str]) -> None:
    assert aside(task, *edits) == left


@pytest.mark.parametrize(
    "task",
    [
        "",
        "Make it faster",
        "The batches are wrong",
        "Add a docstring to chunked and speed up flatten",
        "`chunked` and all others",
        "Fix `chunked` and every loop",
        "Refactor `chunked`",
        "Fix `chunked` in the whole file",
        "Fix both, `chunked` first",
        "Fix `take`",
    ],
)
def test_nothing_is_left_aside_where_the_request_names_none_or_several(task: str) -> None:
    assert aside(task, DOCUMENTED, FLATTEN) == set()


def test_what_has_to_follow_a_change_stays() -> None:
    edits = [("SIZE = 3", "SIZE = '3'"), ("=SIZE):", "=int(SIZE)):"), ("parts):", "parts, size=int(SIZE)):")]
    assert aside("Fix `chunked`", *edits) == set()
    state = [("self.items = []", "self.kept = []"), ("self.items.pop()", "self.kept.pop()")]
    state.append(("self.items.append", "self.kept.append"))
    assert aside("The method take of Pool is wrong", *state, NAME) == {"Pool.name"}
    new = ("class Pool:", "def lists(parts):\n    return flatten(parts, 2)\n\n\nclass Pool:")
    assert aside("Fix `chunked`", DOCUMENTED, new, ("flatten(parts):", "flatten(parts, depth):")) == set()
    assert aside("Fix `chunked`", DOCUMENTED, new, FLATTEN) == {"flatten"}
    helper = ("    if valid(size):", "    for part in flat(items):")
    defined = ("class Pool:", "def flat(items):\n    return flatten(items)\n\n\nclass Pool:")
    assert aside("Fix `chunked`", helper, defined, FLATTEN) == set()


def test_what_a_deletion_or_a_rename_concerns() -> None:
    block = BATCHES.replace(*CHECK).replace("return check(size)", "return size > 0").replace(*FLATTEN)
    asked = AskedEdits(deletions=frozenset({"check"}))
    found = unasked_changes(text_of(BATCHES), text_of(block), "Remove the function check", "", asked)
    assert found == {"flatten"}


def test_a_method_that_stands_alone() -> None:
    block = "def take(self):\n    return self.items.pop(0)\n\n\ndef name(self):\n    return 'a pool'\n"
    source = text_of(BATCHES.partition("class Queue")[0])
    assert unasked_changes(source, text_of(block), "Fix the method take") == {"Pool.name"}
    assert unasked_changes(source, text_of(block), "Fix the class Pool") == set()


def test_a_function_and_a_method_of_one_name_are_two() -> None:
    source = "class Pool:\n    class Slot:\n        size = 1\n\n    def take(self):\n        return 1\n\n\n"
    source += "def take():\n    return 1\n\n\ndef give():\n    return 1\n"
    block = "def take():\n    return 2\n\n\ndef give():\n    return 2\n"
    assert unasked_changes(text_of(source), text_of(block), "Fix the function take") == {"give"}
    assert unasked_changes(text_of(source), text_of(block), "Fix the function give") == {"take", "Pool.take"}


EDITS = st.lists(
    st.sampled_from([DOCUMENTED, FLATTEN, CHECK, REGROUPED, TAKE, GIVE, NAME, QUEUE]), min_size=1, unique=True
)


@given(EDITS, st.sampled_from(["chunked", "flatten", "check", "valid", "regrouped"]))
def test_what_is_named_is_never_left_aside(edits: list[tuple[str, str]], name: str) -> None:
    assert name not in aside(f"Fix `{name}`", *edits)
    assert aside(f"Fix all, `{name}` first", *edits) == set()
