"""In: the calls that guard allowed. Out: one result for each call, in order. The only room that touches the world."""

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import TypedDict

from nodes.execute_tools.registry import ToolContext
from nodes.execute_tools.step import KeyOf, Run, run_step
from nodes.records import CallError, CallResult, Plan, ToolCall, Verdict


class ExecuteToolsState(TypedDict, total=False):
    """What the node reads."""

    items: list[ToolCall | CallError]
    verdicts: list[Verdict]
    files_read: dict[str, str]
    plan: Plan


def execute_tools(
    state: ExecuteToolsState,
    run: Run,
    context: ToolContext,
    terminal: frozenset[str],
    denied: Callable[[Sequence[ToolCall | CallError], Sequence[Verdict]], list[CallResult | None]],
    key_of: KeyOf = lambda _index, _call: "",
) -> dict[str, Any]:
    """Run the allowed calls one after the other; `denied` answers the others in their places.

    `files_read` and `changes` are those of this step: their channels add them to what was there. `seconds` is the time
    that it took.
    """
    items = state["items"]
    done = run_step(items, denied(items, state["verdicts"]), run, context, terminal, key_of)
    return {
        "results": done.results,
        "files_read": done.files_read,
        "changes": done.changes,
        "plan": done.plan,
        "seconds": done.seconds,
    }
