"""What happened, event by event. Source: spec 5; the names of the engine's events are listed in `engine`."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nodes.execute_tools.environment.deadline import monotonic_ms
from nodes.execute_tools.redact import Redactor


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

    def __post_init__(self) -> None:
        self._start = self.clock()

    def emit(self, name: str, payload: Mapping[str, Any]) -> None:
        """Keep a redacted copy of the payload: changing it afterwards changes no event."""
        copy = self.redactor.value(dict(payload))
        safe = copy if isinstance(copy, dict) else {"payload": copy}
        event = TraceEvent(name, safe, self.run_id, self.step_id, self.clock() - self._start)
        self.events.append(event)
        if self.forward is not None:
            with suppress(Exception):
                self.forward(event)
