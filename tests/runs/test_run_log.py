"""What the log of a run holds beside its calls, and what is counted of a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData

from mendgraph import report_html
from mendgraph.graph.runs.events import Ended
from mendgraph.nodes.execute_tools.store.run_folder import folder_name
from mendgraph.nodes.records import JsonMap, Outcome, OutcomeKind, Protocol, StopReason
from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.runs.tool_play import DONE, PROTOCOLS, Line, reads, scripted, session
from tests.workspace_files import write_files

BROKEN = use(("read_file", '{"path": a.py}'))
MISFIT = use(("read_file", {"pth": 1}))
FILES = {"a.py": "a = 1\n", "long.txt": "line\n" * 900}


def logged(
    folder: Path, *lines: Line, protocol: Protocol = Protocol.NATIVE, **more: Any
) -> tuple[Outcome, list[JsonMap]]:
    """The outcome of a run with these replies, and its log."""
    write_files(folder / "root", FILES)
    with session(folder / "root", scripted(protocol, *lines), protocol, **more) as opened:
        ended = opened.work("Do it.")
        thread = opened.thread_id
    assert isinstance(ended, Ended)
    text = (folder / "data" / "runs" / folder_name(thread) / "audit.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    assert all(record["run_id"] == thread and record["time"] and isinstance(record["step"], int) for record in records)
    return ended.outcome, records


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    """What a process with a provider of meters reads."""
    memory = InMemoryMetricReader()
    provider = MeterProvider([memory], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    return memory


def counts(reader: InMemoryMetricReader) -> dict[str, int]:
    data = reader.get_metrics_data()
    if not isinstance(data, MetricsData):
        return {}
    found = [metric for of in data.resource_metrics for scope in of.scope_metrics for metric in scope.metrics]
    points: dict[str, list[Any]] = {metric.name: list(metric.data.data_points) for metric in found}
    return {name: sum(point.value for point in values) for name, values in points.items()}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_healed_calls_are_logged_with_their_errors_and_counted(
    tmp_path: Path, protocol: Protocol, reader: InMemoryMetricReader
) -> None:
    outcome, log = logged(tmp_path, BROKEN, BROKEN, reads("a.py"), DONE, protocol=protocol)
    assert [record["event"] for record in log] == ["asked_again", "asked_again", "healed", "call", "end"]
    assert [record.get("attempts") for record in log[:3]] == [1, 2, 2]
    [error] = log[0]["errors"]
    assert (error["kind"], "JSON parse error" in error["details"]) == ("INVALID_JSON_SYNTAX", True)
    assert (log[-1]["kind"], log[-1]["reason"]) == ("FINISHED", "answered")
    assert outcome.usage["replies_asked_again"] == 2
    assert outcome.usage["replies_healed"] == 1
    assert counts(reader) == {"mendgraph.asked_again": 2, "mendgraph.healed": 1}


def test_calls_in_another_format_are_logged_as_rescued_and_end_the_corrections(tmp_path: Path) -> None:
    call = '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>'
    outcome, log = logged(tmp_path, BROKEN, Say(call), DONE)
    assert [record["event"] for record in log] == ["asked_again", "rescued", "healed", "call", "end"]
    assert log[1]["formats"] == ["hermes"]
    assert outcome.usage["replies_healed"] == 1


@pytest.mark.parametrize(
    ("line", "reason", "kind"),
    [
        (MISFIT, StopReason.SCHEMA_REPAIR_EXHAUSTED, "INVALID_ARGUMENTS"),
        (BROKEN, StopReason.HEALING_EXHAUSTED, "INVALID_JSON_SYNTAX"),
    ],
)
def test_validation_diagnostics_of_a_system_error_are_logged(
    tmp_path: Path, line: Line, reason: StopReason, kind: str
) -> None:
    outcome, log = logged(tmp_path, *[line] * 4)
    end = log[-1]
    assert (end["event"], end["kind"], end["reason"]) == ("end", "SYSTEM_ERROR", reason.value)
    assert end["diagnostics"] == list(outcome.diagnostics)
    assert kind in end["diagnostics"][0]
    assert "replies_healed" not in outcome.usage


def test_malformed_call_beside_others_is_logged_with_its_problem(tmp_path: Path) -> None:
    mixed = use(("read_file", {"path": "a.py"}), ("read_file", {"pth": 1}))
    _, log = logged(tmp_path, mixed, DONE)
    calls = [record for record in log if record["event"] == "call"]
    assert [call["verdict"] for call in calls] == ["allow", "deny"]
    assert ("problem" in calls[0], calls[1]["problem"]["kind"]) == (False, "INVALID_ARGUMENTS")


def test_repeated_signature_the_override_and_the_end_are_logged_and_counted(
    tmp_path: Path, reader: InMemoryMetricReader
) -> None:
    outcome, log = logged(tmp_path, *[reads("a.py")] * 4)
    assert [record["event"] for record in log] == ["call", "call", "call", "override", "call", "repeated", "end"]
    override, repeated, end = log[3], log[5], log[6]
    assert (override["tool"], override["target"], override["repeats"], override["step"]) == ("read_file", "a.py", 3, 3)
    assert (repeated["signature"], repeated["repeats"]) == (override["signature"], 4)
    assert (log[4]["verdict"], log[4]["rule"]) == ("deny", "loop_override")
    assert (end["kind"], end["reason"]) == ("SYSTEM_ERROR", "loop_persisted")
    assert override["signature"] in end["diagnostics"][0]
    assert (outcome.usage["loops"], outcome.usage["loop_overrides"]) == (2, 1)
    assert counts(reader) == {"mendgraph.loops": 2, "mendgraph.overrides": 1}


def test_truncated_reads_are_counted(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    outcome, _ = logged(tmp_path, reads("long.txt", "a.py"), DONE)
    assert outcome.usage["truncated_reads"] == 1
    assert counts(reader) == {"mendgraph.truncated": 1}


def test_run_without_calls_logs_its_end(tmp_path: Path) -> None:
    _, log = logged(tmp_path, Say("Hello."))
    assert [(record["event"], record["kind"]) for record in log] == [("end", "FINISHED")]


def test_run_that_ends_at_a_limit_logs_its_end(tmp_path: Path) -> None:
    stopped, log = logged(tmp_path, reads("a.py"), reads("b.py"), max_calls_per_turn=1)
    assert stopped.kind is OutcomeKind.BUDGET_STOP
    assert (log[-1]["event"], log[-1]["reason"]) == ("end", stopped.reason.value)


def test_secret_in_what_is_logged_of_a_reply_is_masked(tmp_path: Path) -> None:
    secret = "sk-" + "abcdefghijklmnop1234"
    _, log = logged(tmp_path, use(("read_file", f'{{"path": {secret}}}')), DONE)
    assert secret not in json.dumps(log)
    assert log[0]["event"] == "asked_again"


def test_report_has_the_counts_of_the_turn(tmp_path: Path) -> None:
    write_files(tmp_path / "root", FILES)
    with session(tmp_path / "root", scripted(Protocol.NATIVE, BROKEN, *[reads("long.txt")] * 3, DONE)) as opened:
        opened.work("Do it.")
        thread = opened.thread_id
    page = report_html(thread, str(tmp_path / "root"))
    for name, count in {"replies healed": 1, "loops": 1, "loop overrides": 1, "truncated reads": 3}.items():
        assert f"<strong>{count}</strong> <span>{name}</span>" in page, name
