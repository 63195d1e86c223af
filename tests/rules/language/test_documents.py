from typing import Any

import yaml
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.language.documents import DEEPEST, MOST_VALUES, DocumentProblem, read_toml, read_yaml, storable
from tests.row_tables import rows

NINE = ",".join
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def multiplied(opening: str, item: str) -> str:
    """Twelve lines of which each has the one before it nine times."""
    lines = (f"a{n}: &a{n} {item % NINE([f'*a{n - 1}'] * 9)}" for n in range(1, 13))
    return "\n".join([f"a0: &a0 {opening}", *lines])


@settings(max_examples=30)
@given(VALUES)
def test_dumped_yaml_is_read_back(value: Any) -> None:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, _: Any) -> bool:
            return True

    assert read_yaml(yaml.dump(value, Dumper=Plain)) == value


@rows(
    ("a:\n  " + "[" * 300_000, "arrays or tables are nested too deep", 2),
    ("- " * 300_000, "arrays or tables are nested too deep", 1),
    ("".join(f"{' ' * n}a:\n" for n in range(DEEPEST + 9)), "arrays or tables are nested too deep", DEEPEST + 1),
    (multiplied("[x]", "[%s]"), "an alias, *a0, is not read", 2),
    (multiplied("{x: 1}", "{<<: [%s]}"), "an alias, *a0, is not read", 2),
    ("a: &a [*a]", "an alias, *a, is not read", 1),
    ("- 1\n" * (MOST_VALUES + 1), "it has more than 100,000 values", 99_999),
    ("a: 1" + ":59" * 100_000, "a number in it is too long", 1),
    ("a: 1" + ":59" * 100_000 + ".5", "a number in it is too long", 1),
    ("\na: 0x" + "f" * 9_000, "a number in it is too long", 2),
    ("? " + "1" * 9_000 + "\n: 1", "a number in it is too long", 1),
    ("a: 2001-99-99", "month must be in 1..12", 1),
    ("a: !!python/object/apply:os.getcwd []", "the tag tag:yaml.org,2002:python/object/apply:os.getcwd", 1),
    ("a: !!timestamp x", "the tag tag:yaml.org,2002:timestamp is not read", 1),
    ("a: !!int ''", "the tag tag:yaml.org,2002:int is not read", 1),
    ("a: !!set {b}", "the tag tag:yaml.org,2002:set is not read", 1),
    ("a: 1\nb: 1\na: 2", "the key 'a' is there twice", 1),
    ("a: 1\n---\nb: 1", "but found another document", 2),
    ("a: \ud800", "it holds half a character", 0),
    ("a: \0", "unacceptable character #x0000: control characters are not allowed", 0),
)
def test_expensive_document_is_refused(text: str, problem: str, line: int) -> None:
    outcome = read_yaml(text)
    assert isinstance(outcome, DocumentProblem)
    assert (outcome.message[: len(problem)], outcome.line) == (problem, line)


def test_dots_in_strings_and_comments_are_not_key_parts() -> None:
    dots = "a." * 9_000
    assert read_toml(f"a = \"{dots}\" # {dots}\nb = '''\n{dots}'''\nc = [{'1.5, ' * 90}]") == {
        "a": dots,
        "b": dots,
        "c": [1.5] * 90,
    }


HALVES = st.text(st.characters(codec="utf-8") | st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF))


@given(HALVES)
def test_storable_text_is_encodable_and_otherwise_unchanged(text: str) -> None:
    assert storable(storable(text)) == storable(text)
    assert storable(text).encode().decode() == storable(text)
    if text.isascii():
        assert storable(text) == text
