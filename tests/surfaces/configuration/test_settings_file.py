"""One settings file: what it may contain, and how each mistake is reported."""

from hypothesis import given, strategies as st

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import Settings, parse_settings

KEY = "ghp_" + "a8F3kLq9ZxT2vB7nM4cR6wY1pD5sH0jG2uE8"


def problems_of(text: str) -> list[str]:
    result = parse_settings(text, "f.toml")
    assert isinstance(result, tuple), result
    return [str(problem) for problem in result]


def test_fields_are_top_level_keys_with_the_names_of_the_context() -> None:
    text = 'mode = "ask"\n\nmax_steps = 5\n[tool_quotas]\nread_file = 3\n'
    assert parse_settings(text, "f.toml") == Settings(
        "f.toml",
        {"mode": "ask", "max_steps": 5, "tool_quotas": {"read_file": 3}},
        {"mode": 1, "max_steps": 3, "tool_quotas": 4},
    )


UNFIT = {
    "\nmax_steps = 0": "2: max_steps must be at least 1.",
    'seed = "5"': "1: seed must be a whole number.",
    "seed = true": "1: seed must be a whole number.",
    "max_seconds = 1979-05-27": "1: max_seconds must not be a date or time.",
    "temperature = nan": "1: temperature must be a finite number.",
    "[tool_quotas]\n\nread_file = -1": "3: tool_quotas.read_file must be at least 0.",
    "checks = [\n1]": "1: checks[0] must be text.",
}
PROBLEMS = {
    'base_url = "https://u:p@host/v1"': (
        "1: base_url: base_url must not contain a user name or password: put the key into OPENAI_API_KEY. It means:"
    ),
    'allowed_hosts = ["http://x"]': "1: allowed_hosts: 'http://x' is not a host: write a name such as",
    'allowed_private_hosts = ["a b"]': "1: allowed_private_hosts: 'a b' is not a host",
    'allowed_programs = ["make all"]': (
        "1: allowed_programs: 'make all' is not one program: use only the program, 'make'"
    ),
    'allowed_commands = ["pytest | tail"]': (
        "1: allowed_commands: 'pytest | tail' is not one simple command, or it may start any program: name a command"
    ),
    'allowed_programs = [""]': (
        "1: allowed_programs: '' is not one program: use a name such as make, or a path such as .venv/bin/pytest"
    ),
    'allowed_programs = ["a\\u001b b\\u202e"]': (
        "1: allowed_programs: 'a\\x1b b\\u202e' is not one program: use only the program, 'a\\x1b'"
    ),
    "max_stepz = 3": "1: there is no setting max_stepz: did you mean max_steps or max_steps_soft?",
    "zzzzzz = 3": "1: there is no setting zzzzzz; `mendgraph config` lists all",
    "[limits]\nmax_steps = 3": "1: there is no setting limits: max_steps and all settings belong at the top of the",
    'workspace = "/"': "1: workspace cannot be set in a file: name the folder with --root, or start in it",
    "a = 1\n= 2": "2:1: this is not TOML: Invalid statement",
}
SECRETS = {
    f'api_key = "{KEY}"': "put the key into the environment variable OPENAI_API_KEY",
    f'token = "{KEY}"': "put the key into the environment variable OPENAI_API_KEY",
    f'model = "{KEY}"': "holds what looks like a secret: put the key into",
    f'[response_format]\na = "{KEY}"': "holds what looks like a secret: put the key into",
}


def test_problem_names_file_line_and_field_and_the_remedy() -> None:
    for text, problem in UNFIT.items():
        field = text.strip("\n[").replace("]", " ").split()[0]
        assert problems_of(text) == [f"f.toml:{problem} It means: {AgentContext.model_fields[field].description}"]
    for text, problem in PROBLEMS.items():
        [problem_text] = problems_of(text)
        assert problem_text[: len(problem) + 7] == f"f.toml:{problem}"


def test_secret_in_a_settings_file_is_refused_and_not_quoted() -> None:
    for text, problem in SECRETS.items():
        [problem_text] = problems_of(text)
        assert (problem in problem_text, KEY in problem_text) == (True, False), text


NAMES = st.sampled_from(sorted(AgentContext.model_fields.keys() - {"workspace"}))
VALUES_OF_SETTINGS_FILE = st.sampled_from(
    ["1", "-1", "0.5", "true", '"x"', "[]", '["x"]', "{}", "{a = 1}", "inf", "2000-01-01", "99999999999999999999"]
)


@given(st.dictionaries(NAMES, VALUES_OF_SETTINGS_FILE, max_size=6))
def test_valid_settings_make_a_context_and_invalid_ones_are_named(given_values: dict[str, str]) -> None:
    text = "".join(f"{name} = {value}\n" for name, value in given_values.items())
    result = parse_settings(text, "f.toml")
    if isinstance(result, Settings):
        assert list(result.values) == list(given_values)
        assert [result.lines[name] for name in given_values] == list(range(1, len(given_values) + 1))
        if not any(name.startswith("usd_") for name in given_values):
            AgentContext(**result.values)
    else:
        assert {problem.field for problem in result} <= given_values.keys()
        assert all(list(given_values).index(problem.field) + 1 == problem.line for problem in result)
