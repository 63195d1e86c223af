"""`AgentContext`, which Studio shows as a form: descriptions, defaults, bounds, and what nodes get from it."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.presets import UNATTENDED
from mendgraph.graph.fleet.batch.tasks import BatchTask
from mendgraph.nodes.call_model.prices import Price
from mendgraph.nodes.execute_tools.call_policy import RateLimit, RetryPolicy
from mendgraph.nodes.language.command_lines import is_command_prefix
from mendgraph.nodes.records import EditForm, Profile, Protocol
from tests.contract import documents

NUMBER: Final = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})*(?:\.\d+)?(?![\w.])")
"""A number in a table cell, such as `2,048` or `0.5`."""


def documented_values(page: str) -> dict[str, float | None]:
    """The value of each field in the tables of a page; None where the page names no number."""
    values: dict[str, float | None] = {}
    for fields, value in re.findall(r"^\| (`[a-z_]+`[^|]*) \| ([^|]*) \|", documents.pages()[page], re.MULTILINE):
        names = re.findall(r"`([a-z_]+)`", fields)
        numbers = [float(number.replace(",", "")) for number in NUMBER.findall(value.partition(";")[0])]
        values |= dict.fromkeys(names) | dict(zip(names, numbers, strict=False))
    return values


def effective_value(context: AgentContext, name: str) -> float | None:
    """The value that a run has for this field; None where it has no limit."""
    value = getattr(context.limits(), name, getattr(context, name))
    return value or None


def test_defaults_are_those_of_the_table_of_limits() -> None:
    documented = documented_values("docs/limits.md")
    assert {"max_calls_per_turn", "provider_retries", "read_max_lines"} <= documented.keys()
    assert {name: effective_value(AgentContext(), name) for name in documented} == documented


def test_unattended_values_equal_the_table_on_the_page() -> None:
    documented = documented_values("docs/unattended.md")
    assert documented.pop("max_cost_usd") == 5  # set by the command, where the model's price is known
    switches = {name for name, value in documented.items() if value is None}
    context = AgentContext.unattended()
    assert switches == {"mode", "evidence", "require_checks", "jobs", "allowed_commands"}
    assert (context.mode, context.evidence, context.require_checks, context.jobs) == ("auto", True, True, True)
    assert all(map(is_command_prefix, context.allowed_commands))
    assert UNATTENDED.keys() == documented.keys()
    numbers = {name: value for name, value in documented.items() if name not in switches}
    assert {name: effective_value(context, name) for name in numbers} == numbers


SMALL, LARGE, TELLER = "qwen2.5-coder:1.5b", "gpt-5-mini", "qwen2.5-coder:14b"
"""A small model; one that makes native calls; one that does not, and is not small."""


def test_workspace_can_be_a_path_and_repr_shows_only_changed_fields() -> None:
    context = AgentContext(workspace=Path("a") / "b", max_steps=3)
    assert repr(context) == str(context) == "AgentContext(workspace='a/b', max_steps=3)"
    assert AgentContext.model_json_schema()["properties"]["workspace"]["type"] == "string"
    assert BatchTask(id="1", prompt="p", workspace=Path("a")).workspace == "a"
    with pytest.raises(ValidationError, match=r"workspace\n  Input should be a valid string"):
        AgentContext.model_validate({"workspace": 3})


def test_price_has_an_input_and_an_output_part() -> None:
    prices: dict[str, Any] = {"usd_per_million_input": 1.0, "usd_per_million_output": 2.0}
    assert AgentContext().price() is None
    assert AgentContext(**prices).price() == Price(input=1.0, output=2.0)
    of_the_cache: dict[str, Any] = {"usd_per_million_cached_input": 0.5, "usd_per_million_cache_write": 1.25}
    assert AgentContext(**prices, **of_the_cache).price() == Price(
        input=1.0, output=2.0, cached_input=0.5, cache_write=1.25
    )
    for name in prices:
        with pytest.raises(ValidationError, match="are given together"):
            AgentContext.model_validate({name: 1.0})
    for name in of_the_cache:
        with pytest.raises(ValidationError, match=f"{name} needs usd_per_million_input"):
            AgentContext.model_validate({name: 0.5})


def test_every_field_has_a_description_and_a_default() -> None:
    for name, field in AgentContext.model_json_schema()["properties"].items():
        assert (name, field["description"][-1:], "default" in field) == (name, ".", True)


def test_timeout_of_run_checks_covers_all_commands_before_and_after_the_changes() -> None:
    context = AgentContext(mode="read-only", checks=("make test",), checks_timeout_s=10.0)
    rules = context.calls(frozenset({"read_file"}))
    assert rules.timeouts == {"run_checks": 40.0}
    assert (rules.read_only, rules.allowed) == (True, frozenset({"read_file"}))
    limits = AgentContext(tool_retries=3, tool_retry_backoff_s=0.1, tool_calls_per_minute={"read_file": 2}).calls(
        frozenset()
    )
    assert (limits.retries, limits.rate_limits) == (RetryPolicy(3, 0.1, ()), {"read_file": RateLimit(2, 60.0)})


def test_limits_follow_the_model() -> None:
    reasoning, small = Profile(reasoning=True), Profile(small=True)
    assert AgentContext().limits(reasoning).max_output_tokens_per_call is None
    for profile in (reasoning, Profile()):
        assert AgentContext(max_output_tokens_per_call=99).limits(profile).max_output_tokens_per_call == 99
    claims = {tries: AgentContext(max_failed_tries=tries).healing(small).max_claims for tries in (1, 4)}
    assert claims == {1: 1, 4: 2}
    assert AgentContext(max_failed_tries=4).healing(Profile(small=False)).max_claims == 1


REFUSED: tuple[tuple[str, Any, str], ...] = (
    ("workspace", "", "workspace"),
    ("temperature", -0.1, "temperature"),
    ("temperature", 2.1, "temperature"),
    ("account", "a\nb", "account"),
    ("account", "x" * 201, "account"),
    ("response_format", "object", "response_format"),
    ("base_url", "https://user:password@host/v1", "base_url"),
    ("base_url", "https://key@host/v1", "base_url"),
    ("max_calls_per_turns", 5, "max_calls_per_turns"),
    ("fallback_models", ("m @ ftp://person:password@host",), "Fallback model 1 is none: write `model`"),
    ("model_kwargs", {"azure_ad_token": "t"}, "'azure_ad_token' contains a key: set it in the environment"),
    ("model_kwargs", {"a": [{"aws_access_key_id": "t"}]}, "'aws_access_key_id' contains a key"),
    ("model_kwargs", {"a": object()}, "only JSON values"),
    *(("allowed_extensions", (".py", kind), "is not an extension") for kind in ("", ".", ".tar.gz", "a/b", " ")),
)


def test_invalid_setting_is_refused_without_quoting_its_secret() -> None:
    for field, value, words in REFUSED:
        with pytest.raises(ValidationError) as refused:
            AgentContext.model_validate({field: value})
        assert words in str(refused.value), (field, value)
        assert "person" not in str(refused.value)


SMALL, LARGE, TELLER = "qwen2.5-coder:1.5b", "gpt-5-mini", "qwen2.5-coder:14b"
"""A small model; one that makes native calls; one that does not, and is not small."""
PROFILES: tuple[tuple[dict[str, Any], str, tuple[str, str], bool], ...] = (
    ({}, SMALL, ("text", "blocks"), False),
    ({}, LARGE, ("native", "replace"), False),
    ({}, TELLER, ("text", "replace"), True),
    ({"protocol": "native"}, SMALL, ("native", "blocks"), False),
    ({"protocol": "text"}, LARGE, ("text", "replace"), True),
    ({"protocol": "text", "edit_form": "blocks"}, LARGE, ("text", "blocks"), False),
    ({"edit_form": "replace"}, SMALL, ("text", "replace"), False),
    ({"edit_form": "patch"}, SMALL, ("text", "patch"), False),
)


def test_profile_follows_the_model_unless_it_is_chosen() -> None:
    for choice, model, (protocol, edit_form), steps_down in PROFILES:
        assert AgentContext(**choice).profile(True, model) == Profile(
            protocol=Protocol(protocol),
            edit_form=EditForm(edit_form),
            embedded=True,
            small=model == SMALL,
            steps_down=steps_down,
            reasoning=model == LARGE,
        )
