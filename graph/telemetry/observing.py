"""The one hook for whoever watches runs: a run that is observed says what it does, as it does it.

Nobody observes where the process has imported nothing of OpenTelemetry: then a run pays for one look.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import ToolCall

if TYPE_CHECKING:
    from mendgraph.graph.telemetry.spans import RunSpan

OBSERVER: Final["ContextVar[RunSpan | None]"] = ContextVar("mendgraph_observer", default=None)
"""Who observes the run that this thread or task works for; LangGraph hands it on to the nodes, and these to tools."""


def run_observer(run_id: str, scrub: Callable[[str], str]) -> "RunSpan | None":
    """Who observes the run that begins; None where the process has set no tracer. `run_id` is "" if not known yet."""
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    try:
        from mendgraph.graph.telemetry.spans import observer

        return observer(run_id, scrub)
    except Exception:  # noqa: BLE001 - a broken OpenTelemetry ends no run
        return None


@contextmanager
def at_work(observer: "RunSpan | None") -> Iterator[None]:
    """Inside, whatever begins in this thread or task belongs to the observed run, where one is observed."""
    token = OBSERVER.set(observer)
    try:
        with observer.at_work() if observer else nullcontext():
            yield
    finally:
        OBSERVER.reset(token)


def observed_call(call: ToolCall) -> AbstractContextManager[Callable[[ToolRun], None]]:
    """Entered around a tool call, and given what it came to."""
    observer = OBSERVER.get()
    return nullcontext(lambda _: None) if observer is None else observer.tool_call(call)
