import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mendgraph.nodes.call_model.model import Call, GuardedModel, Model
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import ModelReply, ProviderErrorKind as Kind, ProviderFailure, RawCall
from tests.row_tables import rows

RAW_CALL = Call(prompt=Prompt(messages=()), max_output_tokens=10, timeout_s=5.0)


class Breaker:
    """Records its reports; `wait` is its answer."""

    def __init__(self, wait: float = 0.0) -> None:
        self.wait, self.told = wait, list[str]()

    def admit(self) -> float:
        self.told.append("admit")
        return self.wait

    def succeeded(self) -> None:
        self.told.append("succeeded")

    def failed(self) -> None:
        self.told.append("failed")

    def abandoned(self) -> None:
        self.told.append("abandoned")


class Stream:
    """Holds back the last character."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, piece: str) -> str:
        text = self.held + piece
        self.held = text[-1:]
        return text[:-1]

    def close(self) -> str:
        return f"{self.held}."


class Told(Model):
    def __init__(self, result: Any) -> None:
        self.result = result

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> Any:
        return self.complete(call, on_text)

    def complete(self, call: Call, on_text: Callable[[str], None]) -> Any:
        assert call.model_copy(update={"scrub": None}) == RAW_CALL
        assert call.scrub is Stream
        for piece in ("ab", "cd"):
            on_text(piece)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def ask(in_loop: bool, result: Any, breaker: Breaker, on_text: Callable[[str], None] = lambda _: None) -> Any:
    model = GuardedModel(Told(result), breaker, lambda text: text.replace("swordfish", "***"), Stream)
    return asyncio.run(model.acomplete(RAW_CALL, on_text)) if in_loop else model.complete(RAW_CALL, on_text)


REPLY = ModelReply(
    text="it is swordfish",
    refusal="swordfish",
    reasoning="hm, swordfish",
    calls=(
        RawCall(call_id="1", tool="t", arguments='{"a": "swordfish"}'),
        RawCall(call_id="a swordfish", tool="swordfish", arguments="{}"),
    ),
    model="m swordfish",
    provider={"content": [{"type": "thinking", "thinking": "swordfish", "signature": "s"}, {"text": "swordfish"}]},
)
CLEAN = ModelReply(
    text="it is ***",
    refusal="***",
    reasoning="hm, ***",
    calls=(
        RawCall(call_id="1", tool="t", arguments='{"a": "***"}'),
        RawCall(call_id="redacted_2", tool="redacted", arguments="{}"),  # endpoints take no stars in them
    ),
    model="m ***",
    provider={"content": [{"text": "***"}]},  # a block that was sealed would be refused
)


@rows(False, True)
def test_reply_closes_the_circuit_and_is_redacted(in_loop: bool) -> None:
    breaker, seen = Breaker(), list[str]()
    assert ask(in_loop, REPLY, breaker, seen.append) == CLEAN
    assert breaker.told == ["admit", "succeeded"]
    assert seen == ["a", "bc", "d."]


@rows(False, True)
def test_open_circuit_sends_no_request(in_loop: bool) -> None:
    breaker = Breaker(wait=12.3)
    assert ask(in_loop, AssertionError("asked"), breaker, pytest.fail) == ProviderFailure(
        kind=Kind.CONNECTION,
        message="The endpoint failed too often in a row, so it is not called for 13 s.",
        retry_after_s=12.3,
        sent=False,
    )
    assert breaker.told == ["admit"]


@rows(False, True)
@rows((Kind.RATE_LIMITED, "abandoned"), (Kind.TIMEOUT, "failed"), (Kind.INCOMPLETE_STREAM, "failed"))
def test_only_an_outage_counts_as_a_failure_of_the_provider(kind: Kind, report: str, in_loop: bool) -> None:
    breaker = Breaker()
    failure = ProviderFailure(kind=kind, message="no swordfish", retry_after_s=1.0)
    assert ask(in_loop, failure, breaker) == failure.model_copy(update={"message": "no ***"})
    assert breaker.told == ["admit", report]


@rows(False, True)
@rows(RuntimeError("broken"), KeyboardInterrupt())
def test_interrupted_call_does_not_count_against_the_provider(error: BaseException, in_loop: bool) -> None:
    breaker = Breaker()
    with pytest.raises(type(error)):
        ask(in_loop, error, breaker)
    assert breaker.told == ["admit", "abandoned"]
