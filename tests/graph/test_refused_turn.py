"""A turn that a server does not admit, and whose records a turn keeps."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from langchain_core.messages import HumanMessage

from graph.context import AgentContext
from graph.given_context import Admission
from graph.refused_turn import refused_turn, run_id_of
from nodes.records import StopCause, StopReason

CAUSE = StopCause(reason=StopReason.WORKSPACE_BUSY, message="Later.")
PROFILE = AgentContext().profile(embedded=False, model="m")


def test_a_refused_turn_ends_where_it_begins() -> None:
    before = {"context": AgentContext(max_steps=3), "run_id": "ann/t1"}
    state: Any = {"messages": [HumanMessage("Hello.")], **before}
    update = refused_turn(state, CAUSE, PROFILE, lambda text: text)
    assert (update["stop"], {name: update[name] for name in before}) == (CAUSE, before)
    assert "messages" not in update
    assert "preload" not in update or not update["preload"]


def test_its_request_holds_no_secret_either() -> None:
    state: Any = {"messages": [HumanMessage("My key is hunter2.")]}
    update = refused_turn(state, CAUSE, PROFILE, lambda text: text.replace("hunter2", "***"))
    assert [each.text for each in update["messages"].value] == ["My key is ***."]
    assert "context" not in update  # a client could go on with defaults
    assert len(update["run_id"]) == 32


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
