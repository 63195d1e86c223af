"""A request gets less than its user may have, never more."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from graph.configuration.narrowing import narrowed, refusal, too_wide
from graph.configuration.trust import RULES, widening
from graph.context import AgentContext
from graph.serving.tenants import Tenant
from nodes.records import StopCause, StopReason

BASE = AgentContext(
    account="ann",
    model="m",
    base_url="http://models/v1",
    mode="ask",
    max_steps=9,
    max_cost_usd=1.5,
    allowed_programs=("make", "pytest"),
    tool_quotas={"read_file": 5},
)
ANN = Tenant("ann", (), BASE, ("m", "n", "o @ https://other/v1")).allowance


def test_where_nothing_is_asked_all_that_is_allowed_holds() -> None:
    assert narrowed({"workspace": "website"}, ANN, "/srv/ann/website") == BASE.model_copy(
        update={"workspace": "/srv/ann/website"}
    )


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ({"max_steps": 4}, {"max_steps": 4}),
        ({"max_steps": 400}, {"max_steps": 9}),
        ({"max_steps": None, "max_cost_usd": None}, {}),
        ({"max_seconds": 5}, {"max_seconds": 5}),
        ({"mode": "read-only"}, {"mode": "read-only"}),
        ({"model": "n"}, {"model": "n"}),
        ({"model": "m", "base_url": "http://models/v1", "account": "ann"}, {}),
        ({"fallback_models": ["n", "o @ https://other/v1"]}, {"fallback_models": ("n", "o @ https://other/v1")}),
        ({"allowed_programs": ["make"]}, {"allowed_programs": ("make",)}),
        ({"role": "reader", "temperature": 1}, {"role": "reader", "temperature": 1}),
        ({"answer_schema": {"type": "string"}}, {"answer_schema": {"type": "string"}}),
        ({"tool_quotas": {"read_file": 2}}, {"tool_quotas": {"read_file": 2}}),
    ],
)
def test_less_is_had_for_the_asking(asked: dict[str, Any], held: dict[str, Any]) -> None:
    assert narrowed(asked, ANN, "/w") == BASE.model_copy(update={**held, "workspace": "/w"})


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"mode": "auto"}, "mode"),
        ({"model": "dear"}, "model"),
        ({"model": None}, "model"),
        ({"fallback_models": ["n @ https://elsewhere/v1"]}, "fallback_models"),
        ({"base_url": "http://elsewhere/v1"}, "base_url"),
        ({"allowed_programs": ["make", "sh"]}, "allowed_programs"),
        ({"allowed_hosts": ["example.com"]}, "allowed_hosts"),
        ({"readable_folders": ["/etc"]}, "readable_folders"),
        ({"account": "bob"}, "account"),
        ({"usd_per_million_input": 0, "usd_per_million_output": 0}, "usd_per_million_input, usd_per_million_output"),
        ({"checks": ["true"]}, "checks"),
        ({"audit": False}, "audit"),
        ({"tool_quotas": {}}, "tool_quotas"),
    ],
)
def test_more_is_refused_by_name(asked: dict[str, Any], named: str) -> None:
    said = f"This server does not allow ann what the request sets: {named}. Leave it out."
    assert narrowed(asked, ANN, "/w") == StopCause(reason=StopReason.INVALID_REQUEST, message=said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_steps": 0}, "max_steps: Input should be greater than or equal to 1."),
        ({"nothing": 1}, "nothing: Extra inputs are not permitted."),
        ({"usd_per_million_input": 1}, "context: usd_per_million_input and usd_per_million_output are given together."),
    ],
)
def test_what_does_not_fit_is_refused(asked: dict[str, Any], said: str) -> None:
    assert narrowed(asked, ANN, "/w") == refusal(f"The request's context does not fit: {said}")


NAMES = sorted(AgentContext.model_fields.keys() - {"workspace"})
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-1, 2**54), st.floats(0, 1e6), st.sampled_from(["auto", "m", "few"])),
    st.lists(st.sampled_from(["make", "sh", "example.com", "n"]), max_size=2),
)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "object", "properties": {"a": {"items": [{"pattern": "a"}]}}},
        {"patternProperties": {"(a+)+$": {}}},
    ],
)
def test_an_answers_schema_has_no_patterns(schema: dict[str, Any]) -> None:
    """One match of such a pattern with what the model says would hold the whole server."""
    said = "answer_schema may have no `pattern` or `patternProperties` on this server: leave them out."
    assert narrowed({"answer_schema": schema}, ANN, "/w") == refusal(said)
    its = ANN._replace(context=BASE.model_copy(update={"answer_schema": schema}))
    assert isinstance(narrowed({"answer_schema": schema}, its, "/w"), AgentContext)
    named = {"properties": {"pattern": {"type": "string"}}}
    assert isinstance(narrowed({"answer_schema": named}, ANN, "/w"), AgentContext)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_nothing_that_is_asked_widens_what_is_allowed(asked: dict[str, Any]) -> None:
    found = narrowed(asked, ANN, "/w")
    if isinstance(found, AgentContext):
        assert (found.account, found.base_url, found.workspace) == ("ann", BASE.base_url, "/w")
        assert too_wide(found, ANN) == ()
        limits = {name: getattr(found, name) for name, rule in RULES.items() if rule is RULES["max_steps"]}
        assert widening(limits, BASE) == ()


def test_a_context_from_before_may_be_too_wide_now() -> None:
    before = BASE.model_copy(update={"max_steps": 50, "mode": "auto", "workspace": "/elsewhere", "model": "n"})
    assert too_wide(before, ANN) == ("max_steps", "mode")
