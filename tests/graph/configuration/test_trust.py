"""What a repository's own file may set without the user's trust."""

from typing import Any

import pytest

from mendgraph.graph.configuration.context import SETTINGS, AgentContext
from mendgraph.graph.configuration.loading import widening

ALWAYS_TRUSTED = {
    *("workspace", "model", "base_url", "fallback_models", "window_tokens", "checks", "answer_schema"),
    *("usd_per_million_input", "usd_per_million_output", "usd_per_million_cached_input", "repeat_window"),
    *("usd_per_million_cache_write", "tool_retry_backoff_s", "account", "model_kwargs", "use_responses_api"),
}
"""Where a run goes, what it costs and who pays, what it executes, and what comes out of it."""

NARROW: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {"mode": "ask"}),
    ({"mode": "ask"}, {"mode": "read-only"}),
    ({}, {"max_steps": 3, "max_calls_per_turn": 10, "max_cost_usd": 0.5}),
    ({"account": "a"}, {"account": "a", "max_cost_usd_per_account": 0.5, "max_tokens_per_account": 5}),
    ({"max_steps": 5}, {"max_steps": 5}),
    ({}, {"protocol": "text", "edit_form": "patch", "temperature": 1.0, "offer": "all", "wrap_up": False}),
    ({"allowed_programs": ("make", "git")}, {"allowed_programs": ["make"]}),
    ({"allowed_hosts": ("a.org",)}, {"allowed_hosts": []}),
    ({}, {"role": "editor", "syntax_gate": "refuse", "evidence": False, "project_notes": False, "audit": True}),
    ({"role": "operator"}, {"role": "reader"}),
    ({}, {"allowed_extensions": [".py"]}),
    ({"allowed_extensions": (".py", ".md")}, {"allowed_extensions": ["PY"]}),
    ({}, {"tool_quotas": {"run_command": 2}, "tool_timeouts_s": {"run_command": 10.0}}),
    ({"tool_quotas": {"run_command": 2}}, {"tool_quotas": {"run_command": 1, "read_file": 9}}),
    ({"checks": ("make",)}, {"checks": ["make"]}),
    ({"reasoning_effort": "high"}, {"reasoning_effort": "low"}),
    ({}, {"max_output_tokens_per_call": 2_048}),
    ({"max_output_tokens_per_call": 9_000}, {"max_output_tokens_per_call": 8_000}),
)
WIDE: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"mode": "read-only"}, {"mode": "auto"}),
    ({"mode": "ask"}, {"mode": "auto"}),
    ({}, {"max_calls_per_turn": 11}),
    ({"account": "a", "max_cost_usd_per_account": 1.0}, {"account": "b"}),
    ({"max_tokens_per_account": 5}, {"max_tokens_per_account": 6}),
    ({"max_cost_usd": 1.0}, {"max_cost_usd": 2.0}),
    ({}, {"base_url": "https://evil.example/v1"}),
    ({}, {"model": "dear-model"}),
    ({"model": "openai:gpt-5"}, {"model": "evil:gpt-5"}),
    ({}, {"model_kwargs": {"top_p": 0.5}}),
    ({}, {"use_responses_api": True}),
    ({}, {"reasoning_effort": "low"}),
    ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
    ({}, {"max_output_tokens_per_call": 2_049}),
    ({}, {"fallback_models": ["x @ https://evil.example/v1"]}),
    ({}, {"allowed_programs": ["sh"]}),
    ({"allowed_programs": ("make",)}, {"allowed_programs": ["make", "sh"]}),
    ({}, {"allowed_hosts": ["evil.example"]}),
    ({"allowed_hosts": ("10.0.0.1",)}, {"allowed_private_hosts": ["10.0.0.1"]}),
    ({}, {"readable_folders": ["/root"]}),
    ({}, {"checks": ["sh -c evil"]}),
    ({"checks": ("make",)}, {"checks": []}),
    ({"role": "reader"}, {"role": "operator"}),
    ({"role": "own"}, {"role": "reader"}),
    ({}, {"audit": False}),
    ({"evidence": False}, {"evidence": True}),
    ({"project_notes": False}, {"project_notes": True}),
    ({}, {"syntax_gate": "off"}),
    ({"max_steps": 3}, {"max_steps_soft": True}),
    ({"allowed_extensions": (".md",)}, {"allowed_extensions": []}),
    ({"allowed_extensions": (".md",)}, {"allowed_extensions": [".py"]}),
    ({"tool_quotas": {"run_command": 2}}, {"tool_quotas": {}}),
    ({"tool_quotas": {"run_command": 2}}, {"tool_quotas": {"run_command": 3}}),
    ({}, {"tool_timeouts_s": {"run_command": 31.0}}),
    ({"tool_timeouts_s": {"run_command": 5.0}}, {"tool_timeouts_s": {}}),
    ({}, {"usd_per_million_input": 0.0}),
)


@pytest.mark.parametrize(("base", "values"), NARROW)
def test_preferences_and_less_than_the_user_allows_need_no_trust(base: dict[str, Any], values: dict[str, Any]) -> None:
    assert widening(values, AgentContext(**base)) == ()


@pytest.mark.parametrize(("base", "values"), WIDE)
def test_more_than_the_user_allows_needs_trust(base: dict[str, Any], values: dict[str, Any]) -> None:
    assert widening(values, AgentContext(**base)) == tuple(values)


def test_every_field_was_thought_of() -> None:
    assert AgentContext.model_fields.keys() == {name for name, each in SETTINGS.items() if each.trust} | ALWAYS_TRUSTED
    assert not any(SETTINGS[name].trust for name in ALWAYS_TRUSTED)


def test_only_the_fields_that_widen_are_named() -> None:
    values = {"max_steps": 3, "model": "x", "mode": "ask", "audit": False}
    assert widening(values, AgentContext()) == ("model", "audit")
