"""mendgraph from Python: `from graph import build_graph, AgentContext, run_task`.

Importing this costs nothing; each name is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph.build import build_graph as build_graph
    from graph.context import AgentContext as AgentContext
    from graph.run import RunResult as RunResult, Session as Session, arun_task as arun_task, run_task as run_task
    from graph.run_steps import RunStep as RunStep
    from graph.runs import (
        ListedRun as ListedRun,
        RunState as RunState,
        get_run as get_run,
        list_runs as list_runs,
        open_run as open_run,
        prune_runs as prune_runs,
        resume_run as resume_run,
        steps_of as steps_of,
    )
    from graph.store import Pruned as Pruned
    from graph.time_travel import Forked as Forked, fork_run as fork_run, undo_run as undo_run
    from nodes.execute_tools.environment.mcp_tools import (
        load_mcp_tools as load_mcp_tools,
        load_mcp_tools_sync as load_mcp_tools_sync,
    )
    from nodes.execute_tools.environment.restoring import Restored as Restored
    from nodes.execute_tools.registry import ToolContext as ToolContext, ToolOutput as ToolOutput, tool as tool
    from nodes.execute_tools.tools import default_tools as default_tools
    from nodes.records import Effect as Effect, Outcome as Outcome, ToolError as ToolError

_HOMES = {
    "build_graph": "graph.build",
    "AgentContext": "graph.context",
    "run_task": "graph.run",
    "arun_task": "graph.run",
    "Session": "graph.run",
    "RunResult": "graph.run",
    "list_runs": "graph.runs",
    "get_run": "graph.runs",
    "steps_of": "graph.runs",
    "open_run": "graph.runs",
    "resume_run": "graph.runs",
    "prune_runs": "graph.runs",
    "ListedRun": "graph.runs",
    "RunState": "graph.runs",
    "RunStep": "graph.run_steps",
    "Pruned": "graph.store",
    "undo_run": "graph.time_travel",
    "fork_run": "graph.time_travel",
    "Forked": "graph.time_travel",
    "Restored": "nodes.execute_tools.environment.restoring",
    "tool": "nodes.execute_tools.registry",
    "ToolContext": "nodes.execute_tools.registry",
    "ToolOutput": "nodes.execute_tools.registry",
    "default_tools": "nodes.execute_tools.tools",
    "load_mcp_tools": "nodes.execute_tools.environment.mcp_tools",
    "load_mcp_tools_sync": "nodes.execute_tools.environment.mcp_tools",
    "Effect": "nodes.records",
    "ToolError": "nodes.records",
    "Outcome": "nodes.records",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'graph' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
