import time
import warnings

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.execute_tools.edits import losses
from mendgraph.nodes.execute_tools.edits.losses import DEEPEST_YAML, LARGEST_JUDGED, broken_by, syntax_problem
from mendgraph.nodes.language.documents import DEEPEST
from tests.row_tables import rows

PARSES = [
    ("a.py", "def f(a):\n    return a\n"),
    ("a.py", ""),
    ("a.pyi", "def f(a: int) -> int: ...\n"),
    ("src/a.json", '{"a": [1, 2.5, null, NaN]}'),
    ("a.json", "1" * 5_000),
    ("a.toml", "[tool]\na = 1979-05-27\n[[x]]\n"),
    ("a.toml", ""),
    ("a.yaml", "a: &x [1, *x]\nb: !Ref c\n---\n- second document\n"),
    ("a.yml", ""),
    ("a.yaml", "a: !!python/object/apply:os.system ['false']\n"),
    ("a.yaml", "a: *nowhere\n"),
]


FAILS = [
    ("a.py", "def f(a):\nreturn a\n", "line 2: expected an indented block after function definition on line 1"),
    ("a.json", "{\n", "line 1: Expecting property name enclosed in double quotes"),
    ("a.json", '{\n  "a": 1\n  "b": 2\n}\n', "line 3: Expecting ',' delimiter"),
    ("a.json", '// no comments\n{"a": 1}\n', "line 1: Expecting value"),
    ("a.toml", "a = 1\nb = \n", "line 2: Invalid value"),
    ("a.toml", "a = 1\nb = [1,\n", "line 2: Invalid value at the end of the file"),
    ("a.toml", "a = 1\na = 2\n", "line 2: Cannot overwrite a value"),
    ("a.yaml", "a: [1\nb: 2\n", "line 2: did not find expected ',' or ']'"),
    ("a.yml", "a: 1\nb: c: d\n", "line 2: mapping values are not allowed in this context"),
    ("a.yaml", "é: 1\n---\nb\x01: 2\n", "line 3: control characters are not allowed"),
]


UNJUDGED = [
    ("a.txt", "def f(:"),
    ("a.jsonl", "{}\n{}\n"),
    ("a.py/readme", "("),
    ("a.py", "#" * LARGEST_JUDGED + "\n("),
    ("a.py", "-" * 100_000 + "x"),
    ("a.py", "x = '\ud800'\n("),
    ("a.json", "[" * 100_000),
    ("a.toml", "a = " + "[" * 100_000),
    ("a.toml", "a = " + "1" * 5_000),
    ("a.toml", "a." * DEEPEST + "a." + "b\n"),
    ("a.yaml", "[" * (DEEPEST_YAML + 1)),
    ("a.yaml", "- " * (DEEPEST_YAML + 1)),
    ("a.yaml", "a: \ud800"),
]


def test_syntax_problem_is_reported_with_its_line() -> None:
    assert [row for row in FAILS if syntax_problem(*row[:2]) != row[2]] == []
    assert [(path, text[:20]) for path, text in (*PARSES, *UNJUDGED) if syntax_problem(path, text)] == []


@rows(
    ("x = 1\n", "x = (\n", "no longer parses as Python: line 1: '(' was never closed"),
    ("", "(", "no longer parses as Python: line 1: '(' was never closed"),
    (None, "(", None),
    ("[", "(", None),
    ("-" * 100_000 + "x", "(", None),
    ("x = 1\n", "x = 2\n", None),
    ("(", "x = 2\n", None),
)
def test_only_text_that_parsed_before_can_be_broken(before: str | None, after: str, problem: str | None) -> None:
    assert broken_by("a.py", before, after) == problem


def test_parser_warnings_are_suppressed() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert syntax_problem("a.py", "x = '\\d'\nassert (x, 'always')\n1 is 1\n") is None
    assert heard == []


def test_yaml_is_checked_without_libyaml_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_LOADER", yaml.SafeLoader)
    assert syntax_problem("a.yaml", "a: 1\nb: c: d\n") == "line 2: mapping values are not allowed here"
    assert syntax_problem("a.yaml", "é: 1\n---\nb\x01: 2\n") == "line 3: special characters are not allowed"
    assert syntax_problem("a.yaml", "[" * (DEEPEST_YAML + 1)) is None


@settings(max_examples=40)
@given(st.sampled_from([".py", ".json", ".toml", ".yaml", ".txt"]), st.text(max_size=40), st.text(max_size=40))
def test_any_text_can_be_checked(suffix: str, before: str, after: str) -> None:
    problem = broken_by(f"a{suffix}", before, after)
    assert problem is None or "no longer parses as " in problem


def test_check_of_hostile_yaml_is_bounded() -> None:
    """Neither aliases for billions of nodes nor endless brackets cost more than their length."""
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 60))
    began = time.process_time()
    assert syntax_problem("a.yaml", bomb) is None
    assert syntax_problem("a.yaml", "[" * LARGEST_JUDGED) is None
    assert time.process_time() - began < 5
