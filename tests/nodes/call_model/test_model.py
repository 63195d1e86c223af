import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mendgraph.nodes.call_model.model import Call, GuardedModel, Model
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure, RawCall

RAW_CALL = Call(prompt=Prompt(messages=()), max_output_tokens=10, timeout_s=5.0)


class Breaker:
    """Notes what it is told; `wait` is what it answers."""

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


Ask = Callable[[GuardedModel, Callable[[str], None]], Any]


def ask_here(model: GuardedModel, on_text: Callable[[str], None]) -> Any:
    return model.complete(RAW_CALL, on_text)


def ask_in_loop(model: GuardedModel, on_text: Callable[[str], None]) -> Any:
    return asyncio.run(model.acomplete(RAW_CALL, on_text))


@pytest.fixture(params=[ask_here, ask_in_loop], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Any:
    return request.param


def guarded(result: Any, breaker: Breaker) -> GuardedModel:
    return GuardedModel(Told(result), breaker, lambda text: text.replace("swordfish", "***"), Stream)


def test_reply_closes_the_circuit_and_is_freed_of_secrets(ask: Ask) -> None:
    breaker, seen = Breaker(), list[str]()
    reply = ModelReply(
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
    clean = ModelReply(
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
    assert ask(guarded(reply, breaker), seen.append) == clean
    assert breaker.told == ["admit", "succeeded"]
    assert seen == ["a", "bc", "d."]


def test_open_circuit_asks_nobody(ask: Ask) -> None:
    breaker = Breaker(wait=12.3)
    assert ask(guarded(AssertionError("asked"), breaker), pytest.fail) == ProviderFailure(
        kind=ProviderErrorKind.CONNECTION,
        message="The endpoint failed too often in a row, so it is left alone for 13 s.",
        retry_after_s=12.3,
        sent=False,
    )
    assert breaker.told == ["admit"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ProviderErrorKind.RATE_LIMITED, "abandoned"),
        (ProviderErrorKind.TIMEOUT, "failed"),
        (ProviderErrorKind.INCOMPLETE_STREAM, "failed"),
        (ProviderErrorKind.AUTHENTICATION, "abandoned"),
    ],
)
def test_only_an_outage_counts_against_the_provider(ask: Ask, kind: ProviderErrorKind, told: str) -> None:
    breaker = Breaker()
    failure = ProviderFailure(kind=kind, message="no swordfish", retry_after_s=1.0)
    assert ask(guarded(failure, breaker), lambda _: None) == failure.model_copy(update={"message": "no ***"})
    assert breaker.told == ["admit", told]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_call_that_is_cut_off_says_nothing_of_the_provider(ask: Ask, error: BaseException) -> None:
    breaker = Breaker()
    with pytest.raises(type(error)):
        ask(guarded(error, breaker), lambda _: None)
    assert breaker.told == ["admit", "abandoned"]
