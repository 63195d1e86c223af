"""What the options mean to a run."""

from typing import Any

import pytest

from graph.context import MAX_CALLS_PER_TURN_LIMIT, AgentContext
from graph.terminal.options import MIN_CALLS_PER_SESSION, settings_of


def test_what_was_not_given_keeps_its_default() -> None:
    settings = settings_of(None, mode=None, model=None, max_steps=None, temperature=None)
    assert AgentContext(**settings) == AgentContext()


def test_what_was_given_reaches_the_context() -> None:
    given: dict[str, Any] = {
        "mode": "ask",
        "model": "m",
        "base_url": "http://llm.test/v1",
        "protocol": "text",
        "max_steps": 2,
        "max_seconds": 0.5,
        "temperature": 0.0,
        "seed": 0,
    }
    context = AgentContext(**settings_of(None, **given))
    assert {name: getattr(context, name) for name in given} == given


@pytest.mark.parametrize(("calls", "session"), [(1, 100), (100, 100), (MAX_CALLS_PER_TURN_LIMIT, 1000)])
def test_more_calls_in_a_turn_raise_the_session_as_well(calls: int, session: int) -> None:
    context = AgentContext(**settings_of(calls))
    assert (context.max_calls_per_turn, context.max_calls_per_session) == (calls, session)


def test_the_session_never_gets_fewer_calls_than_by_default() -> None:
    assert AgentContext().max_calls_per_session == MIN_CALLS_PER_SESSION
