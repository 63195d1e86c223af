"""mendgraph from Python: `from mendgraph import build_graph, AgentContext, run_task`.

Importing this costs nothing; each name is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mendgraph.graph.cassettes.fixture import Cassette as Cassette
    from mendgraph.graph.configuration.context import AgentContext as AgentContext
    from mendgraph.graph.configuration.loading import load_context as load_context
    from mendgraph.graph.fleet.batch.batch import run_batch as run_batch
    from mendgraph.graph.fleet.batch.batch_folder import BatchResult as BatchResult
    from mendgraph.graph.fleet.batch.tasks import BatchTask as BatchTask, TaskResult as TaskResult
    from mendgraph.graph.fleet.replay import Replay as Replay, RunFigures as RunFigures, replay_run as replay_run
    from mendgraph.graph.langchain.budget_middleware import BudgetMiddleware as BudgetMiddleware
    from mendgraph.graph.langchain.once_middleware import ExactlyOnceMiddleware as ExactlyOnceMiddleware
    from mendgraph.graph.langchain.run_middleware import (
        AgentStoppedError as AgentStoppedError,
        HealingMiddleware as HealingMiddleware,
        LoopGuardMiddleware as LoopGuardMiddleware,
    )
    from mendgraph.graph.langchain.work_middleware import (
        EvidenceMiddleware as EvidenceMiddleware,
        FileRulesMiddleware as FileRulesMiddleware,
        RedactionMiddleware as RedactionMiddleware,
    )
    from mendgraph.graph.langchain.workspace_backend import WorkspaceBackend as WorkspaceBackend
    from mendgraph.graph.machine.build import build_graph as build_graph
    from mendgraph.graph.machine.serializer import PrunedHistoryError as PrunedHistoryError, serializer as serializer
    from mendgraph.graph.persistence.store import Pruned as Pruned
    from mendgraph.graph.report.page import report_html as report_html
    from mendgraph.graph.runs.events import (
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
        OfChild as OfChild,
        Paid as Paid,
        Rescued as Rescued,
        StepDone as StepDone,
        Text as Text,
        ToolStarted as ToolStarted,
        Traced as Traced,
        Waiting as Waiting,
    )
    from mendgraph.graph.runs.run import (
        Approve as Approve,
        RunResult as RunResult,
        Session as Session,
        arun_task as arun_task,
        astream_task as astream_task,
        run_task as run_task,
        stream_task as stream_task,
    )
    from mendgraph.graph.runs.runs import (
        Forked as Forked,
        ListedRun as ListedRun,
        RunState as RunState,
        RunStep as RunStep,
        apply_run as apply_run,
        fork_run as fork_run,
        get_run as get_run,
        list_runs as list_runs,
        open_run as open_run,
        prune_runs as prune_runs,
        resume_run as resume_run,
        steps_of as steps_of,
        undo_run as undo_run,
    )
    from mendgraph.graph.spending.store import (
        AccountSpent as AccountSpent,
        account_spent as account_spent,
        accounts_spent as accounts_spent,
    )
    from mendgraph.nodes.execute_tools.mcp_tools import (
        load_mcp_tools as load_mcp_tools,
        load_mcp_tools_sync as load_mcp_tools_sync,
    )
    from mendgraph.nodes.execute_tools.registry import (
        ToolContext as ToolContext,
        ToolOutput as ToolOutput,
        tool as tool,
    )
    from mendgraph.nodes.execute_tools.tool_outcome import (
        GuardrailError as GuardrailError,
        RetryableToolError as RetryableToolError,
    )
    from mendgraph.nodes.execute_tools.tools import default_tools as default_tools
    from mendgraph.nodes.guard.approval_formats import (
        ApprovalAnswer as ApprovalAnswer,
        ApprovalRequest as ApprovalRequest,
    )
    from mendgraph.nodes.guard.file_rules import (
        DEFAULT_GUARDRAIL_RULES as DEFAULT_GUARDRAIL_RULES,
        FileGuardrailRule as FileGuardrailRule,
    )
    from mendgraph.nodes.records import Effect as Effect, Outcome as Outcome, ToolError as ToolError
    from mendgraph.nodes.workspace.journal.restoring import Restored as Restored

    __version__: str

_HOMES = {
    "Cassette": "mendgraph.graph.cassettes.fixture",
    "build_graph": "mendgraph.graph.machine.build",
    "AgentContext": "mendgraph.graph.configuration.context",
    "run_batch": "mendgraph.graph.fleet.batch.batch",
    "BatchTask": "mendgraph.graph.fleet.batch.tasks",
    "BatchResult": "mendgraph.graph.fleet.batch.batch_folder",
    "TaskResult": "mendgraph.graph.fleet.batch.tasks",
    "load_context": "mendgraph.graph.configuration.loading",
    **dict.fromkeys(("Replay", "RunFigures", "replay_run"), "mendgraph.graph.fleet.replay"),
    "report_html": "mendgraph.graph.report.page",
    "run_task": "mendgraph.graph.runs.run",
    "arun_task": "mendgraph.graph.runs.run",
    "stream_task": "mendgraph.graph.runs.run",
    "astream_task": "mendgraph.graph.runs.run",
    "Approve": "mendgraph.graph.runs.run",
    "Session": "mendgraph.graph.runs.run",
    "RunResult": "mendgraph.graph.runs.run_result",
    **dict.fromkeys(
        (
            *("Alerted", "Asked", "CallsRead", "Compacted", "Denied", "Ended", "Event", "FellBack", "HealingBegan"),
            *("LoopOverridden", "OfChild", "Paid", "Rescued", "StepDone", "Text", "ToolStarted", "Traced", "Waiting"),
        ),
        "mendgraph.graph.runs.events",
    ),
    **dict.fromkeys(("account_spent", "accounts_spent", "AccountSpent"), "mendgraph.graph.spending.store"),
    **dict.fromkeys(
        ("EvidenceMiddleware", "FileRulesMiddleware", "RedactionMiddleware"),
        "mendgraph.graph.langchain.work_middleware",
    ),
    "WorkspaceBackend": "mendgraph.graph.langchain.workspace_backend",
    "BudgetMiddleware": "mendgraph.graph.langchain.budget_middleware",
    "ExactlyOnceMiddleware": "mendgraph.graph.langchain.once_middleware",
    **dict.fromkeys(
        ("AgentStoppedError", "HealingMiddleware", "LoopGuardMiddleware"), "mendgraph.graph.langchain.run_middleware"
    ),
    "serializer": "mendgraph.graph.machine.serializer",
    "list_runs": "mendgraph.graph.runs.runs",
    "get_run": "mendgraph.graph.runs.runs",
    "steps_of": "mendgraph.graph.runs.runs",
    "open_run": "mendgraph.graph.runs.runs",
    "resume_run": "mendgraph.graph.runs.runs",
    "prune_runs": "mendgraph.graph.runs.runs",
    "ListedRun": "mendgraph.graph.runs.runs",
    "RunState": "mendgraph.graph.runs.runs",
    "RunStep": "mendgraph.graph.runs.runs",
    "Pruned": "mendgraph.graph.persistence.store",
    "PrunedHistoryError": "mendgraph.graph.machine.serializer",
    "apply_run": "mendgraph.graph.runs.runs",
    "undo_run": "mendgraph.graph.runs.runs",
    "fork_run": "mendgraph.graph.runs.runs",
    "Forked": "mendgraph.graph.runs.runs",
    "Restored": "mendgraph.nodes.workspace.journal.restoring",
    "tool": "mendgraph.nodes.execute_tools.registry",
    "ToolContext": "mendgraph.nodes.execute_tools.registry",
    "ToolOutput": "mendgraph.nodes.execute_tools.registry",
    "RetryableToolError": "mendgraph.nodes.execute_tools.tool_outcome",
    "GuardrailError": "mendgraph.nodes.execute_tools.tool_outcome",
    "default_tools": "mendgraph.nodes.execute_tools.tools",
    "load_mcp_tools": "mendgraph.nodes.execute_tools.mcp_tools",
    "load_mcp_tools_sync": "mendgraph.nodes.execute_tools.mcp_tools",
    "ApprovalRequest": "mendgraph.nodes.guard.approval_formats",
    "ApprovalAnswer": "mendgraph.nodes.guard.approval_formats",
    "FileGuardrailRule": "mendgraph.nodes.guard.file_rules",
    "DEFAULT_GUARDRAIL_RULES": "mendgraph.nodes.guard.file_rules",
    "Effect": "mendgraph.nodes.records",
    "ToolError": "mendgraph.nodes.records",
    "Outcome": "mendgraph.nodes.records",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its home (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("mendgraph")
    if name not in _HOMES:
        raise AttributeError(f"module 'mendgraph' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
