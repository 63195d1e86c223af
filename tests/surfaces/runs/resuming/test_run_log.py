"""What the log of a run holds besides its calls, and which counts an outcome has."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData

from mendgraph import Outcome, report_html
from tests.doubles.replies import Say
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.surfaces.runs.tool_play import DONE, PROTOCOLS, Line, play, reads
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

BROKEN = use(("read_file", '{"path": a.py}'))
MISFIT = use(("read_file", {"pth": 1}))
FILES = {"a.py": "a = 1\n", "long.txt": "line\n" * 900}
SECRET = "sk-" + "abcdefghijklmnop1234"


def run_and_read_log(folder: Path, *lines: Line, **more: Any) -> tuple[Outcome, list[dict[str, Any]]]:
    """The outcome of a run with these replies, and its log."""
    write_files(folder / "root", FILES)
    result = play(folder / "root", *lines, **more).result
    [log] = (folder / "data" / "runs").glob("*/audit.jsonl")
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert {record["run_id"] for record in records} == {result.thread_id}
    assert all(record["time"] and isinstance(record["step"], int) for record in records)
    return result.outcome, records


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
    metrics = [metric for of in data.resource_metrics for scope in of.scope_metrics for metric in scope.metrics]
    points: dict[str, list[Any]] = {metric.name: list(metric.data.data_points) for metric in metrics}
    return {name: sum(point.value for point in values) for name, values in points.items()}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_healed_calls_are_logged_with_their_errors_and_counted(
    tmp_path: Path, protocol: Protocol, reader: InMemoryMetricReader
) -> None:
    outcome, log = run_and_read_log(tmp_path, BROKEN, BROKEN, reads("a.py"), DONE, protocol=protocol)
    assert [record["event"] for record in log] == ["asked_again", "asked_again", "healed", "call", "end"]
    assert [record.get("attempts") for record in log[:3]] == [1, 2, 2]
    [error] = log[0]["errors"]
    assert (error["kind"], "JSON parse error" in error["details"]) == ("INVALID_JSON_SYNTAX", True)
    assert (log[-1]["kind"], log[-1]["reason"]) == ("FINISHED", "answered")
    assert (outcome.usage["replies_asked_again"], outcome.usage["replies_healed"]) == (2, 1)
    assert counts(reader) == {"mendgraph.asked_again": 2, "mendgraph.healed": 1}


def test_calls_in_another_format_are_logged_as_rescued_and_end_healing(tmp_path: Path) -> None:
    call = '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>'
    outcome, log = run_and_read_log(tmp_path, BROKEN, Say(call), DONE)
    assert [record["event"] for record in log] == ["asked_again", "rescued", "healed", "call", "end"]
    assert log[1]["formats"] == ["hermes"]
    assert outcome.usage["replies_healed"] == 1


@pytest.mark.parametrize(
    ("line", "reason", "kind"),
    [(MISFIT, "schema_repair_exhausted", "INVALID_ARGUMENTS"), (BROKEN, "healing_exhausted", "INVALID_JSON_SYNTAX")],
)
def test_validation_diagnostics_of_a_system_error_are_logged(
    tmp_path: Path, line: Line, reason: str, kind: str
) -> None:
    outcome, log = run_and_read_log(tmp_path, *[line] * 4)
    end = log[-1]
    assert (end["event"], end["kind"], end["reason"]) == ("end", "SYSTEM_ERROR", reason)
    assert end["diagnostics"] == list(outcome.diagnostics)
    assert kind in end["diagnostics"][0]
    assert "replies_healed" not in outcome.usage


def test_malformed_call_is_logged_with_its_problem_and_without_secrets(tmp_path: Path) -> None:
    mixed = use(("read_file", {"path": "a.py"}), ("read_file", {"pth": 1}))
    _, log = run_and_read_log(tmp_path, use(("read_file", f'{{"path": {SECRET}}}')), mixed, DONE)
    assert [record["event"] for record in log] == ["asked_again", "healed", "call", "call", "end"]
    assert SECRET not in json.dumps(log)
    good, bad = log[2:4]
    assert (good["verdict"], "problem" in good) == ("allow", False)
    assert (bad["verdict"], bad["problem"]["kind"]) == ("deny", "INVALID_ARGUMENTS")


def test_repeated_call_override_and_end_are_logged_and_counted(tmp_path: Path, reader: InMemoryMetricReader) -> None:
    outcome, log = run_and_read_log(tmp_path, *[reads("long.txt")] * 4)
    assert [record["event"] for record in log] == ["call", "call", "call", "override", "call", "repeated", "end"]
    override, repeated, end = log[3], log[5], log[6]
    assert (override["tool"], override["target"], override["repeats"]) == ("read_file", "long.txt", 3)
    assert (repeated["signature"], repeated["repeats"]) == (override["signature"], 4)
    assert (log[4]["verdict"], log[4]["rule"]) == ("deny", "loop_override")
    assert (end["kind"], end["reason"]) == ("SYSTEM_ERROR", "loop_persisted")
    assert override["signature"] in end["diagnostics"][0]
    assert {name: outcome.usage[name] for name in ("loops", "loop_overrides", "truncated_reads")} == {
        "loops": 2,
        "loop_overrides": 1,
        "truncated_reads": 3,
    }
    assert counts(reader) == {"mendgraph.loops": 2, "mendgraph.overrides": 1, "mendgraph.truncated": 3}


@slow
def test_report_has_the_counts_of_the_turn(tmp_path: Path) -> None:
    write_files(tmp_path / "root", FILES)
    run = play(tmp_path / "root", BROKEN, *[reads("long.txt")] * 3, DONE)
    page = report_html(run.result.thread_id, str(tmp_path / "root"))
    for name, count in {"replies healed": 1, "loops": 1, "loop overrides": 1, "truncated reads": 3}.items():
        assert f"<strong>{count}</strong> <span>{name}</span>" in page, name
