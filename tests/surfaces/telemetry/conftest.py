"""A tracer provider that records spans, set in this process for one test."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mendgraph import AgentContext


@dataclass(frozen=True)
class SpanRecorder:
    """The spans so far."""

    exporter: InMemorySpanExporter

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def names(self) -> list[str]:
        """The names of these."""
        return [span.name for span in self.spans]

    def named(self, name: str) -> ReadableSpan:
        """The one span of this name."""
        (span_of_name,) = (span for span in self.spans if span.name == name)
        return span_of_name

    def text(self) -> str:
        """All of it."""
        return "".join(span.to_json() for span in self.spans)


@pytest.fixture
def span_recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpanRecorder]:
    """The spans of a process with its own tracer provider."""
    exporter, tracing = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", tracing)
    yield SpanRecorder(exporter)
    tracing.shutdown()


def context(folder: Path, base_url: str | None = None, **settings: Any) -> AgentContext:
    """A context in which only the model's calls run."""
    off = dict.fromkeys(("evidence", "read_ahead"), False)
    chosen = {"model": "m", "base_url": base_url, "protocol": "native", "provider_retries": 0, **off, **settings}
    return AgentContext(workspace=str(folder), **chosen)
