"""Effects are plain values: equal by content and never changed, so that a test may compare whole courses of them."""

from copy import copy
from dataclasses import FrozenInstanceError
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from nodes.call_model.effects import (
    Answer,
    Booked,
    Connect,
    Count,
    Counted,
    Effect,
    Lost,
    Reserve,
    Send,
    Sent,
    Settle,
    Stopped,
    Tell,
    Wait,
)
from nodes.call_model.limits import Entry, Used
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.records import ModelReply, ProviderFailure, StopCause

PROMPT = Prompt(messages=({"role": "user", "content": "hi"},))
ENTRY = Entry(thread="t", model="m", purpose="reply", input_tokens=1, output_tokens=2, cost_usd=None)
EFFECTS: list[Effect] = [
    Connect(model="m", base_url=None),
    Count(prompt=PROMPT),
    Reserve(entry=ENTRY),
    Settle(number=3, used=Used()),
    Send(call=Call(prompt=PROMPT, max_output_tokens=16, timeout_s=1.0)),
    Wait(seconds=1.0),
    Tell(name="model.usage", payload={}),
]
ANSWERS: list[Answer] = [
    Counted(tokens=None),
    Lost(used=Used(), number=0),
    Booked(number=0),
    Sent(result=ModelReply(), seconds=0.0),
    Stopped(reason="by the test"),
]


def test_each_effect_and_each_answer_is_tested_here() -> None:
    assert set(map(type, EFFECTS)) == set(get_args(Effect))
    assert {*map(type, ANSWERS), StopCause, ProviderFailure, type(None)} == set(get_args(Answer))


@pytest.mark.parametrize("value", [*EFFECTS, *ANSWERS])
def test_they_are_equal_by_content_and_cannot_be_changed(value: Any) -> None:
    assert value == copy(value)
    with pytest.raises((ValidationError, FrozenInstanceError)):
        setattr(value, next(iter(type(value).__annotations__)), None)


def test_a_stop_before_a_call_is_no_call() -> None:
    stop = Stopped(reason="by the test")
    assert (stop.sent, stop.seconds, stop.received_characters) == (False, 0.0, 0)
