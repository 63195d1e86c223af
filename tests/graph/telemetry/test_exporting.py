"""What OpenTelemetry's variables make of a process, and that no collector fails or delays it."""

import gzip
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from mendgraph.graph.telemetry import exporting as module
from mendgraph.graph.telemetry.exporting import EXTRA_HINT, exporters, exporting, meter, problem_of, tracer
from tests.doubles.scripted_server import Say, ScriptedServer
from tests.graph.telemetry.conftest import Told

URL = "http://127.0.0.1:9"
RUN = """
import os, sys
from mendgraph.graph.cli import main
from mendgraph.graph.telemetry import exporting
exporting.FLUSH_S = float(os.environ.get("FLUSH_S", exporting.FLUSH_S))
code = main(sys.argv[1:])
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": " Console , otlp"}, "console otlp"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, ""),
        ({"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": URL}, ""),
        ({"OTEL_SERVICE_NAME": "mine"}, ""),
    ],
)
def test_which_variables_turn_traces_on(environment: dict[str, str], found: str) -> None:
    assert " ".join(sorted(exporters(environment, "TRACES"))) == found


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ""),
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "jaeger is no exporter"),
        ({"OTEL_TRACES_EXPORTER": "jaeger", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTLP_PROTOCOL=http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ""),
    ],
)
def test_what_cannot_be_done_is_said(environment: dict[str, str], said: str) -> None:
    assert said in problem_of(environment)
    assert bool(said) == bool(problem_of(environment))


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NEEDED", ("no_such_package.at_all",))
    said: list[str] = []
    with exporting({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, said.append):
        pass
    with exporting({}, said.append):
        pass
    assert said == [EXTRA_HINT]


def test_a_provider_of_the_programs_own_is_left_alone(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_set_up", lambda _: pytest.fail("it was replaced"))
    said: list[str] = []
    with exporting({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, said.append):
        pass
    assert (said, told.spans) == ([], [])


def test_a_variable_that_means_nothing_is_told_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_up(_: object) -> list[Any]:
        raise ValueError(URL)

    monkeypatch.setattr(module, "_set_up", set_up)
    said: list[str] = []
    with exporting({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, said.append):
        pass
    assert said == ["telemetry is not exported (ValueError): see the OTEL_* variables"]


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
        [sys.executable, "-c", RUN, *options], env=settings, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_run_reaches_the_collector_and_waits_for_none_that_says_nothing(tmp_path: Path) -> None:
    with (
        collector() as (url, got),
        socket.create_server(("127.0.0.1", 0)) as silent,
        ScriptedServer([Say("Done.")]) as server,
    ):
        chosen = {"OTEL_TRACES_EXPORTER": "otlp,console", "OTEL_SERVICE_NAME": "mine", "FLUSH_S": "1"}
        of_metrics = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        ended = run(tmp_path, server.base_url, OTEL_EXPORTER_OTLP_ENDPOINT=url, **chosen, **of_metrics)
    assert ended.returncode == 0
    assert [line for line in ended.stderr.splitlines() if "telemetry was" in line] == [
        "mendgraph: telemetry was not, or not all, exported: the collector did not take it within 1 s"
    ]
    assert "Traceback" not in ended.stderr
    spans = [
        span for each in got for found in each.resource_spans for scope in found.scope_spans for span in scope.spans
    ]
    named = {
        a.key: a.value.string_value for each in got for found in each.resource_spans for a in found.resource.attributes
    }
    assert sorted(span.name for span in spans) == ["chat m", "invoke_agent mendgraph"]
    assert len({span.trace_id for span in spans}) == 1
    assert named["service.name"] == "mine"
    assert '"name": "invoke_agent mendgraph"' in ended.stderr
    assert "invoke_agent" not in ended.stdout


def test_nobody_listens_where_nothing_of_opentelemetry_was_imported(
    monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert tracer() is None
    assert told.spans == []


def test_the_processes_own_provider_is_used(told: Told) -> None:
    found = tracer()
    assert found is not None
    found.start_span("one").end()
    meter().create_histogram("two").record(3)
    assert (told.names(), told.sums()) == (["one"], {"two": [3]})


def test_a_provider_that_breaks_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", object())
    assert tracer() is None
