"""What can be the name of a program."""

import json

import pytest
from hypothesis import given, strategies as st

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.settings_file import (
    Document,
    Settings,
    parse_settings,
    program_problem,
    read_document,
)
from mendgraph.nodes.language.documents import DocumentProblem


@pytest.mark.parametrize("entry", ["make", ".venv/bin/pytest", "/usr/bin/python3.11", "g++", "a-b_c"])
def test_a_name_or_a_path_alone_is_a_program(entry: str) -> None:
    assert program_problem(entry) is None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("make all", "'make all' is not one program: give the program alone, 'make'"),
        ("-x", "'-x' is not one program: give a name such as make, or a path such as .venv/bin/pytest"),
        ("", "'' is not one program: give a name such as make, or a path such as .venv/bin/pytest"),
        ("a;b", "'a;b' is not one program: give a name such as make, or a path such as .venv/bin/pytest"),
        ("a\x1b b\u202e", "'a\\x1b b\\u202e' is not one program: give the program alone, 'a\\x1b'"),
    ],
)
def test_what_only_a_shell_understands_is_none(entry: str, problem: str) -> None:
    assert program_problem(entry) == problem


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


KEY = "ghp_" + "a8F3kLq9ZxT2vB7nM4cR6wY1pD5sH0jG2uE8"


def said(text: str, *, of_user: bool = False) -> list[str]:
    found = parse_settings(text, "f.toml", of_user=of_user)
    assert isinstance(found, tuple), found
    return [str(each) for each in found]


def test_fields_stand_at_the_top_with_their_names() -> None:
    text = 'mode = "ask"\n\nmax_steps = 5\n[tool_quotas]\nread_file = 3\n'
    assert parse_settings(text, "f.toml", of_user=False) == Settings(
        "f.toml",
        {"mode": "ask", "max_steps": 5, "tool_quotas": {"read_file": 3}},
        {"mode": 1, "max_steps": 3, "tool_quotas": 4},
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\nmax_steps = 0", "2: max_steps should be greater than or equal to 1."),
        ('seed = "5"', "1: seed should be a valid integer."),
        ("seed = true", "1: seed should be a valid integer."),
        ("max_seconds = 1979-05-27", "1: max_seconds should be no date or time."),
        ("temperature = nan", "1: temperature should be a finite number."),
        ("[tool_quotas]\n\nread_file = -1", "3: tool_quotas.read_file should be greater than or equal to 0."),
        ("checks = [\n1]", "1: checks[0] should be a valid string."),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_what_the_field_is(text: str, problem: str) -> None:
    field = text.strip("\n[").replace("]", " ").split()[0]
    assert said(text) == [f"f.toml:{problem} It means: {AgentContext.model_fields[field].description}"]


LOGIN = "base_url: base_url may hold no user name or password: put the key into OPENAI_API_KEY. It means:"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('base_url = "https://u:p@host/v1"', f"1: {LOGIN}"),
        ('allowed_hosts = ["http://x"]', "1: allowed_hosts: 'http://x' is no host: write a name such as"),
        ('allowed_private_hosts = ["a b"]', "1: allowed_private_hosts: 'a b' is no host"),
        ('allowed_programs = ["make all"]', "1: allowed_programs: 'make all' is not one program: give the program"),
        ("max_stepz = 3", "1: there is no setting max_stepz: did you mean max_steps or max_steps_soft?"),
        ("zzzzzz = 3", "1: there is no setting zzzzzz; `mendgraph config show` lists all"),
        ('"a\\u001b[31m" = 3', "1: there is no setting 'a\\x1b[31m'; `mendgraph config show` lists all"),
        (
            "[limits]\nmax_steps = 3",
            "1: there is no setting limits: max_steps and all settings stand at the top of the",
        ),
        ('workspace = "/"', "1: workspace cannot be set in a file: name the folder with --root, or start in it"),
        ('trusted_workspaces = ["/"]', "1: trusted_workspaces may only stand in your own configuration file"),
        ("a = 1\n= 2", "2:1: this is no TOML: Invalid statement"),
    ],
)
def test_a_problem_names_file_line_and_field_and_what_helps(text: str, problem: str) -> None:
    [found] = said(text)
    assert found.startswith(f"f.toml:{problem}")


def test_several_problems_are_told_at_once_in_the_order_of_the_lines() -> None:
    found = parse_settings('modle = 1\nmax_steps = 0\nmode = "all"\n', "f.toml", of_user=True)
    assert isinstance(found, tuple)
    assert [(each.line, each.field) for each in found] == [(1, "modle"), (2, "max_steps"), (3, "mode")]


@pytest.mark.parametrize("name", ["api_key", "OPENAI_API_KEY", "token", "password", "client_secret", "Authorization"])
def test_a_key_belongs_into_the_environment(name: str) -> None:
    [problem] = said(f'{name} = "{KEY}"', of_user=True)
    assert "put the key into the environment variable OPENAI_API_KEY" in problem
    assert KEY not in problem


@pytest.mark.parametrize("text", [f'model = "{KEY}"', f'checks = ["curl -H {KEY}"]', f'[answer_schema]\na = "{KEY}"'])
def test_a_value_that_looks_like_a_secret_is_refused_and_not_repeated(text: str) -> None:
    [problem] = said(text, of_user=True)
    assert "holds what looks like a secret: put the key into" in problem
    assert KEY not in problem


@pytest.mark.parametrize("value", ["1", '"~"', "[1]", '["relative"]', '["/a", "/b\\u0000"]'])
def test_trusted_folders_are_a_list_of_absolute_names(value: str) -> None:
    assert said(f"trusted_workspaces = {value}", of_user=True) == [
        'f.toml:1: trusted_workspaces should be a list of absolute folders, such as ["~/work/project"]'
    ]
    good = parse_settings('trusted_workspaces = ["~/a", "/b"]', "f.toml", of_user=True)
    assert good == Settings("f.toml", trusted=("~/a", "/b"))


NAMES = st.sampled_from(sorted(AgentContext.model_fields.keys() - {"workspace"}))
VALUES_OF_SETTINGS_FILE = st.sampled_from(
    ["1", "-1", "0.5", "true", '"x"', "[]", '["x"]', "{}", "{a = 1}", "inf", "2000-01-01", "99999999999999999999"]
)


@given(st.dictionaries(NAMES, VALUES_OF_SETTINGS_FILE, max_size=6))
def test_what_is_taken_is_a_context_and_what_is_not_is_named(given_values: dict[str, str]) -> None:
    text = "".join(f"{name} = {value}\n" for name, value in given_values.items())
    found = parse_settings(text, "f.toml", of_user=True)
    if isinstance(found, Settings):
        assert list(found.values) == list(given_values)
        assert [found.lines[name] for name in given_values] == list(range(1, len(given_values) + 1))
        if not any(name.startswith("usd_") for name in given_values):
            AgentContext(**found.values)
    else:
        assert {each.field for each in found} <= given_values.keys()
        assert all(list(given_values).index(each.field) + 1 == each.line for each in found)
