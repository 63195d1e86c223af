"""Settings from files and the environment: their precedence, and files that try to widen permissions."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import (
    CONFIG_VARIABLE,
    Configuration,
    Origin,
    load_configuration,
    load_context,
    widening,
)
from mendgraph.graph.configuration.presets import UNATTENDED
from mendgraph.graph.configuration.prices import load_prices
from mendgraph.graph.terminal.options import merged
from mendgraph.nodes.call_model.prices import Price, find_price
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store import user_files

OWN = user_files.SETTINGS_FILE


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "user.toml"))
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "user.toml").touch()
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def write(root: Path, workspace: str | None = None, user: str | None = None) -> None:
    if workspace is not None:
        (root / OWN).write_text(workspace)
    if user is not None:
        (root.parent / "user.toml").write_text(user)


def problems_of(root: Path, **options: Any) -> list[str]:
    result = load_configuration(str(root), **options)
    assert isinstance(result, tuple), result
    return [str(problem).replace(str(root.parent), "") for problem in result]


def test_setting_comes_from_the_source_with_the_highest_precedence(root: Path) -> None:
    write(root, 'mode = "ask"\nmax_steps = 3\n', '\nmax_steps = 5\nmodel = "m"\nbase_url = "http://a/v1"\n')
    configuration = load_configuration(str(root), {**os.environ, "OPENAI_BASE_URL": "http://b/v1"})
    user = str(root.parent / "user.toml")
    origins = {"max_steps": Origin(OWN, 2), "model": Origin(user, 3), "mode": Origin(OWN, 1)}
    assert configuration == Configuration(
        {"max_steps": 3, "model": "m", "mode": "ask"}, {"base_url": Origin("OPENAI_BASE_URL"), **origins}, (user, OWN)
    )
    assert load_context(str(root), max_steps=9) == AgentContext(
        workspace=str(root), mode="ask", max_steps=9, model="m", base_url="http://a/v1"
    )


def test_file_named_by_the_variable_must_exist(root: Path) -> None:
    (root.parent / "user.toml").unlink()
    [problem] = problems_of(root)
    assert "there is no such file or directory. Fix what MENDGRAPH_CONFIG says, or leave it empty." in problem


def test_problems_of_both_files_are_reported_together(root: Path) -> None:
    write(root, "a = \n", "max_steps = 0\n")
    user, workspace_problem = problems_of(root)
    assert user.startswith("/user.toml:1: max_steps must be at least 1")
    assert workspace_problem.startswith(f"{OWN}:1:5: this is not TOML")


# --- Trust


def test_file_that_widens_settings_is_ignored_until_it_is_trusted(root: Path) -> None:
    write(root, 'max_steps = 3\nallowed_programs = ["make"]\n')
    [problem] = problems_of(root)
    assert problem.startswith(f"{OWN}:2: allowed_programs needs your trust: ")
    assert "`mendgraph config trust`" in problem
    assert "--no-workspace-config" in problem
    assert isinstance(load_context(str(root)), ToolError)
    assert load_context(str(root), workspace_file=False) == AgentContext(workspace=str(root))
    user_files.trust(str(root), user_files.hash_of((root / OWN).read_bytes()))
    configuration = load_configuration(str(root))
    assert isinstance(configuration, Configuration)
    assert "allowed_programs" in configuration.values


def test_changed_file_must_be_trusted_again(root: Path) -> None:
    write(root, 'allowed_programs = ["make"]\n')
    user_files.trust(str(root), user_files.hash_of((root / OWN).read_bytes()))
    write(root, 'allowed_programs = ["sh"]\n')
    assert "needs your trust" in problems_of(root)[0]


OVERRULED = (  # the user's file and the workspace's
    ("", "evidence = false"),
    ("evidence = true", "evidence = false"),
    ("keep_failed_edits = false", "keep_failed_edits = true"),
    ("", "checks_timeout_s = 0.001"),
    ("", "tool_timeouts_s = {run_checks = 0.001}"),
    ("", 'writable_paths = [".", ".vscode/settings.json"]'),
    ('writable_paths = ["src"]', 'writable_paths = ["src/.vscode/settings.json"]'),
    ('readable_folders = ["/opt/python"]', "readable_folders = []"),
    ("temperature = 0.0", "temperature = 2.0"),
    ('protocol = "native"', 'protocol = "text"'),
    ("read_ahead = true", "read_ahead = false"),
)


def test_file_that_overrides_the_user_or_weakens_checks_needs_trust(root: Path) -> None:
    for user, workspace in OVERRULED:
        write(root, workspace, user)
        name = workspace.partition(" ")[0]
        assert problems_of(root)[0].startswith(f"{OWN}:1: {name} needs your trust: "), workspace

        user_files.trust(str(root), user_files.hash_of((root / OWN).read_bytes()))
        trusted = load_context(str(root))
        user_files.trust(str(root), "")
        write(root, "", workspace)
        assert trusted == load_context(str(root)), workspace


def test_equal_values_and_unset_preferences_need_no_trust(root: Path) -> None:
    write(root, "evidence = true\ntemperature = 0.5\nprotocol = 'text'\n", "temperature = 0.5\n")
    assert load_context(str(root)) == AgentContext(workspace=str(root), temperature=0.5, protocol="text")


def test_denied_paths_of_all_files_and_options_are_combined(root: Path) -> None:
    write(root, 'denied_paths = ["data/"]\n', 'denied_paths = ["private/"]\n')
    context = load_context(str(root), denied_paths=("*.csv",))
    assert isinstance(context, AgentContext)
    assert context.denied_paths == ("private/", "data/", "*.csv")
    assert merged({"denied_paths": ("a",)}, {"denied_paths": ("b",)}) == {"denied_paths": ("a", "b")}


def test_file_is_compared_with_the_defaults_of_the_run(root: Path) -> None:
    write(root, "require_checks = false\nmax_calls_per_turn = 50\n")
    [widening_calls] = problems_of(root)
    assert "max_calls_per_turn needs your trust" in widening_calls
    [weakening] = problems_of(root, defaults=UNATTENDED)
    assert "require_checks needs your trust" in weakening


def test_on_limit_ask_in_a_workspace_file_needs_trust(root: Path) -> None:
    write(root, 'on_limit = "ask"\n', 'on_limit = "stop"\n')
    [asking] = problems_of(root)
    assert "on_limit needs your trust" in asking


# --- Files that are refused


NO_TEXTS = {
    b"a" * 64_001: ": it has more than 64,000 bytes.",
    b"x = 1\ny = '\xff'\n": ":2: this is not UTF-8 text (byte 11)",
    b"\0": ":1:1: this is not TOML",
}


def test_file_that_is_binary_or_too_large_is_refused(root: Path) -> None:
    for data, problem in NO_TEXTS.items():
        (root / OWN).write_bytes(data)
        assert problems_of(root)[0].startswith(f"{OWN}{problem}")


def test_settings_that_contradict_each_other_are_reported(root: Path) -> None:
    write(root, user="usd_per_million_input = 1.0\n")
    assert problems_of(root) == ["/user.toml: usd_per_million_input and usd_per_million_output are given together"]
    write(root, "usd_per_million_cached_input = 1.0\n", "")
    user_files.trust(str(root), user_files.hash_of((root / OWN).read_bytes()))
    assert problems_of(root) == [f"{OWN}: usd_per_million_cached_input needs usd_per_million_input as well"]
    write(root, "", "")
    error = load_context(str(root), max_steps=0)
    assert isinstance(error, ToolError)
    assert error.message == "max_steps: must be at least 1"


# --- Random pairs of files

FIELDS: dict[str, tuple[str, ...]] = {
    "mode": ('"read-only"', '"plan"', '"ask"', '"auto"'),
    "max_steps": ("1", "5"),
    "max_calls_per_turn": ("3", "30"),
    "model": ('"a"', '"b"'),
    "allowed_programs": ("[]", '["a"]', '["a", "b"]'),
    "temperature": ("0.5", "1.0"),
    "evidence": ("true", "false"),
    "keep_failed_edits": ("true", "false"),
}
FILE = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in FIELDS.items()})


def text_of(values: dict[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in values.items())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(user=FILE, workspace=FILE, trusted=st.booleans())
def test_repository_cannot_add_to_what_the_user_allows(
    root: Path, user: dict[str, str], workspace: dict[str, str], trusted: bool
) -> None:
    write(root, text_of(workspace), text_of(user))
    user_files.trust(str(root), user_files.hash_of((root / OWN).read_bytes()) if trusted else "0" * 64)
    alone = load_context(str(root), workspace_file=False)
    combined = load_context(str(root))
    assert isinstance(alone, AgentContext)
    if trusted:
        assert isinstance(combined, AgentContext)
        write(root, "", text_of({**user, **workspace}))
        assert load_context(str(root)) == combined
    elif isinstance(combined, AgentContext):
        order = ["read-only", "plan", "ask", "auto"]
        assert order.index(combined.mode) <= order.index(alone.mode)
        assert combined.max_calls_per_turn <= alone.max_calls_per_turn
        assert (combined.max_steps or 9) <= (alone.max_steps or 9)
        assert set(combined.allowed_programs) <= set(alone.allowed_programs)
        assert combined.model == alone.model
        assert "temperature" not in user or combined.temperature == alone.temperature
        assert (combined.evidence, combined.keep_failed_edits) == (alone.evidence, alone.keep_failed_edits)
    else:
        assert "needs your trust" in combined.message


# --- Trust

NARROW: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"mode": "ask"}, {"mode": "read-only"}),
    ({}, {"max_steps": 3, "max_calls_per_turn": 10, "max_cost_usd": 0.5}),
    ({"account": "a"}, {"account": "a", "max_cost_usd_per_account": 0.5, "max_tokens_per_account": 5}),
    ({}, {"protocol": "text", "edit_form": "patch", "temperature": 1.0, "offer": "all"}),
    ({"allowed_programs": ("make", "git")}, {"allowed_programs": ["make"]}),
    ({"allowed_hosts": ("a.org",)}, {"allowed_hosts": []}),
    ({}, {"role": "editor", "syntax_gate": "refuse", "evidence": False, "project_notes": False, "audit": True}),
    ({"role": "operator"}, {"role": "reader"}),
    ({}, {"allowed_extensions": [".py"]}),
    ({"allowed_extensions": (".py", ".md")}, {"allowed_extensions": ["PY"]}),
    ({}, {"writable_paths": ["src"]}),
    ({"writable_paths": ("src/", "a.py")}, {"writable_paths": ["./src/b", "a.py"]}),
    ({"tool_quotas": {"run_command": 2}}, {"tool_quotas": {"run_command": 1, "read_file": 9}}),
    ({"reasoning_effort": "high"}, {"reasoning_effort": "low"}),
    ({"denied_paths": ("private/",)}, {"denied_paths": ["*.csv", "private/"]}),
    ({}, {"max_output_tokens_per_call": 2_048}),
    ({"max_output_tokens_per_call": 9_000}, {"max_output_tokens_per_call": 8_000}),
)
WIDE: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"mode": "read-only"}, {"mode": "auto"}),
    ({"account": "a", "max_cost_usd_per_account": 1.0}, {"account": "b"}),
    ({"max_cost_usd": 1.0}, {"max_cost_usd": 2.0}),
    ({}, {"base_url": "https://evil.example/v1"}),
    ({}, {"reasoning_effort": "low"}),
    ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
    ({}, {"max_output_tokens_per_call": 2_049}),
    ({"allowed_programs": ("make",)}, {"allowed_programs": ["make", "sh"]}),
    ({}, {"readable_folders": ["/root"]}),
    ({}, {"checks": ["sh -c evil"]}),
    ({"checks": ("make",)}, {"checks": []}),
    ({"role": "own"}, {"role": "reader"}),
    ({}, {"audit": False}),
    ({"evidence": False}, {"evidence": True}),
    ({}, {"syntax_gate": "off"}),
    ({"allowed_extensions": (".md",)}, {"allowed_extensions": []}),
    ({"allowed_extensions": (".md",)}, {"allowed_extensions": [".py"]}),
    ({"writable_paths": ("src",)}, {"writable_paths": []}),
    ({"writable_paths": ("src",)}, {"writable_paths": ["src", "."]}),
    ({"writable_paths": ("src",)}, {"writable_paths": ["src/../tests"]}),
    ({"denied_paths": ("private/",)}, {"denied_paths": ["*.csv"]}),
    ({"tool_quotas": {"run_command": 2}}, {"tool_quotas": {}}),
    ({"tool_quotas": {"run_command": 2}}, {"tool_quotas": {"run_command": 3}}),
    ({}, {"tool_timeouts_s": {"run_command": 31.0}}),
    ({"tool_timeouts_s": {"run_command": 5.0}}, {"tool_timeouts_s": {}}),
)


def test_wider_values_need_trust_and_narrower_ones_do_not() -> None:
    for base, values in NARROW:
        assert widening(values, AgentContext(**base)) == (), (base, values)
    for base, values in WIDE:
        assert widening(values, AgentContext(**base)) == tuple(values), (base, values)


# --- Prices


def test_shipped_prices_apply_unless_the_user_has_a_valid_price_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "mendgraph" / "prices.toml"
    path.parent.mkdir()
    shipped = load_prices()
    assert isinstance(shipped, dict)
    assert find_price(shipped, "gpt-4o") == Price(input=2.5, output=10.0, cached_input=1.25)
    assert find_price(shipped, "gpt-9") is None
    path.write_text("[mine]\nx = 5", encoding="utf-8")
    message = (
        f"The price list {str(path)!r} cannot be used: mine.x is wrong (Input should be a valid"
        " dictionary or instance of Price). Fix it, or move it away."
    )
    assert load_prices() == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    path.unlink()
    path.mkdir()
    message = f"Cannot read {str(path)!r}: it is a directory, and a file is needed."
    assert load_prices() == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
