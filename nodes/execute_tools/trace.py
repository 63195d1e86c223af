"""What happened, event by event. Source: spec 5; the names of the engine's events are listed in `engine`."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mendgraph.nodes.execute_tools.files.deadline import monotonic_ms
from mendgraph.nodes.execute_tools.secrets.redact import Redactor


@dataclass(frozen=True)
class TraceEvent:
    """One event. `payload` holds JSON values without secrets, `ms` counts from the making of the sink."""

    name: str
    payload: dict[str, Any]
    run_id: str = ""
    step_id: str = ""
    ms: int = 0


@dataclass
class TraceSink:
    """Collects events and hands each on to `forward`, whose failures never reach the run."""

    run_id: str = ""
    step_id: str = ""
    forward: Callable[[TraceEvent], None] | None = None
    clock: Callable[[], int] = monotonic_ms
    redactor: Redactor = field(default_factory=Redactor)
    events: list[TraceEvent] = field(default_factory=list, init=False)
    _start: int = field(init=False, repr=False)
    _safe: dict[tuple[tuple[str, str], ...], dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    def emit(self, name: str, payload: Mapping[str, Any]) -> None:
        """Keep a redacted copy of the payload: changing it afterwards changes no event."""
        event = TraceEvent(name, self._copied(payload), self.run_id, self.step_id, self.clock() - self._start)
        self.events.append(event)
        if self.forward is not None:
            with suppress(Exception):
                self.forward(event)

    def _copied(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The redacted copy. Most events say a tool's name and no more: the same texts are looked through once."""
        said = tuple(payload.items())
        if not all(type(value) is str for _, value in said):  # 1 and True are equal, and two values
            return self._redacted(payload)
        safe = self._safe.get(said)
        if safe is None:
            safe = self._safe[said] = self._redacted(payload)
        return dict(safe)

    def _redacted(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        copy = self.redactor.value(dict(payload))
        return copy if isinstance(copy, dict) else {"payload": copy}
