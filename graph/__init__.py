"""mendgraph from Python: `from graph import build_graph, AgentContext, run_task`.

Importing this costs nothing; each name is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph.build import build_graph as build_graph
    from graph.context import AgentContext as AgentContext
    from graph.run import arun_task as arun_task, run_task as run_task
    from nodes.execute_tools.registry import tool as tool
    from nodes.records import Outcome as Outcome

_HOMES = {
    "build_graph": "graph.build",
    "AgentContext": "graph.context",
    "run_task": "graph.run",
    "arun_task": "graph.run",
    "tool": "nodes.execute_tools.registry",
    "Outcome": "nodes.records",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'graph' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
