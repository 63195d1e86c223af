import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from mendgraph.nodes.call_model import services as services_module
from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.call_model.model import Call, CallDropped, CompletedCall, Model, StoppedCall
from mendgraph.nodes.call_model.node import acall_model, call_model
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import ModelReply, Profile, ProviderErrorKind, ProviderFailure
from tests.row_tables import rows

CALL = Call(prompt=Prompt(messages=()), max_output_tokens=50, timeout_s=1.0)
REPLY = ModelReply(text="whole")
BUSY = ProviderFailure(kind=ProviderErrorKind.RATE_LIMITED, message="busy")
LONG_S = 60.0

Result = ModelReply | ProviderFailure
OnText = Callable[[str], None]
WAYS = rows(False, True)


class Acting(Model):
    """A model that streams "abc" and then calls a function of the test."""

    def __init__(self, act: Callable[[Call], Result], wait: Callable[[], Awaitable[Result]] | None = None) -> None:
        self._act, self._wait = act, wait

    def complete(self, call: Call, on_text: OnText) -> Result:
        on_text("abc")
        return self._act(call)

    async def acomplete(self, call: Call, on_text: OnText) -> Result:
        on_text("abc")
        return await self._wait() if self._wait else self._act(call)


def refuse_connection(_: ModelChoice) -> Any:
    raise AssertionError("nothing is connected")


def send_call(in_loop: bool, model: Model, services: CallServices) -> CompletedCall | StoppedCall:
    """The result of a call, without its time."""
    answer = asyncio.run(services.asend(model, CALL)) if in_loop else services.send(model, CALL)
    return answer.model_copy(update={"seconds": 0.0})


@WAYS
def test_exception_of_the_model_is_a_failure(in_loop: bool) -> None:
    def broken(_: Call) -> Result:
        raise RuntimeError("the connection is gone")

    answer = send_call(in_loop, Acting(broken), CallServices(refuse_connection))
    assert isinstance(answer, CompletedCall)
    assert isinstance(answer.result, ProviderFailure)
    assert answer.result.message == "The model failed: RuntimeError: the connection is gone"


# --- A stop request

DROPPED = StoppedCall(reason="by Ctrl-C", sent=True, received_characters=3)


@WAYS
def test_nothing_is_sent_after_a_stop_request(in_loop: bool) -> None:
    stop = StopRequest()
    stop.ask("by SIGTERM")
    services = CallServices(refuse_connection, stop=stop)

    def unwanted(_: Call) -> Result:
        raise AssertionError("it began")

    assert send_call(in_loop, Acting(unwanted), services) == StoppedCall(reason="by SIGTERM")
    waiting = PendingCall(attempt=1, wait_s=LONG_S, reason="busy")
    state = CallModelState(messages=[], profile=Profile(), spending=Spending(), pending_call=waiting)
    if in_loop:
        update = asyncio.run(acall_model(state, CallSettings(), (), services))
    else:
        update = call_model(state, CallSettings(), (), services)
    assert (update["stop"].message, update["spending"]) == ("The run was stopped by SIGTERM.", Spending())


@WAYS
def test_complete_reply_is_kept_despite_a_stop(in_loop: bool) -> None:
    stop = StopRequest()

    def act(_: Call) -> Result:
        stop.ask("by Ctrl-C")
        return REPLY

    assert send_call(in_loop, Acting(act), CallServices(refuse_connection, stop=stop)) == CompletedCall(
        result=REPLY, seconds=0.0
    )


def test_sync_call_sees_the_stop_and_is_dropped() -> None:
    def act(call: Call) -> Result:
        assert call.stop is not None
        call.stop.ask("by Ctrl-C")
        raise CallDropped

    assert send_call(False, Acting(act), CallServices(refuse_connection)) == DROPPED


@WAYS
def test_wait_ends_on_a_stop_request(in_loop: bool) -> None:
    stop, waits = StopRequest(), list[str]()

    def on_wait(_: float, reason: str) -> None:
        waits.append(reason)
        stop.ask("by Ctrl-C")

    services = CallServices(refuse_connection, on_wait=on_wait, stop=stop)
    if in_loop:
        asyncio.run(services.wait_async(LONG_S, "busy"))
    else:
        services.wait(LONG_S, "busy")
    assert waits == ["busy"]


@rows(None, BUSY, RuntimeError("gone"))
def test_async_call_is_cancelled_at_once(last_words: ProviderFailure | Exception | None) -> None:
    stop = StopRequest()

    async def hang() -> Result:
        asyncio.get_running_loop().call_soon(stop.ask, "by Ctrl-C")
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            if isinstance(last_words, Exception):
                raise last_words from None
            if last_words is None:
                raise
            return last_words
        raise AssertionError("nobody stopped it")

    assert send_call(True, Acting(lambda _: REPLY, hang), CallServices(refuse_connection, stop=stop)) == DROPPED


def test_async_call_that_ignores_cancellation_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_module, "CANCEL_GRACE_S", 0.01)
    stop, cancelled = StopRequest(), list[bool]()

    async def stay() -> Result:
        asyncio.get_running_loop().call_soon(stop.ask, "by Ctrl-C")
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            cancelled.append(True)
        return REPLY

    assert send_call(True, Acting(lambda _: REPLY, stay), CallServices(refuse_connection, stop=stop)) == DROPPED
    assert cancelled == [True, True]  # by us, and by the end of the loop


def test_slow_connection_is_not_waited_for_after_a_stop() -> None:
    stop, released = StopRequest(), threading.Event()

    def slow(_: ModelChoice) -> Model:
        stop.ask("by Ctrl-C")
        released.wait(10)
        return Acting(lambda _: REPLY)

    async def hurry() -> None:
        assert await CallServices(slow, stop=stop).aconnect(ModelChoice(model="m")) is None
        assert not released.is_set()
        released.set()

    asyncio.run(hurry())


def test_call_that_cancels_itself_is_a_failure() -> None:
    async def give_up() -> Result:
        raise asyncio.CancelledError

    answer = send_call(True, Acting(lambda _: REPLY, give_up), CallServices(refuse_connection))
    assert isinstance(answer, CompletedCall)
    assert isinstance(answer.result, ProviderFailure)
    assert "it cancelled itself" in answer.result.message


def test_cancelled_run_cancels_its_call() -> None:
    closed: list[bool] = []

    async def cancelled() -> None:
        called = asyncio.Event()

        async def wait() -> Result:
            called.set()
            try:
                await asyncio.sleep(LONG_S)
            finally:
                closed.append(True)
            return REPLY

        running = asyncio.ensure_future(CallServices(refuse_connection).asend(Acting(lambda _: REPLY, wait), CALL))
        await called.wait()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert closed == [True]
