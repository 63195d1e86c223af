from mendgraph.nodes.execute_tools.evidence.examples import (
    Example,
    Kind,
    Origin,
    Result,
    Status,
    definitions,
    docstring_examples,
    failures,
    merged_examples,
    sentence,
)
from tests.row_tables import rows

CODE = '''"""Of the module.

>>> RATE
2
"""

import math
from os import path as p

RATE = 2


def plain():
    """No examples."""


def price(x):
    """
    >>> price(1)
    2
    >>> price(0)
    Traceback (most recent call last):
    ValueError: nothing
    """
    return x * RATE


class Box:
    """
    >>> b = Box()  # doctest: +SKIP
    >>> Box().size()  # doctest: +ELLIPSIS
    1...
    """

    width = 1

    def size(self):
        """
        >>> Box().size()
        10
        """
        return self.width + price(4)

    def other(self):
        return 0


for each in range(3):
    last = each
print("x")
'''


def doc(name: str, source: str, want: str = "", raises: str | None = None, *flags: int) -> Example:
    options = tuple((flag, True) for flag in flags)
    return Example(name, f"{source}\n", f"{want}\n" if want else "", Origin.DOCSTRING, Kind.OUTPUT, raises, options)


ERROR = "Traceback (most recent call last):\nValueError: nothing"

ALL = (
    doc("", "RATE", "2"),
    doc("price", "price(1)", "2"),
    doc("price", "price(0)", ERROR, "ValueError: nothing\n"),
    doc("Box", "Box().size()  # doctest: +ELLIPSIS", "1...", None, 8),
    doc("Box.size", "Box().size()", "10"),
)


def test_examples_of_all_docstrings_are_found() -> None:
    assert docstring_examples(CODE, in_words=True) == ALL


SAID = [
    ("f(1) == 2", "2"),
    ("- f(1) -> [1, 2]", "[1, 2]"),
    ("f(1)\u279e {'a': 1}", "{'a': 1}"),
    ("``f(1)`` => 'a'", "'a'"),
    ("f(1)  # => (1, 2)", "(1, 2)"),
    ("f(1) ==> None", "None"),
    ("It is a sum: f(1) returns 2.", "2"),
    (">>> f(1) == 2", "2"),
    (">>> f(1)  # -> 2", "2"),
    ("| call | returns |\n|---|---|\n| `f(1)` | 2 |", "2"),
    ("f(1) -> 2 - as in the paper", "2"),
    (">>> f(1) == 2\nFalse", "False"),
    *(
        (words, None)
        for words in (
            *("| call | ms |\n|---|---|\n| f(1) | 2 |", "f(1) -> 3 - 1 = 2", "f(1) -> 1, 2, 3", "f(1) -> 1:30"),
            *("f(1) -> 1.41...", "f(1) -> [1, 2, ...]", "f(1) -> ('a')", "2 * f(1) == 4, ~f(2) == 1"),
            *("if f(1) == 2: stop", "f(1) = 3 and f(n) = f(n - 1) + 1", "Call f(1).\n\nReturns:\n    None"),
            *("f() == 2", "f(a) == 2"),
        )
    ),
]


@rows(*SAID)
def test_prose_of_a_docstring_can_state_an_example(words: str, want: str | None) -> None:
    indented = words.replace("\n", "\n    ")
    text = f'def f(a=1):\n    """Do it.\n\n    {indented}\n    """\n    return a\n'
    examples = [example for example in docstring_examples(text, in_words=True) if example.want]
    assert [example.want.strip() for example in examples] == ([] if want is None else [want])
    assert {example.origin for example in examples} <= {Origin.DOCSTRING}
    assert [example.source for example in docstring_examples(text, in_words=False) if ">>>" not in words] == []


@rows("def f(:\n", "", 'def f():\n    """\n    >>> 1\n   2\n    """\n', "x = 1\n")
def test_text_without_examples_gives_none(text: str) -> None:
    assert docstring_examples(text, in_words=True) == ()


@rows(
    ("x * RATE", "x + RATE", {"price"}),
    ("RATE = 2", "RATE = 3", {""}),
    ("    width = 1", "    width = 5", {"Box"}),
    ("return 0", "return 1", {"Box.other"}),
    ("def other", "def another", {"Box.other", "Box.another"}),
    ("No examples.", "None at all.", set()),
    ("x * RATE", "x  *  RATE  # why", set()),
)
def test_changed_definitions_are_those_that_an_edit_touches(old: str, new: str, names: set[str]) -> None:
    before, after = definitions(CODE), definitions(CODE.replace(old, new))
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)} == names
    assert definitions("def f(:\n") == {}


def test_task_example_precedes_the_same_docstring_example() -> None:
    example = Example("price", "price( 1 )", "5", Origin.TASK, Kind.VALUE)
    assert merged_examples((example,), ALL[:3]) == (example, ALL[0], ALL[2])


def task(source: str, want: str, kind: Kind = Kind.VALUE) -> Example:
    return Example("f", source, want, Origin.TASK, kind)


def printed(source: str, want: str = "", raises: str | None = None, name: str = "f") -> Example:
    return Example(name, source, want, Origin.DOCSTRING, Kind.OUTPUT, raises)


DIFFERENT, RAISED, ENDLESS = Status.DIFFERENT, Status.RAISED, Status.ENDLESS


TRACEBACK = "Traceback (most recent call last):\nValueError: x\n"


@rows(
    (task("add(2, 3)", "5"), Result(DIFFERENT, "-1"), "add(2, 3) gives -1, but must give 5."),
    (task("f(0)", "0"), Result(RAISED, "KeyError: 0"), "f(0) raises KeyError: 0, but must give 0."),
    (task("f()", "KeyError", Kind.RAISES), Result(DIFFERENT, "None"), "f() gives None, but must raise KeyError."),
    (task("f(1)", "2"), Result(ENDLESS), "f(1) does not end within 5 s."),
    (printed("f(1)\n", "a\nb\n"), Result(DIFFERENT, ""), "f(1) gives nothing, but must give a / b."),
    (printed("f(1)\n"), Result(DIFFERENT, "3"), "f(1) gives 3, but must give nothing."),
    (
        printed("f()\n", TRACEBACK, "ValueError: x\n"),
        Result(DIFFERENT, "3"),
        "f() gives 3, but must raise ValueError: x.",
    ),
    (printed("for x in y:\n    f(x)\n", "1"), Result(DIFFERENT, "2"), "for x in y: f(x) gives 2, but must give 1."),
)
def test_failed_example_is_described_in_a_sentence(example: Example, result: Result, words: str) -> None:
    assert sentence(example, result, 5.0) == words


def test_first_failure_of_each_group_is_reported_with_its_setup() -> None:
    group = [printed("s = S()\n"), printed("s.a()\n", "1\n"), printed("s.b()\n", "2\n"), printed("s.c()\n", "3\n")]
    passed, different = Result(Status.PASSED), Result(DIFFERENT, "0")
    examples, results = [*group, task("f(1)", "2")], [passed, passed, different, different, Result(ENDLESS)]
    expected = [(2, "s = S(); s.b() gives 0, but must give 2."), (4, "f(1) does not end within 5 s.")]
    assert failures(examples, results, 5.0) == expected
    assert failures(examples, [Result()] * 5, 5.0) == []
