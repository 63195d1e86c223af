import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

import pytest

from mendgraph.nodes.call_model import driver
from mendgraph.nodes.call_model.driver import Hands, OnText, Script, aperform, perform
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.model import Answer, Call, Effect, Model, Sent, Stopped, Update, Wait
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure

NOWHERE = ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message="no such model")
BUSY = ProviderFailure(kind=ProviderErrorKind.RATE_LIMITED, message="busy")
CONNECT = ModelChoice(model="m", base_url=None)


def sending(seed: int) -> Call:
    return Call(prompt=Prompt(messages=()), max_output_tokens=50, timeout_s=1.0, seed=seed)


class Echo(Model):
    """Says the seed of each call; an odd one fails."""

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        await asyncio.sleep(0)
        on_text(str(call.seed))
        return BUSY if (call.seed or 0) % 2 else ModelReply(text=str(call.seed))


def connect(wanted: ModelChoice) -> Echo | ProviderFailure:
    assert wanted.base_url is None
    return NOWHERE if wanted.model == "nowhere" else Echo()


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
    return perform(wanted, Hands(connect, said.append))


def in_a_loop(wanted: Script, said: list[str]) -> Update:
    return asyncio.run(aperform(wanted, Hands(connect, said.append)))


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
        ([ModelChoice(model="nowhere", base_url=None)], [NOWHERE], []),
        ([sending(2)], [None], []),
    ],
    ids=["nothing", "a reply", "a retry", "no endpoint", "unconnected"],
)
def test_effects_are_performed_and_answered(
    how: Callable[[Script, list[str]], Update], effects: list[Effect], answers: list[Answer], said: list[str]
) -> None:
    assert performed(how, effects) == ({"effects": len(effects)}, answers, said)


# --- Somebody wants the run to stop

REPLY = ModelReply(text="whole")
LONG_S = 60.0


class Stopping(Model):
    """A model that says "abc", and while it works somebody wants the run to stop; then it does what `then` does."""

    def __init__(self, stop: StopRequest, then: Callable[[OnText], ModelReply | ProviderFailure]) -> None:
        self._stop, self._then = stop, then

    async def acomplete(self, _call: Call, on_text: OnText) -> ModelReply | ProviderFailure:
        on_text("abc")
        self._stop.ask("by Ctrl-C")
        return self._then(on_text)


def run(asynchronous: bool, wanted: Script, hands: Hands) -> None:
    if asynchronous:
        asyncio.run(aperform(wanted, hands))
    else:
        perform(wanted, hands)


def answered(asynchronous: bool, stop: StopRequest, model: Model, effect: Effect | None = None) -> Answer:
    """How the effect (a call, if none is given) is answered once the model is connected."""
    answers: list[Answer] = []
    wanted = script([CONNECT, effect or sending(2)], answers)
    run(asynchronous, wanted, Hands(lambda _: model, on_wait=lambda _: stop.ask("by Ctrl-C"), stop=stop))
    answer = answers[-1]
    return answer.model_copy(update={"seconds": 0.0}) if isinstance(answer, Sent | Stopped) else answer


WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
DROPPED = Stopped(reason="by Ctrl-C", sent=True, received_characters=3)


@WAYS
@pytest.mark.parametrize("effect", [CONNECT, sending(2), Wait(seconds=LONG_S)])
def test_nothing_begins_once_somebody_wants_the_run_to_stop(asynchronous: bool, effect: Effect) -> None:
    stop = StopRequest()
    stop.ask("by SIGTERM")
    answers: list[Answer] = []

    def unwanted(*_: object) -> Any:
        raise AssertionError("it began")

    run(asynchronous, script([effect], answers), Hands(unwanted, unwanted, unwanted, stop=stop))
    assert answers == [Stopped(reason="by SIGTERM")]


@WAYS
def test_a_reply_that_is_complete_is_not_dropped(asynchronous: bool) -> None:
    stop = StopRequest()
    assert answered(asynchronous, stop, Stopping(stop, lambda _: REPLY)) == Sent(result=REPLY, seconds=0.0)


def broken(*_: object) -> ModelReply:
    raise RuntimeError("the connection is gone")


class Acting(Echo):
    """A model that does what it is given."""

    def __init__(self, act: Callable[[], Awaitable[ModelReply | ProviderFailure]]) -> None:
        self._act = act

    async def acomplete(self, _call: Call, on_text: OnText) -> ModelReply | ProviderFailure:
        on_text("abc")
        return await self._act()


def dropped(asynchronous: bool, at_the_end: Callable[[], ModelReply | ProviderFailure | None]) -> Answer:
    """The answer to a call during which somebody wants the run to stop, and that does this when it is cancelled."""
    stop = StopRequest()

    async def hang() -> ModelReply | ProviderFailure:
        asyncio.get_running_loop().call_soon(stop.ask, "by Ctrl-C")
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            result = at_the_end()
            if result is None:
                raise
            return result
        raise AssertionError("nobody stopped it")

    return answered(asynchronous, stop, Acting(hang))


@WAYS
@pytest.mark.parametrize("at_the_end", [lambda: None, lambda: BUSY, broken])
def test_a_call_is_dropped_at_once(
    asynchronous: bool, at_the_end: Callable[[], ModelReply | ProviderFailure | None]
) -> None:
    assert dropped(asynchronous, at_the_end) == DROPPED


def test_a_call_that_does_not_let_itself_be_dropped_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LAST_WORDS_S", 0.01)
    stop, cancelled = StopRequest(), list[bool]()

    async def stay() -> ModelReply:
        asyncio.get_running_loop().call_soon(stop.ask, "by Ctrl-C")
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            cancelled.append(True)
        return REPLY

    assert answered(True, stop, Acting(stay)) == DROPPED
    assert cancelled == [True, True]  # by us, and by the end of the loop


def test_an_endpoint_that_is_long_in_coming_is_not_waited_for() -> None:
    stop, found = StopRequest(), threading.Event()
    answers: list[Answer] = []

    def slow(*_: object) -> Echo:
        stop.ask("by Ctrl-C")
        found.wait(10)
        return Echo()

    async def hurry() -> None:
        await aperform(script([CONNECT], answers), Hands(slow, stop=stop))
        assert (answers, found.is_set()) == ([Stopped(reason="by Ctrl-C")], False)
        found.set()

    asyncio.run(hurry())


@WAYS
def test_a_call_that_cancels_itself_is_a_failure(asynchronous: bool) -> None:
    async def give_up() -> ModelReply:
        raise asyncio.CancelledError

    answer = answered(asynchronous, StopRequest(), Acting(give_up))
    assert isinstance(answer, Sent)
    assert isinstance(answer.result, ProviderFailure)
    assert "it cancelled itself" in answer.result.message


def test_a_cancelled_run_takes_its_call_along() -> None:
    closed: list[bool] = []

    async def cancelled() -> None:
        called = asyncio.Event()

        async def wait() -> ModelReply:
            called.set()
            try:
                await asyncio.sleep(LONG_S)
            finally:
                closed.append(True)
            return REPLY

        wanted = script([CONNECT, sending(2)], [])
        running = asyncio.ensure_future(aperform(wanted, Hands(lambda _: Acting(wait))))
        await called.wait()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert closed == [True]
