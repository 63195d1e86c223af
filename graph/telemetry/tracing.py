"""The one hook for whoever watches runs, the process's tracer, and sending spans where OpenTelemetry's variables ask.

Source: opentelemetry.io, "OpenTelemetry environment variable specification". A program that sets its own provider is
left alone. Nothing of OpenTelemetry is imported where no variable asks for it, or before somebody else has: then nobody
observes, and a run pays for one look.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

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


# --- Sending what is observed

FLUSH_S: Final = 2.0
"""How long the end of the process waits for a collector, at most."""

EXTRA_HINT: Final = (
    "the extra `otel` is not installed, so nothing is exported, although OTEL_* variables ask for it:"
    ' run `uv sync --extra otel` or `pip install "mendgraph[otel]"`, or unset them'
)
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


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


def asks(environment: Mapping[str, str]) -> bool:
    """Whether spans are to be sent: an endpoint or the exporter is named, and neither they nor all of it turned off."""
    said = {name: value.strip().lower() for name, value in environment.items() if name.startswith("OTEL_")}
    named = said.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(said.get, _ENDPOINTS)) else "")
    return "otlp" in named and said.get("OTEL_SDK_DISABLED") != "true"


@contextmanager
def exporting(environment: Mapping[str, str], complain: Callable[[str], None]) -> Iterator[None]:
    """Inside, runs are told to the collector that `environment` names; nothing of that ever fails or delays a run.

    When it is left, what is still to be sent has two seconds. What was not sent is complained of in one line.
    """
    if not asks(environment) or tracer() is not None:
        yield
        return
    trouble = _Trouble()
    try:
        provider = _set_up()
    except ImportError:
        complain(EXTRA_HINT)
        yield
        return
    except Exception as error:  # noqa: BLE001 - a variable may hold anything
        complain(f"telemetry is not exported ({type(error).__name__}): see the OTEL_* variables")
        yield
        return
    try:
        yield
    finally:
        ending = threading.Thread(target=provider.shutdown, daemon=True)  # it ends with the process
        ending.start()
        ending.join(FLUSH_S)
        if ending.is_alive() or trouble.happened:
            complain(f"telemetry was not, or not all, exported within {FLUSH_S:g} s: see the OTEL_* variables")


def note(problem: str) -> None:
    """Tell the user in one line, on standard error."""
    sys.stderr.write(f"mendgraph: {problem}\n")


class _Trouble(logging.Handler):
    """Listens to what the exporter logs, which would otherwise stand in the terminal among the run's own lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.happened = False
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - what is in it may name a secret header
        self.happened = True


def _set_up() -> Any:
    """A provider that sends to the collector; it is the process's own from here on."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource.create({"service.name": "mendgraph", "service.version": own_version()})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider
