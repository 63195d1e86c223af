"""The agent's own settings are not for the agent to change."""

from pathlib import Path

import pytest

from nodes.execute_tools.environment.settings_files import SETTINGS_FILE
from nodes.guard.own_settings import NAME, OWN_SETTINGS_RULE, is_own_settings
from nodes.guard.policy import judge_path
from nodes.records import ToolErrorCode


@pytest.mark.parametrize(
    "path", [".mendgraph.toml", "a/b/.mendgraph.toml", ".MendGraph.TOML", ".mendgraph.toml.", ".mend\u200bgraph.toml"]
)
def test_settings_are_known_by_every_spelling(path: str) -> None:
    assert is_own_settings(Path(path))
    refused = judge_path(path, True, (OWN_SETTINGS_RULE,))
    assert refused is not None
    assert refused.code is ToolErrorCode.PERMISSION_DENIED
    assert judge_path(path, False, (OWN_SETTINGS_RULE,)) is None


@pytest.mark.parametrize("path", ["mendgraph.toml", ".mendgraph.toml.md", ".mendgraph.toml/a", "a.mendgraph.toml"])
def test_other_names_are_none(path: str) -> None:
    assert not is_own_settings(Path(path))


def test_the_rule_and_the_reader_mean_the_same_file() -> None:
    assert NAME == SETTINGS_FILE
