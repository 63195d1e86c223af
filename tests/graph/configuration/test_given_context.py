"""Which context a turn has, and what is said of one that is none."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import Admission, given_context, run_id_of
from mendgraph.nodes.records import StopCause, StopReason

GIVEN, BOUND, STORED = (AgentContext(workspace=name) for name in ("given", "bound", "stored"))


@dataclass
class Mine:
    user: str = "ada"


@pytest.mark.parametrize("stored", [STORED, None], ids=["stored", "new"])
@pytest.mark.parametrize("bound", [BOUND, None], ids=["bound", "free"])
def test_what_comes_with_the_run_goes_first(bound: AgentContext | None, stored: AgentContext | None) -> None:
    assert given_context(GIVEN, bound, stored) is GIVEN
    assert given_context(None, bound, stored) == (bound or stored or AgentContext())


def test_an_agents_own_context_goes_before_another_graphs() -> None:
    assert given_context(Mine(), BOUND, STORED) is BOUND
    assert given_context({"user": "ada"}, BOUND, None) is BOUND


def test_what_a_server_has_decided_holds() -> None:
    refused = StopCause(reason=StopReason.INVALID_REQUEST, message="No.")
    assert given_context(Admission(GIVEN, "ada"), BOUND, STORED) is GIVEN
    assert given_context(Admission(refused, "ada"), BOUND, STORED) is refused
    assert Admission(GIVEN, "ada").run_id("t1") == "ada/t1"


def test_a_map_may_be_a_context() -> None:
    assert given_context({"workspace": "given"}, None, STORED) == GIVEN


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Mine(), "given a context of the type Mine, which is no AgentContext"),
        ({"user": "ada"}, "no AgentContext (user: Extra inputs are not permitted)"),
        (
            {"base_url": "https://a:secret-password@b/v1"},
            "(base_url: base_url may hold no",
        ),
    ],
    ids=["type", "field", "value"],
)
def test_a_foreign_context_is_refused_with_the_remedy(given: object, words: str) -> None:
    """Not taken for none: the agent would work in the folder of the process."""
    said = given_context(given, None, STORED)
    assert isinstance(said, str)
    assert words in said
    assert "build_graph(context=AgentContext(...))" in said
    assert "secret-password" not in said


CAUSE = StopCause(reason=StopReason.WORKSPACE_BUSY, message="Later.")


@pytest.mark.parametrize(
    ("info", "context", "run_id"),
    [
        (None, None, ""),
        (SimpleNamespace(thread_id=None, checkpoint_ns=""), None, ""),
        (SimpleNamespace(thread_id="t1", checkpoint_ns="begin_turn:1"), AgentContext(), "t1"),
        (SimpleNamespace(thread_id="t1", checkpoint_ns="a:1|begin_turn:2"), AgentContext(), "t1|a:1"),
        (SimpleNamespace(thread_id="t1", checkpoint_ns="begin_turn:1"), Admission(CAUSE, "ann"), "ann/t1"),
    ],
)
def test_a_run_is_its_thread_and_its_owners(info: object, context: object, run_id: str) -> None:
    assert run_id_of(cast("Any", SimpleNamespace(execution_info=info, context=context))) == run_id
