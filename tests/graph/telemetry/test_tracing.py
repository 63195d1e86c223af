"""What OpenTelemetry's variables make of a process, and that no collector fails or delays it."""

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from mendgraph.graph.telemetry import tracing as module
from mendgraph.graph.telemetry.tracing import EXTRA_HINT, asks, exporting, tracer
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.graph.telemetry.conftest import Told

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, True),
        ({"OTEL_TRACES_EXPORTER": "console,otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, False),
        ({"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, False),
    ],
)
def test_which_variables_turn_traces_on(environment: dict[str, str], wanted: bool) -> None:
    assert asks(environment) is wanted


def said_of(monkeypatch: pytest.MonkeyPatch, set_up: Callable[[], object]) -> list[str]:
    """What a program is told that exports to a provider of this making."""
    said: list[str] = []
    monkeypatch.setattr(module, "_set_up", set_up)
    with exporting({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, said.append):
        pass
    return said


def failing(error: Exception) -> Callable[[], object]:
    def set_up() -> object:
        raise error

    return set_up


def test_what_cannot_be_exported_is_told_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_of(monkeypatch, failing(ImportError())) == [EXTRA_HINT]
    assert said_of(monkeypatch, failing(ValueError(URL))) == [
        "telemetry is not exported (ValueError): see the OTEL_* variables"
    ]


def test_nobody_waits_for_a_collector_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(module, "FLUSH_S", 0.01)
    assert said_of(monkeypatch, lambda: SimpleNamespace(shutdown=answered.wait)) == [
        "telemetry was not, or not all, exported within 0.01 s: see the OTEL_* variables"
    ]
    answered.set()


def test_a_provider_of_the_programs_own_is_left_alone(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_of(monkeypatch, lambda: pytest.fail("it was replaced")) == []
    assert told.spans == []


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector of traces on loopback, and what it was sent."""
    got: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                got.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(folder: Path, endpoint: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """One run of the terminal, in a process of its own."""
    settings = {**os.environ, "OPENAI_BASE_URL": endpoint, "OPENAI_API_KEY": "k", **variables}
    options = ("--model", "m", "--root", str(folder), "--no-evidence", "Look.")
    return subprocess.run(
        [sys.executable, "-c", "from mendgraph.graph.start import main; main()", *options],
        env=settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_reaches_the_collector(tmp_path: Path) -> None:
    with collector() as (url, got), ScriptedServer([Say("Done.")]) as server:
        ended = run(tmp_path, server.base_url, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_SERVICE_NAME="mine")
    assert ended.returncode == 0
    assert "telemetry" not in ended.stderr
    spans = [
        span for each in got for found in each.resource_spans for scope in found.scope_spans for span in scope.spans
    ]
    named = {
        a.key: a.value.string_value for each in got for found in each.resource_spans for a in found.resource.attributes
    }
    assert sorted(span.name for span in spans) == ["chat m", "invoke_agent mendgraph"]
    assert len({span.trace_id for span in spans}) == 1
    assert named["service.name"] == "mine"


def test_the_processes_own_provider_is_used(told: Told) -> None:
    found = tracer()
    assert found is not None
    found.start_span("one").end()
    assert told.names() == ["one"]


def test_a_provider_that_breaks_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", object())
    assert tracer() is None
