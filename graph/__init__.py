"""mendgraph from Python: `from graph import build_graph, AgentContext, run_task`.

Importing this costs nothing; each name is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graph.batch.batch_result import BatchResult as BatchResult
    from graph.batch.orders import TaskResult as TaskResult
    from graph.batch.run_batch import run_batch as run_batch
    from graph.batch.tasks import BatchTask as BatchTask
    from graph.build import build_graph as build_graph
    from graph.configuration.loading import load_context as load_context
    from graph.context import AgentContext as AgentContext
    from graph.events import (
        Alerted as Alerted,
        Asked as Asked,
        CallsRead as CallsRead,
        Compacted as Compacted,
        Denied as Denied,
        Ended as Ended,
        Event as Event,
        FellBack as FellBack,
        HealingBegan as HealingBegan,
        LoopOverridden as LoopOverridden,
        Paid as Paid,
        Rescued as Rescued,
        StepDone as StepDone,
        Text as Text,
        ToolStarted as ToolStarted,
        Traced as Traced,
        Waiting as Waiting,
    )
    from graph.report.page import report_html as report_html
    from graph.run import (
        Approve as Approve,
        RunResult as RunResult,
        Session as Session,
        arun_task as arun_task,
        astream_task as astream_task,
        run_task as run_task,
        stream_task as stream_task,
    )
    from graph.runs import (
        Forked as Forked,
        ListedRun as ListedRun,
        RunState as RunState,
        RunStep as RunStep,
        fork_run as fork_run,
        get_run as get_run,
        list_runs as list_runs,
        open_run as open_run,
        prune_runs as prune_runs,
        resume_run as resume_run,
        steps_of as steps_of,
        undo_run as undo_run,
    )
    from graph.spending_report import (
        AccountSpent as AccountSpent,
        account_spent as account_spent,
        accounts_spent as accounts_spent,
    )
    from graph.state import serializer as serializer
    from graph.store import Pruned as Pruned
    from nodes.execute_tools.environment.mcp_tools import (
        load_mcp_tools as load_mcp_tools,
        load_mcp_tools_sync as load_mcp_tools_sync,
    )
    from nodes.execute_tools.environment.restoring import Restored as Restored
    from nodes.execute_tools.registry import ToolContext as ToolContext, ToolOutput as ToolOutput, tool as tool
    from nodes.execute_tools.tools import default_tools as default_tools
    from nodes.guard.approvals import ApprovalAnswer as ApprovalAnswer, ApprovalRequest as ApprovalRequest
    from nodes.guard.file_rules import (
        DEFAULT_GUARDRAIL_RULES as DEFAULT_GUARDRAIL_RULES,
        FileGuardrailRule as FileGuardrailRule,
    )
    from nodes.records import (
        Effect as Effect,
        Outcome as Outcome,
        ToolError as ToolError,
    )

_HOMES = {
    "build_graph": "graph.build",
    "AgentContext": "graph.context",
    "run_batch": "graph.batch.run_batch",
    "BatchTask": "graph.batch.tasks",
    "BatchResult": "graph.batch.batch_result",
    "TaskResult": "graph.batch.orders",
    "load_context": "graph.configuration.loading",
    "report_html": "graph.report.page",
    "run_task": "graph.run",
    "arun_task": "graph.run",
    "stream_task": "graph.run",
    "astream_task": "graph.run",
    "Approve": "graph.run",
    "Session": "graph.session",
    "RunResult": "graph.run_result",
    **dict.fromkeys(
        (
            *("Alerted", "Asked", "CallsRead", "Compacted", "Denied", "Ended", "Event", "FellBack", "HealingBegan"),
            *("LoopOverridden", "Paid", "Rescued", "StepDone", "Text", "ToolStarted", "Traced", "Waiting"),
        ),
        "graph.events",
    ),
    **dict.fromkeys(("account_spent", "accounts_spent", "AccountSpent"), "graph.spending_report"),
    "serializer": "graph.state",
    "list_runs": "graph.runs",
    "get_run": "graph.runs",
    "steps_of": "graph.runs",
    "open_run": "graph.runs",
    "resume_run": "graph.runs",
    "prune_runs": "graph.runs",
    "ListedRun": "graph.runs",
    "RunState": "graph.runs",
    "RunStep": "graph.runs",
    "Pruned": "graph.store",
    "undo_run": "graph.runs",
    "fork_run": "graph.runs",
    "Forked": "graph.runs",
    "Restored": "nodes.execute_tools.environment.restoring",
    "tool": "nodes.execute_tools.registry",
    "ToolContext": "nodes.execute_tools.registry",
    "ToolOutput": "nodes.execute_tools.registry",
    "default_tools": "nodes.execute_tools.tools",
    "load_mcp_tools": "nodes.execute_tools.environment.mcp_tools",
    "load_mcp_tools_sync": "nodes.execute_tools.environment.mcp_tools",
    "ApprovalRequest": "nodes.guard.approvals",
    "ApprovalAnswer": "nodes.guard.approvals",
    "FileGuardrailRule": "nodes.guard.file_rules",
    "DEFAULT_GUARDRAIL_RULES": "nodes.guard.file_rules",
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
