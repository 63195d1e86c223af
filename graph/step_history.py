"""The checkpoints of a run as far as its steps are concerned.

A conversation is rebuilt from many checkpoints; to do so for each checkpoint of a long run takes minutes. So its steps
are read by a machine that has the same nodes, and none of the channels that grow.
"""

from collections.abc import Iterator
from typing import Any

from langchain_core.runnables import RunnablePassthrough
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot
from typing_extensions import TypedDict

from graph import routes
from graph.open_store import thread_config
from nodes.records import CallError, Plan, Reading, ToolCall


class _Steps(TypedDict, total=False):
    step: int
    reading: Reading | None
    items: list[ToolCall | CallError]


class _Planned(TypedDict, total=False):
    plan: Plan


def step_history(saver: BaseCheckpointSaver[Any], run_id: str) -> Iterator[StateSnapshot]:
    """The checkpoints of a run, newest first: of the state only `step`, `reading` and `items`, and what is next.

    Raises:
        StoreError: one cannot be read.
    """
    return _machine(_Steps, saver).get_state_history(thread_config(run_id))


def newest_plan(saver: BaseCheckpointSaver[Any], run_id: str) -> Plan:
    """The plan of a run as it stands; one without steps where it has none.

    Raises:
        StoreError: the checkpoint cannot be read.
    """
    return _machine(_Planned, saver).get_state(thread_config(run_id)).values.get("plan") or Plan()


def _machine(channels: type[Any], saver: BaseCheckpointSaver[Any]) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A machine that has the nodes of ours and only these channels; it is never run."""
    builder = StateGraph(channels)
    for node in routes.NODES:
        builder.add_node(node, RunnablePassthrough())
    builder.add_edge(routes.TRANSITIONS[0].source, routes.TRANSITIONS[0].target)
    return builder.compile(checkpointer=saver)
