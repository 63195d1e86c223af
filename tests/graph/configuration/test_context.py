"""The form that Studio shows: described, bounded, and handed on to the nodes whole."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError

from mendgraph.graph.configuration.context import UNATTENDED, AgentContext
from mendgraph.graph.fleet.batch.tasks import BatchTask
from mendgraph.nodes.call_model.ledger import Price
from mendgraph.nodes.execute_tools.call_policy import CallRules, RateLimit, RetryPolicy
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules
from mendgraph.nodes.heal.corrective_prompt import SelfHealingConfig
from mendgraph.nodes.loop_check.repetition import LoopConfig
from mendgraph.nodes.records import EditForm, JsonMap, Profile, Protocol
from tests import documents

SCHEMA = AgentContext.model_json_schema()["properties"]


@pytest.mark.parametrize("name", AgentContext.model_fields)
def test_every_field_says_what_it_is_and_has_a_default(name: str) -> None:
    assert SCHEMA[name]["description"].endswith(".")
    assert "default" in SCHEMA[name]


NUMBER: Final = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})*(?:\.\d+)?(?![\w.])")
"""A number in a table cell, such as `2,048` or `0.5`."""


def documented_values(page: str) -> dict[str, float | None]:
    """The value of each field in the tables of a page; None where the page names no number."""
    values: dict[str, float | None] = {}
    for fields, value in re.findall(r"^\| (`[a-z_]+`[^|]*) \| ([^|]*) \|", documents.pages()[page], re.MULTILINE):
        names = re.findall(r"`([a-z_]+)`", fields)
        numbers = [float(each.replace(",", "")) for each in NUMBER.findall(value.partition(";")[0])]
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


def test_unattended_values_are_those_of_their_table() -> None:
    documented = documented_values("docs/unattended.md")
    assert documented.pop("max_cost_usd") == 5  # set by the command, where the model's price is known
    switches = {name for name, value in documented.items() if value is None}
    context = AgentContext.unattended()
    assert switches == {"mode", "evidence", "require_checks"}
    assert (context.mode, context.evidence, context.require_checks) == ("auto", True, True)
    assert UNATTENDED.keys() == documented.keys()
    numbers = {name: value for name, value in documented.items() if name not in switches}
    assert {name: effective_value(context, name) for name in numbers} == numbers


def test_rules_of_tool_calls_are_those_of_the_context() -> None:
    context = AgentContext(
        mode="read-only",
        checks=("make test",),
        checks_timeout_s=10.0,
        tool_timeouts_s={"search_files": 5.0},
        tool_retries=3,
        tool_retry_backoff_s=0.1,
        tool_calls_per_minute={"read_file": 2},
        tool_quotas={"read_file": 9},
    )
    assert context.calls(frozenset({"read_file"})) == CallRules(
        timeouts={"run_checks": 40.0, "search_files": 5.0},  # the command and the tests, after the changes and before
        retries=RetryPolicy(3, 0.1, ()),
        allowed=frozenset({"read_file"}),
        read_only=True,
        rate_limits={"read_file": RateLimit(2, 60.0)},
        quotas={"read_file": 9},
    )


def test_rules_of_the_network_and_of_loops_are_those_of_the_context() -> None:
    context = AgentContext(
        allowed_hosts=("a.test",),
        allowed_private_hosts=("b.test",),
        http_max_bytes=9,
        http_timeout_s=3.0,
        repeat_window=7,
        loop_repeat_threshold=5,
        loop_override_retries=2,
        max_failed_tries=6,
        require_checks=True,
    )
    assert context.network() == NetworkRules(hosts=("a.test",), allow_private=("b.test",), max_bytes=9, timeout_s=3.0)
    assert context.loop() == LoopConfig(window=7, threshold=5, max_overrides=2, max_failed_tries=6, require_checks=True)


def test_reply_of_a_reasoning_model_is_bounded_by_the_budget_alone() -> None:
    assert AgentContext().limits(Profile(reasoning=True)).max_output_tokens_per_call is None
    assert AgentContext(max_output_tokens_per_call=99).limits(Profile(reasoning=True)).max_output_tokens_per_call == 99
    assert AgentContext(max_output_tokens_per_call=99).limits().max_output_tokens_per_call == 99


@pytest.mark.parametrize(("tries", "claims"), [(1, 1), (4, 2)])
def test_small_model_is_met_with_the_facts_as_often_as_it_has_tries_for(tries: int, claims: int) -> None:
    context = AgentContext(max_failed_tries=tries)
    assert context.healing(Profile(small=True)) == SelfHealingConfig(max_claims=claims)
    assert context.healing(Profile(small=False)) == SelfHealingConfig(max_claims=1)


@pytest.mark.parametrize(
    ("field", "too_little", "too_much"),
    [
        ("workspace", "", None),
        ("temperature", -0.1, 2.1),
        ("account", "a\nb", "x" * 201),
        ("response_format", "object", None),
        ("base_url", "https://user:password@host/v1", "https://key@host/v1"),
        ("max_calls_per_turns", 5, None),
    ],
)
def test_what_is_out_of_bounds_is_refused(field: str, too_little: Any, too_much: Any) -> None:
    for value in [too_little, *([too_much] if too_much is not None else [])]:
        with pytest.raises(ValidationError):
            AgentContext.model_validate({field: value})


SMALL, LARGE, TELLER = "qwen2.5-coder:1.5b", "gpt-5-mini", "qwen2.5-coder:14b"
"""A small model; one that makes native calls; one that does not, and is not small."""


@pytest.mark.parametrize(
    ("choice", "model", "ways", "steps_down"),
    [
        ({}, SMALL, ("text", "blocks"), False),
        ({}, LARGE, ("native", "replace"), False),
        ({}, TELLER, ("text", "replace"), True),
        ({"protocol": "native"}, SMALL, ("native", "blocks"), False),
        ({"protocol": "text"}, LARGE, ("text", "replace"), True),
        ({"protocol": "text", "edit_form": "blocks"}, LARGE, ("text", "blocks"), False),
        ({"edit_form": "replace"}, SMALL, ("text", "replace"), False),
        ({"edit_form": "patch"}, SMALL, ("text", "patch"), False),
    ],
)
@pytest.mark.parametrize("embedded", [True])
def test_profile_follows_the_model_unless_it_is_chosen(
    choice: dict[str, Any], model: str, ways: tuple[str, str], steps_down: bool, embedded: bool
) -> None:
    protocol, edit_form = ways
    assert AgentContext(**choice).profile(embedded, model) == Profile(
        protocol=Protocol(protocol),
        edit_form=EditForm(edit_form),
        embedded=embedded,
        small=model == SMALL,
        steps_down=steps_down,
        reasoning=model == LARGE,
    )


def test_workspace_may_be_a_path_and_a_context_shows_what_differs() -> None:
    context = AgentContext(workspace=Path("a") / "b", max_steps=3)
    assert repr(context) == str(context) == "AgentContext(workspace='a/b', max_steps=3)"
    assert AgentContext.model_json_schema()["properties"]["workspace"]["type"] == "string"
    assert BatchTask(id="1", prompt="p", workspace=Path("a")).workspace == "a"
    with pytest.raises(ValidationError, match=r"workspace\n  Input should be a valid string"):
        AgentContext.model_validate({"workspace": 3})


def test_price_is_of_input_and_of_output() -> None:
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


def test_fallback_that_cannot_be_asked_is_refused_without_what_its_address_holds() -> None:
    assert AgentContext(fallback_models=("local",)).fallback_models == ("local",)
    with pytest.raises(ValidationError, match="Fallback model 1 is none: write `model`") as refused:
        AgentContext(fallback_models=("m @ ftp://person:word@host",))
    assert "word" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"azure_ad_token": "t"}, "'azure_ad_token' holds a key: set it in the environment"),
        ({"a": [{"aws_access_key_id": "t"}]}, "'aws_access_key_id' holds a key"),
        ({"a": object()}, "only JSON values"),
    ],
)
def test_settings_of_a_model_hold_no_other_model_endpoint_or_key(settings: JsonMap, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        AgentContext(model_kwargs=settings)


@pytest.mark.parametrize("kind", ["", ".", ".tar.gz", "a/b", " "])
def test_what_is_no_extension_is_refused_and_opens_nothing(kind: str) -> None:
    with pytest.raises(ValidationError, match="is no extension"):
        AgentContext(allowed_extensions=(".py", kind))
