from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.evidence.examples import LONGEST_REQUEST, Example, Kind, Origin, task_examples

NAMES = ("add", "median", "slugify", "f", "total", "Stack", "parse")

VALUES = [
    ("median([1, 2, 3, 4]) gives 3, expected 2.5", "median([1, 2, 3, 4])", "2.5"),
    ("add(2, 3) should return 5", "add(2, 3)", "5"),
    ("The call add(2, 3) must return 5, not -1.", "add(2, 3)", "5"),
    ("add(2, 3) returns -1 instead of 5", "add(2, 3)", "5"),
    ("add(2, 3) should return 5 instead of -1", "add(2, 3)", "5"),
    ("Make sure add(2, 3) returns 5 instead of -1.", "add(2, 3)", "5"),
    ("Change it so that add(2, 3) returns 5", "add(2, 3)", "5"),
    ("f(1) == 2", "f(1)", "2"),
    ("Right now f(1) == 3 but it should be 2", "f(1)", "2"),
    ('slugify("A b") -> "a-b"', 'slugify("A b")', '"a-b"'),
    ("slugify('A b') => 'a-b'", "slugify('A b')", "'a-b'"),
    ('slugify("A b") should be "a-b", but it is "A-b"', 'slugify("A b")', '"a-b"'),
    ("It has a bug: add(2, 3) is -1 but should be 5", "add(2, 3)", "5"),
    ("add(2, 3) returns -1. It should return 5.", "add(2, 3)", "5"),
    ("add(2, 3): expected 5, got -1", "add(2, 3)", "5"),
    ("add(2, 3) = 5 fails", "add(2, 3)", "5"),
    ("total([]) raises ZeroDivisionError but should return 0", "total([])", "0"),
    ("parse('') must return None", "parse('')", "None"),
    ("parse('') should return an empty list", "parse('')", "[]"),
    ("f('x') should be true", "f('x')", "True"),
    ("calc.add(2, 3) should return 5", "add(2, 3)", "5"),
    ("list(f(3)) should be [0, 1, 2]", "list(f(3))", "[0, 1, 2]"),
    ("Stack([1, 2]).pop() should return 2", "Stack([1, 2]).pop()", "2"),
    ("f({'a': [1, (2, 3)]}, key='b)') must be {'b': 1}", "f({'a': [1, (2, 3)]}, key='b)')", "{'b': 1}"),
    ("Create calc.py with a function add. For example add(2, 3) returns 5.", "add(2, 3)", "5"),
    ("Write a function slugify: slugify('A b') gives 'a-b'", "slugify('A b')", "'a-b'"),
    ("it must hold: assert add(2, 3) == 5", "add(2, 3)", "5"),
    ("add(2, 3) in src/calc.py returns -1, expected 5.", "add(2, 3)", "5"),
    ("add(1.5, 1) is expected to be 2.5", "add(1.5, 1)", "2.5"),
    ("add(2, 3) currently returns -1 and should return 5", "add(2, 3)", "5"),
    ('f("../a") == "../a" is not true at the moment, the result is just "a".', 'f("../a")', '"../a"'),
    ('Write words.py with f(text). Case does not matter: f("A, a.") == {"a": 2}', 'f("A, a.")', '{"a": 2}'),
    ('Create a function f that never fails: f("") == 0', 'f("")', "0"),
    ("I need calc.py with add(a, b) -> int. add(2, 3) is 5.", "add(2, 3)", "5"),
    ("I'd like to have a small function f: f(2) gives 4", "f(2)", "4"),
]

OTHERS = [
    ('f("") should raise ValueError', Kind.RAISES, 'f("")', "ValueError"),
    ('Write a function f: f("") raises ValueError', Kind.RAISES, 'f("")', "ValueError"),
    ("f(-1) returns None, but should raise ValueError", Kind.RAISES, "f(-1)", "ValueError"),
]

