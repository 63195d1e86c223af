import pytest

from nodes.execute_tools.tools.example_results import (
    LONGEST_VALUE,
    ModuleRun,
    Result,
    Status,
    failures,
    read_run,
    sentence,
)
from nodes.execute_tools.tools.examples import Example, Kind, Origin


def task(source: str, want: str, kind: Kind = Kind.VALUE) -> Example:
    return Example("f", source, want, Origin.TASK, kind)


def doc(source: str, want: str = "", raises: str | None = None, name: str = "f") -> Example:
    return Example(name, source, want, Origin.DOCSTRING, Kind.OUTPUT, raises)


DIFFERENT, RAISED, ENDLESS = Status.DIFFERENT, Status.RAISED, Status.ENDLESS


@pytest.mark.parametrize(
    ("example", "result", "words"),
    [
        (task("add(2, 3)", "5"), Result(DIFFERENT, "-1"), "add(2, 3) gives -1, but must give 5."),
        (
            task("total([])", "0"),
            Result(RAISED, "ZeroDivisionError: division by zero"),
            "total([]) raises ZeroDivisionError: division by zero, but must give 0.",
        ),
        (
            task("f('')", "ValueError", Kind.RAISES),
            Result(DIFFERENT, "None"),
            "f('') gives None, but must raise ValueError.",
        ),
        (
            task("f('')", "ValueError", Kind.RAISES),
            Result(RAISED, "TypeError: no"),
            "f('') raises TypeError: no, but must raise ValueError.",
        ),
        (task("f(1) > 2", "", Kind.HOLDS), Result(DIFFERENT), "f(1) > 2 does not hold."),
        (task("f(1) > 2", "", Kind.HOLDS), Result(RAISED, "KeyError: 1"), "f(1) > 2 raises KeyError: 1."),
        (task("f(1)", "2"), Result(ENDLESS), "f(1) does not end within 5 s."),
        (doc("f(1)\n", "2\n"), Result(DIFFERENT, "3"), "f(1) gives 3, but must give 2."),
        (doc("f(1)\n", "a\nb\n"), Result(DIFFERENT, ""), "f(1) gives nothing, but must give a / b."),
        (doc("f(1)\n"), Result(DIFFERENT, "3"), "f(1) gives 3, but must give nothing."),
        (
            doc("f(1)\n", "Traceback (most recent call last):\nValueError: x\n", "ValueError: x\n"),
            Result(DIFFERENT, "3"),
            "f(1) gives 3, but must raise ValueError: x.",
        ),
        (doc("for x in y:\n    f(x)\n", "1"), Result(DIFFERENT, "2"), "for x in y: f(x) gives 2, but must give 1."),
    ],
)
def test_a_failure_in_words(example: Example, result: Result, words: str) -> None:
    assert sentence(example, result, 5.0) == words


def test_long_values_are_cut() -> None:
    words = sentence(task("f(1)", "2"), Result(DIFFERENT, "x" * 500), 5.0)
    assert words == f"f(1) gives {'x' * LONGEST_VALUE}..., but must give 2."


def test_the_first_failure_of_each_group_with_what_goes_before_it() -> None:
    examples = [
        doc("s = S()\n"),
        doc("s.a()\n", "1\n"),
        doc("s.b()\n", "2\n"),
        doc("s.c()\n", "3\n"),
        task("f(1)", "2"),
    ]
    results = [
        Result(Status.PASSED),
        Result(Status.PASSED),
        Result(DIFFERENT, "0"),
        Result(DIFFERENT, "0"),
        Result(ENDLESS),
    ]
    assert failures(examples, results, 5.0) == [
        (2, "s = S(); s.b() gives 0, but must give 2."),
        (4, "f(1) does not end within 5 s."),
    ]
    assert failures(examples, [Result()] * 5, 5.0) == []


def test_a_long_setup_is_left_out() -> None:
    examples = [doc("s = " + "1 + " * 100 + "1\n"), doc("s\n", "1\n")]
    assert failures(examples, [Result(Status.PASSED), Result(DIFFERENT, "2")], 5.0) == [
        (1, "s gives 2, but must give 1.")
    ]


def test_an_answer_is_read() -> None:
    answer = {"loaded": True, "own": True, "error": "", "results": [["passed", ""], ["different", "x"]]}
    assert read_run(answer, 3) == ModuleRun((Result(Status.PASSED), Result(DIFFERENT, "x"), Result()), True, True, "")
    gone = {"loaded": False, "own": True, "error": "NameError: x", "results": []}
    assert read_run(gone, 1) == ModuleRun((Result(),), False, True, "NameError: x")
