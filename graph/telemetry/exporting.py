"""The process's tracer and meter, and sending what they are given to a collector, as OpenTelemetry's variables ask.

Source: opentelemetry.io, "OpenTelemetry environment variable specification". A program that sets its own providers is
left alone, and nothing of OpenTelemetry is imported where no variable asks for it, or before somebody else has.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

FLUSH_S: Final = 2.0
"""How long the end of the process waits for a collector, at most."""

EXTRA_HINT: Final = (
    "the extra `otel` is not installed, so nothing is exported, although OTEL_* variables ask for it:"
    ' run `uv sync --extra otel` or `pip install "mendgraph[otel]"`, or unset them'
)
_SIGNALS: Final = ("TRACES", "METRICS")
_NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_KNOWN: Final = frozenset({"otlp", "console"})


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


def exporters(environment: Mapping[str, str], signal: str) -> frozenset[str]:
    """How one signal, `TRACES` or `METRICS`, is exported: `otlp`, `console`, or not at all."""
    if _said(environment, "OTEL_SDK_DISABLED") == "true":
        return frozenset()
    if named := _said(environment, f"OTEL_{signal}_EXPORTER"):
        return frozenset(each.strip() for each in named.split(",")) & _KNOWN
    addresses = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return frozenset({"otlp"} if any(_said(environment, name) for name in addresses) else ())


def problem_of(environment: Mapping[str, str]) -> str:
    """Why nothing can be exported although it is asked for; "" where nothing is asked for, or all is well."""
    named = ",".join(_said(environment, f"OTEL_{signal}_EXPORTER") for signal in _SIGNALS)
    unknown = sorted({each.strip() for each in named.split(",") if each.strip()} - _KNOWN - {"none"})
    if unknown and _said(environment, "OTEL_SDK_DISABLED") != "true":
        return f"{', '.join(unknown)} is no exporter that is known here: use otlp, console or none"
    asked = [exporters(environment, signal) for signal in _SIGNALS]
    if not any(asked):
        return ""
    if not all(map(_is_installed, _NEEDED)):
        return EXTRA_HINT
    protocols = {_said(environment, f"OTEL_EXPORTER_OTLP{signal}_PROTOCOL") for signal in ("", "_TRACES", "_METRICS")}
    if any("otlp" in each for each in asked) and protocols - {"", "http/protobuf"}:
        return "traces are sent by http/protobuf alone: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
    return ""


def _said(environment: Mapping[str, str], variable: str) -> str:
    return environment.get(variable, "").strip().lower()


@contextmanager
def exporting(environment: Mapping[str, str], complain: Callable[[str], None]) -> Iterator[None]:
    """Inside, runs are told to the collector that `environment` names; nothing of that ever fails or delays a run.

    When it is left, what is still to be sent has two seconds. What was not sent is complained of in one line.
    """
    asked = any(exporters(environment, signal) for signal in _SIGNALS)
    problem = problem_of(environment)
    if problem or not asked or tracer() is not None:
        if problem:
            complain(problem)
        yield
        return
    try:
        trouble = _Trouble()
        providers = _set_up(environment)
    except Exception as error:  # noqa: BLE001 - a variable may hold anything
        complain(f"telemetry is not exported ({type(error).__name__}): see the OTEL_* variables")
        yield
        return
    try:
        yield
    finally:
        late = _shut_down(providers)
        if late or trouble.happened:
            why = f"the collector did not take it within {FLUSH_S:g} s" if late else "the collector cannot be reached"
            complain(f"telemetry was not, or not all, exported: {why}")
        trouble.leave()


def note(problem: str) -> None:
    """Tell the user in one line, on standard error."""
    sys.stderr.write(f"mendgraph: {problem}\n")


class _Trouble(logging.Handler):
    """Listens to what the exporter logs, which would otherwise stand in the terminal among the run's own lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.happened = False
        self._logger = logging.getLogger("opentelemetry")
        self._propagated, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - what is in it may name a secret header
        self.happened = True

    def leave(self) -> None:
        """What a thread that is still at work says after that is not heard, either."""
        self._logger.addHandler(logging.NullHandler())
        self._logger.removeHandler(self)


def _set_up(environment: Mapping[str, str]) -> list[Any]:
    """Providers for what is asked for; they are the process's own from here on."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.resources import Resource

    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    name = {} if named else {"service.name": "mendgraph"}
    resource = Resource.create({**name, "service.version": own_version()})
    providers: list[Any] = []
    if by := exporters(environment, "METRICS"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

        ways: list[Any] = [OTLPMetricExporter()] if "otlp" in by else []
        ways += [ConsoleMetricExporter(out=sys.stderr)] if "console" in by else []
        readers = list(map(PeriodicExportingMetricReader, ways))
        providers.append(MeterProvider(readers, resource=resource, shutdown_on_exit=False))
        metrics.set_meter_provider(providers[-1])
    if by := exporters(environment, "TRACES"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        if "otlp" in by:
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if "console" in by:
            provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
        providers.append(provider)
        trace.set_tracer_provider(provider)
    return providers


def _shut_down(providers: list[Any]) -> bool:
    """Send the rest; whether somebody was too slow. Nobody waits for the threads, which end with the process."""

    def end(provider: Any) -> None:
        with suppress(Exception):
            provider.shutdown()

    enders = [threading.Thread(target=end, args=(each,), daemon=True) for each in reversed(providers)]
    for each in enders:
        each.start()
    until = monotonic() + FLUSH_S
    for each in enders:
        each.join(max(0.0, until - monotonic()))
    return any(each.is_alive() for each in enders)


def _is_installed(module: str) -> bool:
    """Without importing more of it than its parent packages."""
    with suppress(ImportError, ValueError):
        return find_spec(module) is not None
    return False
