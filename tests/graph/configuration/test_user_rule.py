"""A workspace that holds the user's own settings, such as a home folder."""

from pathlib import Path

import pytest

from graph.configuration.user_rule import user_settings_rule
from graph.context import AgentContext
from graph.tool_runtime import ToolRuntime
from nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES
from nodes.guard.policy import judge_path


def denied(workspace: Path, *names: str) -> list[bool]:
    rule = user_settings_rule(str(workspace))
    return [rule is not None and judge_path(name, for_write=True, rules=(rule,)) is not None for name in names]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    return tmp_path


def test_settings_and_prices_are_denied_whether_they_are_there_or_not(home: Path) -> None:
    names = (".config/mendgraph/config.toml", ".Config/mendgraph/PRICES.toml", ".config/mendgraph/x", "config.toml")
    assert denied(home, *names) == [True, True, False, False]
    assert denied(home / ".config" / "mendgraph", "config.toml") == [True]
    assert user_settings_rule(str(home / "project")) is None


def test_files_that_variables_name_are_denied_with_where_their_links_lead(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "project").mkdir()
    (home / "project" / "link.toml").symlink_to("real.toml")
    monkeypatch.setenv("MENDGRAPH_CONFIG", str(home / "project" / "link.toml"))
    monkeypatch.setenv("MENDGRAPH_PRICES", str(home / "project" / "p.toml"))
    names = ("link.toml", "real.toml", "p.toml", "other.toml")
    assert denied(home / "project", *names) == [True, True, True, False]


def test_a_run_has_the_rule_whatever_rules_it_is_given(home: Path) -> None:
    context = AgentContext(workspace=str(home))
    for rules in ((), DEFAULT_GUARDRAIL_RULES):
        known = ToolRuntime(None, rules, {}, ()).rules(context)
        assert {"own_settings", "user_settings"} <= {rule.name for rule in known}
        assert known[: len(rules)] == rules