NOTHING = [
    "median([1, 2, 3, 4]) currently returns 3", "median([1, 2, 3, 4]) gives 3, which is wrong",
    "total([]) raises ZeroDivisionError", "Fix the bug: add(2, 3) returns -1", "Currently: slugify('a b') -> 'a b'",
    "slugify('a b') -> 'a b', but that is wrong", "Why does add(2, 3) return -1?", "This must not be: f(1) == 2",
    "f(1) == 2 is wrong", "f(1) == 2 is true at the moment", "I need add(2, 3) to be quick. add(2, 3) is 5",
    "add(2, 3) should not return 5", "add(2, 3) is 5, not 6", "add(a, b) should return 5",
    "add(2, 3) should return x", "add(2, 3) should return 5 items", "add(2, 3) should be 5%",
    "slugify('A b') should return a-b", "unknown(2) should return 5", "obj.add(2, 3) should return 5",
    "add(...) should return 5", "add(2, 3 should return 5", "def add(a=1, b=2) -> int", "Write a function add(2, 3)",
    "f(lambda: 1) should return 1", "f('a should return 1", "assert unknown(2) == 5", "assert add(2, 3) ==",
    "That is all that we assert .", "",
]  # fmt: skip


def test_expected_value_is_read_from_the_task_unless_in_doubt() -> None:
    parsed = [(text, task_examples(text, NAMES, "calc")) for text, *_ in VALUES]
    assert [(text, *_in_words(examples)) for text, examples in parsed] == [
        (text, ("value", source, want)) for text, source, want in VALUES
    ]
    for text, kind, source, want in OTHERS:
        assert task_examples(text, NAMES) == (Example("f", source, want, Origin.TASK, kind),)
    assert [text for text in NOTHING if task_examples(text, NAMES, "calc")] == []


def _in_words(examples: tuple[Example, ...]) -> list[tuple[str, str, str]]:
    return [(example.kind.value, example.source, example.want) for example in examples]


def test_several_examples_in_one_request_are_read() -> None:
    text = "Fix add: add(1, 2) gives 2, expected 3, and add(2, 2) should be 4.\n\nassert add(0, 0) == 0\n"
    examples = task_examples(text + "add(2, 2) should be 4", NAMES)
    assert [(example.source, example.want) for example in examples] == [
        ("add(1, 2)", "3"),
        ("add(2, 2)", "4"),
        ("add(0, 0)", "0"),
    ]
    text = 'I need luhn.py with f(number), which must skip blanks. f("18 2") is True, f("18 3") is False.'
    examples = task_examples(text, NAMES, "luhn")
    assert [(example.source, example.want) for example in examples] == [('f("18 2")', "True"), ('f("18 3")', "False")]


def test_example_of_a_new_name_is_read_after_the_request_introduces_it() -> None:
    first, second = "Put f into calc.py; what comes before counts: f(2) gives 4", "calc.py shows squares, f(2) is 4"
    for text in (first, second):
        assert task_examples(text, NAMES, "calc") == ()
        assert [example.want for example in task_examples(text, NAMES, "calc", ["f"])] == ["4"]
    wrong = "Put f into calc.py. f(2) currently gives 3", "It is not so that f(2) gives 3"
    for text in (*wrong, "Add f to calc.py. f(2) is wrong"):
        assert task_examples(text, NAMES, "calc", ["f"]) == ()


def test_long_request_is_read_up_to_its_limit() -> None:
    text = "x " * (LONGEST_REQUEST // 2) + "add(2, 3) should return 5"
    assert task_examples(text, NAMES) == ()
    assert task_examples("add(" * 5_000, NAMES) == ()


@given(st.text(alphabet="add(2, 3) shouldreturn5'\"[]{}.\n", max_size=60))
def test_any_request_can_be_read(text: str) -> None:
    for example in task_examples(text, NAMES):
        compile(example.source, "", "eval")
        compile(example.want or "0", "", "eval")
