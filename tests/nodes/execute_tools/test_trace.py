from typing import Any

import pytest

from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.execute_tools.trace import TraceEvent, TraceSink


def test_trace_payload_copy() -> None:
    sink = TraceSink()
    payload: dict[str, Any] = {"x": 1, "deep": {"y": [1]}}
    sink.emit("event", payload)
    payload["x"] = 9
    payload["deep"]["y"].append(2)
    assert sink.events[0].payload == {"x": 1, "deep": {"y": [1]}}


def test_events_carry_run_step_and_milliseconds() -> None:
    clock = iter([100, 107, 120])
    sink = TraceSink("run", "step", clock=lambda: next(clock))
    sink.emit("a", {})
    sink.emit("b", {"n": 1})
    assert sink.events == [TraceEvent("a", {}, "run", "step", 7), TraceEvent("b", {"n": 1}, "run", "step", 20)]


def test_events_are_handed_on() -> None:
    seen: list[TraceEvent] = []
    sink = TraceSink(forward=seen.append)
    sink.emit("a", {})
    assert seen == sink.events


def test_a_listener_that_breaks_does_not_break_the_run() -> None:
    def broken(_: TraceEvent) -> None:
        raise ZeroDivisionError

    sink = TraceSink(forward=broken)
    sink.emit("a", {})
    assert [event.name for event in sink.events] == ["a"]


@pytest.mark.parametrize(
    ("payload", "kept"),
    [
        ({"api_key": "abc"}, {"api_key": "***"}),
        ({"text": "key sk-abcdefghijklmnop1234"}, {"text": "key ***"}),
        ({"value": {1}}, {"value": [1]}),
    ],
)
def test_payloads_are_redacted_and_plain(payload: dict[str, Any], kept: dict[str, Any]) -> None:
    sink = TraceSink()
    sink.emit("a", payload)
    assert sink.events[0].payload == kept


def test_a_payload_that_cannot_be_looked_through_is_not_kept() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    sink = TraceSink()
    sink.emit("a", endless)
    assert sink.events[0].payload == {"payload": "***"}


class CountingRedactor(Redactor):
    """Tells how often it was asked."""

    asked = 0

    def value(self, value: Any) -> Any:
        CountingRedactor.asked += 1
        return super().value(value)


def test_the_same_texts_are_looked_through_once_and_each_event_has_its_own_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingRedactor, "asked", 0)
    sink = TraceSink(redactor=CountingRedactor(["xyzzy-4711-plugh"]))
    for name in ("a", "b", "c"):
        sink.emit(name, {"tool_name": "read xyzzy-4711-plugh"})
    sink.events[0].payload["tool_name"] = "changed"
    assert [event.payload["tool_name"] for event in sink.events] == ["changed", "read ***", "read ***"]
    assert CountingRedactor.asked == 1


def test_values_that_are_equal_and_of_different_kinds_stay_apart() -> None:
    sink = TraceSink()
    for value in (1, True, 1.0, "1"):
        sink.emit("a", {"n": value})
    assert [repr(event.payload["n"]) for event in sink.events] == ["1", "True", "1.0", "'1'"]
