"""Trace events of a run, and the lines of its log: calls, healed replies, overrides, alerts and the end of the turn.

Source: spec 5 for the events; `engine` lists their names.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.language.command_lines import command_argv
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ExtractionError,
    JsonMap,
    Outcome,
    OverrideConstraint,
    ToolCall,
    Verdict,
)
from mendgraph.nodes.workspace.files.deadline import monotonic_ms
from mendgraph.nodes.workspace.journal.journal import call_fingerprint
from mendgraph.nodes.workspace.store.audit_log import AuditLog


@dataclass(frozen=True)
class TraceEvent:
    """An event. `payload` holds JSON values without secrets, `ms` counts from the creation of the sink."""

    name: str
    payload: dict[str, Any]
    run_id: str = ""
    step_id: str = ""
    ms: int = 0


@dataclass
class TraceSink:
    """Collects events and passes each to `forward`, whose exceptions are ignored."""

    run_id: str = ""
    step_id: str = ""
    forward: Callable[[TraceEvent], None] | None = None
    clock: Callable[[], int] = monotonic_ms
    redactor: Redactor = field(default_factory=Redactor)
    events: list[TraceEvent] = field(default_factory=list, init=False)
    _start: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    def emit(self, name: str, payload: Mapping[str, Any]) -> None:
        """Store a redacted copy of the payload."""
        copy = self.redactor.value(dict(payload))
        safe = copy if isinstance(copy, dict) else {"payload": copy}
        event = TraceEvent(name, safe, self.run_id, self.step_id, self.clock() - self._start)
        self.events.append(event)

        if self.forward is not None:
            with suppress(Exception):
                self.forward(event)


LONGEST_TARGET = 200  # characters of a program or host in a line
_OWN = frozenset({
    "time", "event", "step", "verdict", "arguments_sha256", "signature", "ok", "error_type", "ms", "attempts",
    "repeats", "kind", "reason",
})  # fmt: skip
"""Fields with constants, numbers and hashes, which hold no secrets."""


class RunLog:
    """Writes the lines of one run without secrets; without a log it writes nothing."""

    def __init__(self, log: AuditLog | None, redactor: Redactor, run_id: str) -> None:
        self._log = log
        self._redactor = redactor
        self._run_id = run_id

    def call(self, step: int, item: ToolCall | CallError, verdict: Verdict, result: CallResult) -> None:
        """Write a call, its verdict and its result; of the arguments only their hash and the program or host."""
        error = result.result.error
        ended = {
            "ok": result.result.ok,
            "error_type": "" if error is None else error.code.value,
            "ms": result.ms,
            "attempts": result.attempts,
            "changed": [change.path for change in result.changes],
        }
        self._write("call", {**_call_fields(step, item, verdict), **ended})

    def cut_off(self, step: int, item: ToolCall, verdict: Verdict) -> None:
        """Write a call that began and did not end, so that its effect is unknown."""
        self._write("call", {**_call_fields(step, item, verdict), "ok": False, "error_type": "cut_off"})

    def alert(self, step: int, alert: JsonMap) -> None:
        """Write an alert."""
        self._write("alert", {"step": step, **alert})

    def asked_again(self, step: int, errors: Sequence[ExtractionError], attempts: int) -> None:
        """Write that the model is asked again, after this many unusable replies in a row."""
        self._write("asked_again", {"step": step, "attempts": attempts, "errors": list(map(_problem, errors))})

    def healed(self, step: int, attempts: int) -> None:
        """Write that a reply is usable again, after this many unusable ones."""
        self._write("healed", {"step": step, "attempts": attempts})

    def rescued(self, step: int, formats: Sequence[str]) -> None:
        """Write that calls were read in other formats than the prompt's."""
        self._write("rescued", {"step": step, "formats": list(formats)})

    def repeated(self, step: int, override: OverrideConstraint, *, new: bool) -> None:
        """Write that a repeated action is overridden (`new`), or was called again despite its override."""
        self._write("override" if new else "repeated", {"step": step, **override.model_dump()})

    def ended(self, step: int, outcome: Outcome) -> None:
        """Write the outcome of the turn."""
        record = {
            "step": step,
            "kind": outcome.kind.value,
            "reason": outcome.reason.value,
            "message": outcome.message,
            "diagnostics": list(outcome.diagnostics),
            "changed": list(outcome.changed_files),
            "refused": list(outcome.refused),
        }
        self._write("end", record)

    def _write(self, event: str, record: JsonMap) -> None:
        if self._log is not None:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = {"time": time, "event": event, "run_id": self._run_id, **record}
            safe = self._redactor.value({name: value for name, value in line.items() if name not in _OWN})
            self._log.write({**line, **safe} if isinstance(safe, dict) else {"event": event})


def _call_fields(step: int, item: ToolCall | CallError, verdict: Verdict) -> JsonMap:
    record: JsonMap = {
        "step": step,
        "tool": item.tool,
        "path": verdict.path,
        "target": _target(item),
        "verdict": verdict.kind.value,
        "rule": verdict.rule,
    }
    if verdict.hunks:
        record["hunks"] = list(verdict.hunks)

    if isinstance(item, ToolCall):
        record["arguments_sha256"] = call_fingerprint(item.tool, item.arguments)
    else:
        record["arguments_sha256"] = sha256(item.raw_arguments.encode("utf-8", "surrogatepass")).hexdigest()
        record["problem"] = _problem(item.error)

    return record


def _problem(error: ExtractionError) -> JsonMap:
    return {"kind": error.error_type.name, "line": error.line_number, "details": error.details}


def _target(item: ToolCall | CallError) -> str:
    """Return the program or the host that a call names, or ""."""
    if not isinstance(item, ToolCall):
        return ""

    argv = command_argv(item.tool, item.arguments)
    url = item.arguments.get("url")
    target = ""

    if argv:
        target = argv[0]
    elif isinstance(url, str):
        with suppress(ValueError):
            target = urlsplit(url).hostname or ""

    return target[:LONGEST_TARGET]
