"""The one hook for whoever watches runs: a run that is observed says what it does, as it does it.

The tracer is that of the provider that the process has set. Nothing of OpenTelemetry is imported before somebody else
has: then nobody observes, and a run pays for one look.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import ToolCall

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from mendgraph.graph.telemetry.spans import RunSpan

OBSERVER: Final["ContextVar[RunSpan | None]"] = ContextVar("mendgraph_observer", default=None)
"""Who observes the run that this thread or task works for; LangGraph hands it on to the nodes, and these to tools."""


def run_observer(run_id: str, scrub: Callable[[str], str]) -> "RunSpan | None":
    """Who observes the run that begins; None where the process has set no tracer. `run_id` is "" if not known yet."""
    found = tracer()
    if found is None:
        return None
    from mendgraph.graph.telemetry.spans import RunSpan

    return RunSpan(found, run_id, scrub)


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


def tracer() -> "Tracer | None":
    """A tracer of the provider that the process has set, None where none is set. It is used as it is."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
        made: Tracer = provider.get_tracer("mendgraph", own_version())
    except Exception:  # noqa: BLE001 - a provider of the user's own may fail in any way, and no run with it
        return None
    return made


@lru_cache(maxsize=1)
def own_version() -> str:
    """The installed version of mendgraph, "" where that cannot be told, as in an event loop that forbids reading."""
    from importlib.metadata import version

    try:
        return version("mendgraph")
    except Exception:  # noqa: BLE001 - not installed, or who watches an event loop raises what it likes
        return ""
