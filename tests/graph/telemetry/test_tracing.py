"""The tracer that a process has set is used as it is."""

import pytest
from opentelemetry import trace

from mendgraph.graph.telemetry.tracing import tracer
from tests.graph.telemetry.conftest import Told


def test_the_processes_own_provider_is_used(told: Told) -> None:
    found = tracer()
    assert found is not None
    found.start_span("one").end()
    assert told.names() == ["one"]


def test_a_provider_that_breaks_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", object())
    assert tracer() is None
