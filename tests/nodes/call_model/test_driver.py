import asyncio
import threading
import time
from collections.abc import Callable, Generator

import pytest
from hypothesis import given, settings, strategies as st

from nodes.call_model import driver
from nodes.call_model.driver import Script, aperform, perform
from nodes.call_model.exchange import Answer, Connect, Effect, Send, Sent, Update, Wait
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure

NOWHERE = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="no such model")
BUSY = ProviderFailure(kind=ProviderErrorKind.RATE_LIMITED, message="busy")
CONNECT = Connect(model="m", base_url=None)


def sending(seed: int) -> Send:
    return Send(call=Call(prompt=Prompt(messages=()), max_output_tokens=50, timeout_s=1.0, seed=seed))


EFFECTS = st.lists(
    st.sampled_from([CONNECT, Connect(model="nowhere", base_url=None), Wait(seconds=0.0)])
    | st.integers(0, 3).map(sending),
    max_size=6,
)


class Echo:
    """Says the seed of each call; an odd one fails."""

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        on_text(str(call.seed))
        return BUSY if (call.seed or 0) % 2 else ModelReply(text=str(call.seed))

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        await asyncio.sleep(0)
        return self.complete(call, on_text)


def connect(model: str | None, base_url: str | None) -> Echo | ProviderFailure:
    assert base_url is None
    return NOWHERE if model == "nowhere" else Echo()


def script(effects: list[Effect], answers: list[Answer]) -> Generator[Effect, Answer, Update]:
    """Wants these effects, keeps what it is answered, and updates the state with how many there were."""
    for effect in effects:
        answer = yield effect
        answers.append(answer.model_copy(update={"seconds": 0.0}) if isinstance(answer, Sent) else answer)
    return {"effects": len(effects)}


def performed(
    how: Callable[[Script, list[str]], Update], effects: list[Effect]
) -> tuple[Update, list[Answer], list[str]]:
    answers: list[Answer] = []
    said: list[str] = []
    return how(script(effects, answers), said), answers, said


def in_this_thread(wanted: Script, said: list[str]) -> Update:
    return perform(wanted, connect, said.append)


def in_a_loop(wanted: Script, said: list[str]) -> Update:
    return asyncio.run(aperform(wanted, connect, said.append))


BOTH = pytest.mark.parametrize("how", [in_this_thread, in_a_loop])


@BOTH
@pytest.mark.parametrize(
    ("effects", "answers", "said"),
    [
        ([], [], []),
        ([CONNECT, sending(2)], [None, Sent(result=ModelReply(text="2"), seconds=0.0)], ["2"]),
        (
            [CONNECT, sending(1), Wait(seconds=0.0), sending(4)],
            [None, Sent(result=BUSY, seconds=0.0), None, Sent(result=ModelReply(text="4"), seconds=0.0)],
            ["1", "4"],
        ),
        ([Connect(model="nowhere", base_url=None)], [NOWHERE], []),
        ([sending(2)], [None], []),
    ],
    ids=["nothing", "a reply", "a retry", "no endpoint", "unconnected"],
)
def test_effects_are_performed_and_answered(
    how: Callable[[Script, list[str]], Update], effects: list[Effect], answers: list[Answer], said: list[str]
) -> None:
    assert performed(how, effects) == ({"effects": len(effects)}, answers, said)


class Faulty:
    """A model of a user's own that breaks its contract."""

    def __init__(self, result: object) -> None:
        self._result = result

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        on_text(str(call.seed))
        if isinstance(self._result, Exception):
            raise self._result
        return self._result  # type: ignore[return-value]  # the point of it

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        return self.complete(call, on_text)


@pytest.mark.parametrize(
    ("result", "said"),
    [(RuntimeError("no"), "RuntimeError: no"), ("text", "TypeError: it gave back a str"), (None, "NoneType")],
)
def test_a_model_that_breaks_its_contract_is_a_failure(result: object, said: str) -> None:
    for how in (perform, lambda *given: asyncio.run(aperform(*given))):
        answers: list[Answer] = []
        how(script([CONNECT, sending(2)], answers), lambda *_: Faulty(result), lambda _: None)
        failure = answers[1].result if isinstance(answers[1], Sent) else None
        assert isinstance(failure, ProviderFailure)
        assert (failure.kind, said in failure.message) == (ProviderErrorKind.BAD_REQUEST, True)


def test_a_wait_is_told_before_it_begins() -> None:
    waits = [Wait(seconds=0.0, reason="busy"), Wait(seconds=0.01, reason="down")]
    told: list[Wait] = []
    perform(script(list(waits), []), connect, lambda _: None, told.append)
    asyncio.run(aperform(script(list(waits), []), connect, lambda _: None, told.append))
    assert told == [*waits, *waits]


@settings(max_examples=30)
@given(EFFECTS)
def test_sync_and_async_do_the_same(effects: list[Effect]) -> None:
    assert performed(in_this_thread, effects) == performed(in_a_loop, effects)


@BOTH
def test_the_seconds_are_the_calls_own(
    how: Callable[[Script, list[str]], Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(driver, "time", _Clock(lambda: next(clock)))
    kept: list[float] = []

    def timed() -> Generator[Effect, Answer, Update]:
        yield CONNECT
        answer = yield sending(2)
        assert isinstance(answer, Sent)
        kept.append(answer.seconds)
        return {}

    assert (how(timed(), []), kept) == ({}, [2.5])


class _Clock:
    """A clock that a test turns, with real sleep."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.sleep = time.sleep


def test_a_wait_lets_the_event_loop_go_on() -> None:
    seen: list[str] = []

    async def beside() -> None:
        await asyncio.sleep(0)
        seen.append("beside")

    async def both() -> None:
        await asyncio.gather(aperform(script([Wait(seconds=0.02)], []), connect, seen.append), beside())
        seen.append("after")

    asyncio.run(both())
    assert seen == ["beside", "after"]


def test_an_endpoint_is_found_outside_of_the_event_loop() -> None:
    threads: list[int] = []

    def slow(model: str | None, base_url: str | None) -> Echo | ProviderFailure:
        threads.append(threading.get_ident())
        return connect(model, base_url)

    asyncio.run(aperform(script([CONNECT], []), slow, print))
    perform(script([CONNECT], []), slow, print)
    assert [thread == threading.get_ident() for thread in threads] == [False, True]
