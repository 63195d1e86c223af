"""In which line of a TOML document each key stands, and where a text is no TOML."""

import json

import pytest
from hypothesis import given, strategies as st

from graph.configuration.statements import Document, read_document
from nodes.language.documents import DEEPEST, DocumentProblem

TEXT = '''# "[ a comment
mode = "ask" # ["
a.b = 1
hosts = [ # several
  "x",

  "]", ]
said = """
mode = "auto"
[no_table]
""""
plain = \'\'\'
it's\'\'\'
[quotas]
"read file" = { one = 1, two = [2] }
[quotas.inner]
z = 1
[[list]]
k = 1
'''


def test_each_key_has_the_line_in_which_it_begins() -> None:
    found = read_document(TEXT)
    assert isinstance(found, Document)
    assert found.lines == {
        ("mode",): 2,
        ("a",): 3,
        ("a", "b"): 3,
        ("hosts",): 4,
        ("said",): 8,
        ("plain",): 12,
        ("quotas",): 14,
        ("quotas", "read file"): 15,
        ("quotas", "read file", "one"): 15,
        ("quotas", "read file", "two"): 15,
        ("quotas", "inner"): 16,
        ("quotas", "inner", "z"): 17,
        ("list",): 18,
        ("list", "k"): 19,
    }


STRINGS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
VALUES = st.one_of(
    st.integers(-9, 9).map(str),
    STRINGS.map(json.dumps).filter(lambda said: "\\ud" not in said),
    STRINGS.filter(lambda said: "'" not in said).map(lambda said: f"'''{said}\n[x]\ny = 1 # '''"),
    st.lists(STRINGS.map(json.dumps).filter(lambda said: "\\ud" not in said)).map(
        lambda parts: "[ # ]\n" + ",\n".join(parts) + "\n]"
    ),
)
BETWEEN = st.sampled_from(["\n", "\n\n", " # it's\n", "\n# [\n", '\n# """\n'])


@given(parts=st.lists(st.tuples(VALUES, BETWEEN), max_size=8), ends=st.sampled_from(["\n", "\r\n"]))
def test_lines_are_those_of_any_document(parts: list[tuple[str, str]], ends: str) -> None:
    text, wanted = "", {}
    for number, (value, between) in enumerate(parts):
        wanted[f"k{number}",] = text.count("\n") + 1
        text += f"k{number} = {value}{between}"
    found = read_document(text.replace("\n", ends))
    assert isinstance(found, Document), found
    assert found.lines == wanted


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = 1\nb = ", DocumentProblem("Invalid value at the end of the file", 2)),
        ("a = 1\nb = ?\n", DocumentProblem("Invalid value", 2, 5)),
        ("a = 1\na = 2\n", DocumentProblem("Cannot overwrite a value", 2, 6)),
        ("a = " + "[" * 5_000, DocumentProblem("arrays or tables are nested too deep")),
        ("a = " + "9" * 5_000, DocumentProblem("a number in it is too long")),
        ("a = 0x" + "f" * 5_000, DocumentProblem("a number in it is too long")),
        ("a = " + "[" * 65 + "]" * 65, DocumentProblem("arrays or tables are nested too deep")),
        (f"[{'a.' * 65}a]\nb = 1", DocumentProblem("a key in it has more than 64 parts")),
        ("a." * 30_000 + "a = 1", DocumentProblem("a key in it has more than 64 parts")),
        (f"x = {{{'a . ' * 9_000}a = 1}}", DocumentProblem("a key in it has more than 64 parts")),
        ("'a'." * 9_000 + "a = 1", DocumentProblem("a key in it has more than 64 parts")),
    ],
    ids=[
        "unfinished",
        "no value",
        "twice",
        "deep",
        "long",
        "long in hex",
        "too deep to judge",
        "deep tables",
        "parts",
        "spaced parts",
        "quoted parts",
    ],
)
def test_what_is_no_toml_is_told_with_its_place(text: str, problem: DocumentProblem) -> None:
    found = read_document(text)
    assert isinstance(found, DocumentProblem)
    assert (found.message.lower(), found.line, found.column) == (problem.message.lower(), problem.line, problem.column)


@given(st.text(st.sampled_from("ab=[]{}\"'\n#.1 \\,"), max_size=40))
def test_every_text_is_a_document_or_a_problem(text: str) -> None:
    found = read_document(text)
    if isinstance(found, Document):
        assert {path[:1] for path in found.lines} == {(name,) for name in found.values}
    else:
        assert found.message


def test_what_is_nested_as_deep_as_may_be_is_read() -> None:
    document = read_document("a = " + "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))
    assert isinstance(document, Document)
