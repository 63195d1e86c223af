import pytest

from benchmarks.mutants.mutation import Mutant, is_another_program, mutants_of
from tests.architecture.product import text_of

SOURCE = """LIMIT = 3

class Box:
    size: int = 1

    @property
    def full(self, most=2):
        def inner():
            return self.size + 1
        return inner() >= most
"""


def test_each_mutant_is_one_change_and_knows_its_function() -> None:
    found = [(each.function, *each.lines(SOURCE)) for each in mutants_of("box.py", SOURCE)]
    full = "Box.full"
    assert found == [
        (None, 1, "LIMIT = 3", "LIMIT = None"),
        (None, 1, "LIMIT = 3", "LIMIT = 4"),
        (None, 4, "size: int = 1", "size: int = None"),
        (None, 4, "size: int = 1", "size: int = 2"),
        (None, 7, "def full(self, most=2):", "def full(self, most=3):"),
        (full, 9, "return self.size + 1", "return self.size - 1"),
        (full, 9, "return self.size + 1", "return self.size + 2"),
        (full, 10, "return inner() >= most", "return inner() > most"),
    ]


@pytest.mark.parametrize(("text", "program"), [("y", True), ("x", False), ("(", False)])
def test_a_mutant_is_python_and_another_text(text: str, program: bool) -> None:
    assert is_another_program(Mutant("a.py", 0, 1, text, None), "x\n") is program


def test_every_mutant_of_a_real_file_changes_its_own_place_only() -> None:
    source = text_of("nodes/loop_check/repetition.py")
    before = source.encode()
    for mutant in mutants_of("a.py", source):
        after = mutant.applied(source).encode()
        assert before[: mutant.start] == after[: mutant.start]
        assert before[mutant.end :] == after[len(after) - len(before) + mutant.end :]
        assert is_another_program(mutant, source)


LEFT_OUT = {
    "annotation": "def f(x: 'int') -> 'int | None': ...",
    "annotation of a local variable": "def f():\n    x: 'int'",
    "type alias": "Pair = tuple[int, 1]",
    "private type alias": "_Pairs = dict[str, 'Pair']",
    "type alias with its annotation": "PAIR: TypeAlias = 'int'",
    "type checking": "if TYPE_CHECKING:\n    x = 1",
    "decorator": "@dataclass(frozen=True)\nclass A: ...",
    "keyword of a class": "class A(B, total=False): ...",
    "docstring": "def f():\n    'word'",
    "all": "__all__ = ['f']",
    "slots": "class A:\n    __slots__ = ('a',)",
    "logging": "def f():\n    logger.info('word', 1)",
    "check of a type": "def f(x):\n    return isinstance(x, int)",
    "proof of completeness": "def f(x):\n    assert_never(x)",
    "import": "from a import b as c",
}


@pytest.mark.parametrize("source", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_no_test_should_notice_is_not_mutated(source: str) -> None:
    assert texts(source) == set()


def test_texts_for_people_are_not_mutated_and_words_are() -> None:
    assert texts("def f(): return 'no such file'") == set()
    assert texts("def f(): return 'no such ' f'file {x}'") == set()
    assert texts("def f(): return 'word'") == {"def f(): return 'XXwordXX'"}
    assert texts("def f(): return ', '") == {"def f(): return 'XX, XX'"}
    assert texts("def f(): return r'a b'") == {"def f(): return r'XXa bXX'"}


def test_an_argument_that_says_the_default_is_not_taken_away() -> None:
    assert texts("def f(a, b): return zip(a, b, strict=x)") == {
        "def f(a, b): return zip(None, b, strict=x)",
        "def f(a, b): return zip(a, None, strict=x)",
        "def f(a, b): return zip(b, strict=x)",
        "def f(a, b): return zip(a, strict=x)",
    }
    assert texts("def f(a, b): return zip(a, b, strict=True)") == {
        "def f(a, b): return zip(None, b, strict=True)",
        "def f(a, b): return zip(a, None, strict=True)",
        "def f(a, b): return zip(b, strict=True)",
        "def f(a, b): return zip(a, strict=True)",
    }
    assert texts("def f(a): return a.encode('utf-8')") == set()
    assert texts("def f(a): return a(b=False)") == {"def f(a): return a(b=True)"}
    assert texts("class A:\n    x = Field(description='word')") == {"class A:\n    x = None"}


def test_a_field_keeps_its_bounds_among_the_mutants() -> None:
    assert texts("class A:\n    x = Field(ge=1, title='word')") == {
        "class A:\n    x = None",
        "class A:\n    x = Field(ge=2, title='word')",
        "class A:\n    x = Field(ge=None, title='word')",
        "class A:\n    x = Field(title='word')",
    }


def texts(source: str) -> set[str]:
    found = mutants_of("a.py", source)
    return {mutant.applied(source) for mutant in found if is_another_program(mutant, source)}
