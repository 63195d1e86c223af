"""What langgraph.json names."""

import json
from importlib import import_module

from langgraph.graph.state import CompiledStateGraph

from mendgraph.graph.agent import graph
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.routes import NODES
from tests.architecture.product import text_of


def test_the_served_graph_brings_no_checkpointer() -> None:
    """The server brings its own, and refuses to start beside another."""
    assert graph.checkpointer is None
    assert (graph.name, graph.context_schema) == ("mendgraph", AgentContext)
    assert set(NODES) < set(graph.nodes)


def test_it_is_the_graph_that_the_server_is_told_of() -> None:
    module, _, name = json.loads(text_of("langgraph.json"))["graphs"]["mendgraph"]["path"].partition(":")
    found = getattr(import_module(module), name)
    assert found is graph
    assert isinstance(found, CompiledStateGraph)
