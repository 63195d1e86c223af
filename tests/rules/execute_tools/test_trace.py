import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.trace import LONGEST_TARGET, RunLog, TraceEvent, TraceSink
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ChangeKind,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    JsonMap,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)
from mendgraph.nodes.workspace.store.audit_log import AuditLog
from tests.row_tables import rows


def test_events_have_run_step_and_milliseconds() -> None:
    clock = iter([100, 107, 120])
    sink = TraceSink("run", "step", clock=lambda: next(clock))
    sink.emit("a", {})
    sink.emit("b", {"n": 1})
    assert sink.events == [TraceEvent("a", {}, "run", "step", 7), TraceEvent("b", {"n": 1}, "run", "step", 20)]


def test_exception_in_a_listener_does_not_break_the_run() -> None:
    def broken(_: TraceEvent) -> None:
        raise ZeroDivisionError

    sink = TraceSink(forward=broken)
    sink.emit("a", {})
    assert [event.name for event in sink.events] == ["a"]


@dataclass
class Page:
    name: str
    lines: tuple[int, ...]


@rows(
    ({"api_key": "abc"}, {"api_key": "***"}),
    ({"text": "key sk-abcdefghijklmnop1234"}, {"text": "key ***"}),
    ({"value": {1}}, {"value": [1]}),
    ({"value": Page("a", (1,))}, {"value": {"name": "a", "lines": [1]}}),
)
def test_payloads_are_redacted_and_serializable(payload: dict[str, Any], expected: dict[str, Any]) -> None:
    sink = TraceSink()
    sink.emit("a", payload)
    assert sink.events[0].payload == expected


SECRET = "xyzzy" + "-4711-plugh"
ALLOW = Verdict(kind=VerdictKind.ALLOW, path="a.py")
CHANGE = FileChange(path="a.py", kind=ChangeKind.CREATED, sha256_before="", sha256_after="1", diff="+x")


def call(tool: str = "write_file", **arguments: Any) -> ToolCall:
    return ToolCall(call_id="c", tool=tool, arguments=arguments, raw_arguments="")


def lines(folder: Path) -> list[JsonMap]:
    """The log lines, without times."""
    written = (folder / "audit.jsonl").read_text("utf-8").splitlines() if (folder / "audit.jsonl").exists() else []
    records = [json.loads(line) for line in written]
    for line in records:
        assert line.pop("time").endswith("+00:00")
    return records


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    return RunLog(AuditLog(str(tmp_path)), Redactor([SECRET]), "t")


def test_call_is_logged_with_its_verdict_and_result(log: RunLog, tmp_path: Path) -> None:
    done = CallResult(call_id="c", tool="write_file", result=ToolResult.success(), changes=(CHANGE,), ms=7, attempts=2)
    log.call(3, call(path="a.py", content="x"), ALLOW, done)
    [line] = lines(tmp_path)
    assert len(line.pop("arguments_sha256")) == 64
    fields = {"event": "call", "run_id": "t", "step": 3, "tool": "write_file", "path": "a.py", "target": ""}
    verdict = {"verdict": "allow", "rule": ""}
    assert line == {**fields, **verdict, "ok": True, "error_type": "", "ms": 7, "attempts": 2, "changed": ["a.py"]}


def test_unreadable_call_is_logged_too(log: RunLog, tmp_path: Path) -> None:
    error = ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 1, "tool: x(", "cut")
    item = CallError(call_id="c", tool="x", raw_arguments="(\ud800", error=error)
    refused = CallResult(call_id="c", tool="x", result=ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, "cut"))
    log.call(1, item, Verdict(kind=VerdictKind.DENY, rule="malformed"), refused)
    [line] = lines(tmp_path)
    values = [line[name] for name in ("tool", "verdict", "rule", "error_type")]
    assert values == ["x", "deny", "malformed", "invalid_argument"]


def test_log_line_names_the_program_or_host(log: RunLog, tmp_path: Path) -> None:
    requests: list[JsonMap] = [
        {"argv": ["make", "test"]},
        {"argv": ["x" * 500]},
        {"url": "https://a.test/3/?q=1"},
        {"url": "https://[b"},
    ]
    for arguments in requests:
        log.cut_off(1, call(**arguments), ALLOW)
    assert [line["target"] for line in lines(tmp_path)] == ["make", "x" * LONGEST_TARGET, "a.test", ""]


def test_foreign_text_in_the_log_is_redacted(tmp_path: Path) -> None:
    change = CHANGE.model_copy(update={"path": f"{SECRET}.txt"})
    done = CallResult(call_id="c", tool="x", result=ToolResult.success(), changes=(change,), ms=7, attempts=1)
    verdict = Verdict(kind=VerdictKind.ALLOW, path=f"{SECRET}.txt", rule=SECRET)
    RunLog(AuditLog(str(tmp_path)), Redactor([SECRET]), f"t {SECRET}").call(1, call(tool=SECRET), verdict, done)
    [line] = lines(tmp_path)
    assert {name: line[name] for name in ("run_id", "tool", "path", "rule", "changed")} == {
        "run_id": "t ***",
        "tool": "***",
        "path": "***.txt",
        "rule": "***",
        "changed": ["***.txt"],
    }
