"""In: the calls that guard allowed. Out: one result for each call, in order. The only node with effects outside."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import TypedDict

from mendgraph.nodes.execute_tools.run_call import StepResources
from mendgraph.nodes.execute_tools.step import run_step
from mendgraph.nodes.records import CallError, CallResult, Plan, ToolCall, Verdict


class ExecuteToolsState(TypedDict, total=False):
    """The slice of the state that the node reads."""

    items: list[ToolCall | CallError]
    verdicts: list[Verdict]
    files_read: dict[str, str]
    plan: Plan


def execute_tools(
    state: ExecuteToolsState, settled: Sequence[CallResult | None], using: StepResources
) -> dict[str, Any]:
    """Run the allowed calls; `settled` has the results of the others in their places.

    `files_read` and `changes` are those of this step; their channels add them to the earlier ones.
    """
    step = run_step(state["items"], state["verdicts"], settled, using)
    return {
        "results": step.results,
        "plan": step.plan,
        "seconds": step.seconds,
        "changes": step.changes,
        "files_read": step.files_read,
    }
