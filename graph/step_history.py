"""The checkpoints of a run as far as its steps are concerned.

A conversation is rebuilt from many checkpoints; to do so for each checkpoint of a long run takes minutes. So its steps
are read by a machine that has the same nodes, and none of the channels that grow.
"""

from collections.abc import Iterator
from typing import Any

from langchain_core.runnables import RunnablePassthrough
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.types import StateSnapshot
from typing_extensions import TypedDict

from graph import routes
from graph.open_store import thread_config
from nodes.records import CallError, Reading, ToolCall


class _Steps(TypedDict, total=False):
    step: int
    reading: Reading | None
    items: list[ToolCall | CallError]


def step_history(saver: BaseCheckpointSaver[Any], run_id: str) -> Iterator[StateSnapshot]:
    """The checkpoints of a run, newest first: of the state only `step`, `reading` and `items`, and what is next.

    Raises:
        StoreError: one cannot be read.
    """
    builder = StateGraph(_Steps)
    for node in routes.NODES:
        builder.add_node(node, RunnablePassthrough())  # it is never run
    builder.add_edge(routes.TRANSITIONS[0].source, routes.TRANSITIONS[0].target)
    return builder.compile(checkpointer=saver).get_state_history(thread_config(run_id))
