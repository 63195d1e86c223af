import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import nullcontext
from typing import Any

import pytest

from nodes.call_model.failures import BrokenConnectionError
from nodes.call_model.told_events import atold, told
from nodes.records import JsonMap


class Held:
    """Shows what is whole up to the last space, without the word that is secret."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, piece: str) -> str:
        whole, space, self.held = (self.held + piece).rpartition(" ")
        return (whole + space).replace("swordfish", "***")

    def close(self) -> str:
        rest, self.held = self.held, ""
        return rest.replace("swordfish", "***")


def heard(together: list[list[JsonMap]], error: Exception | None, *, asynchronous: bool) -> list[list[JsonMap]]:
    came: list[list[JsonMap]] = []

    def read() -> Generator[list[JsonMap]]:
        yield from together
        if error:
            raise error

    async def aread() -> AsyncGenerator[list[JsonMap]]:
        for events in read():
            yield events

    async def later() -> None:
        async for events in atold(aread(), Held):
            came.append(events)  # noqa: PERF401 - what came before an error is to be seen

    def now() -> None:
        for events in told(read(), Held):
            came.append(events)  # noqa: PERF402 - as above

    with pytest.raises(type(error)) if error else nullcontext():
        if asynchronous:
            asyncio.run(later())
        else:
            now()
    return came


def delta(**fields: Any) -> JsonMap:
    return {"choices": [{"index": 3, "delta": fields}]}


def call(arguments: str, **fields: Any) -> JsonMap:
    return {"function": {"arguments": arguments}, **fields}


def texts(events: list[list[JsonMap]], name: str) -> str:
    deltas = [event["choices"][0]["delta"] for each in events for event in each if event["choices"]]
    return "".join(each.get(name) or "" for each in deltas)


def arguments(events: list[list[JsonMap]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for event in (event for each in events for event in each if event["choices"]):
        for part in event["choices"][0]["delta"].get("tool_calls") or ():
            found[part["index"]] = found.get(part["index"], "") + part["function"]["arguments"]
    return found


REPLY = [
    [delta(role="tool", content="it is sword"), delta(content="fish and sword", reasoning_content="hm, sword")],
    [delta(reasoning="fish"), delta(content="fish", refusal="no swordfish", function_call={"name": "swordfish"})],
    [delta(tool_calls=[call("[1, sword", index=0, id="a swordfish"), call("sword", index=1)])],
    [delta(tool_calls=[call("fish]", index=0)]), delta(tool_calls=[call("fish", index=1)])],
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", [None, BrokenConnectionError()])
def test_every_text_is_freed_of_secrets_that_span_its_pieces(error: Exception | None, asynchronous: bool) -> None:
    """Also where the reply breaks off."""
    events = heard(REPLY, error, asynchronous=asynchronous)
    assert "fish" not in repr(events)
    assert texts(events, "content") == "it is *** and ***"
    assert texts(events, "reasoning_content") == "hm, ***"
    assert texts(events, "refusal") == "no ***"
    assert arguments(events) == {0: "[1, ***]", 1: "***"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_is_heard_that_was_not_looked_through(asynchronous: bool) -> None:
    event = {"id": "x", "model": "m swordfish", "usage": {"prompt_tokens": 3}, "more": "swordfish"}
    choice = {"index": 3, "delta": {"content": "hi "}, "finish_reason": "stop", "logprobs": {"content": ["swordfish"]}}
    [[first, second], rest] = heard([[{**event, "choices": [choice]}, event]], None, asynchronous=asynchronous)
    said = {"content": "hi ", "reasoning_content": "", "refusal": ""}
    frame = {"model": "m ***", "system_fingerprint": None, "service_tier": None, "usage": {"prompt_tokens": 3}}
    assert first == {**frame, "choices": [{"index": 0, "delta": said, "finish_reason": "stop"}]}
    assert (second, rest) == ({**frame, "choices": []}, [])


def test_without_secrets_to_take_out_texts_are_told_as_they_come() -> None:
    def read() -> Generator[list[JsonMap]]:
        yield [delta(content="a")]
        yield [delta(content="b", tool_calls=[{"index": "0", "function": {"name": "f"}}])]

    events = list(told(read(), None))
    assert [texts([each], "content") for each in events] == ["a", "b", ""]
    assert arguments(events) == {0: ""}


def test_an_end_that_comes_early_closes_the_reading() -> None:
    closed: list[bool] = []

    def read() -> Generator[list[JsonMap]]:
        try:
            yield [delta(content="a")]
        finally:
            closed.append(True)

    events = told(read(), None)
    next(events)
    events.close()
    assert closed == [True]
