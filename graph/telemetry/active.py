"""Whether somebody listens: the tracer and the meter that the process has been given, and the run that is at work.

Nothing of OpenTelemetry is imported here before somebody else has: a process that has set no provider pays nothing.
"""

import sys
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from graph.telemetry.run_span import RunSpan

CURRENT_RUN: Final[ContextVar["RunSpan | None"]] = ContextVar("mendgraph_run_span", default=None)
"""The span of the run that this thread or task works for; LangGraph hands it on to the nodes, and these to tools."""


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


def meter() -> Any:
    """A meter of the provider that the process has set: one that drops everything where none is set."""
    from opentelemetry import metrics

    return metrics.get_meter("mendgraph", own_version())


@lru_cache(maxsize=1)
def own_version() -> str:
    """The installed version of mendgraph, "" where that cannot be told, as in an event loop that forbids reading."""
    from importlib.metadata import version

    try:
        return version("mendgraph")
    except Exception:  # noqa: BLE001 - not installed, or who watches an event loop raises what it likes
        return ""
