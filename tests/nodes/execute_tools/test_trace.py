from typing import Any

import pytest

from mendgraph.nodes.execute_tools.trace import TraceEvent, TraceSink


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
