"""Performs the script of a model call: connects, sends and waits, sync or async. Decides nothing.

Each effect ends early when somebody wants the run to stop, and none begins after that. A reply that is complete by then
is taken. Sync runs make their calls in an event loop as well (`MODEL_LOOP`), where they can be dropped at once.
"""

import asyncio
import atexit
import os
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from mendgraph.nodes.call_model import model as effects
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import RunLimits, SpendingBook
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure

Done = TypeVar("Done")


LAST_WORDS_S: Final = 1.0
"""How long a call that is dropped may take to close its connection; after that it is left to the event loop."""

NEARLY_THERE_S: Final = 0.05
"""How long a stop waits for a call whose reply is as good as there: it is paid for, and need not be asked for again."""


class ModelLoop:
    """Runs coroutines of any thread side by side; no loop of the caller's may be waited in, as in a notebook.

    The loop is the same from the first call on, as connections belong to it; its thread is there while it is needed.
    A coroutine that raises SystemExit or KeyboardInterrupt, which end an event loop, ends this one for nobody else.
    """

    def __init__(self) -> None:
        """There is neither a loop nor a thread before the first call."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._waiting, self._stopped, self._lock, self._process = 0, False, Lock(), os.getpid()

    def run(self, work: Coroutine[Any, Any, Done]) -> Done:
        """Run the coroutine in this loop; where the wait is interrupted, it is cancelled, and has ended then."""
        with self._entered() as loop:
            future = asyncio.run_coroutine_threadsafe(work, loop)
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise

    async def arun(self, work: Coroutine[Any, Any, Done]) -> Done:
        """Run the coroutine in this loop, and wait for it in the caller's, whose cancellation it shares."""
        with self._entered() as loop:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    @contextmanager
    def _entered(self) -> Iterator[asyncio.AbstractEventLoop]:
        if self._process != os.getpid():  # a forked child has none of its parent's threads
            ModelLoop.__init__(self)
        with self._lock:
            loop = self.loop
            if loop is None:
                loop = self.loop = asyncio.new_event_loop()
                atexit.register(loop.close)
            if self._waiting == 0:
                self._stopped = False
                self._thread = Thread(target=self._go_on, args=(loop,), name="mendgraph-model-calls", daemon=True)
                self._thread.start()
            self._waiting += 1
        try:
            yield loop
        finally:
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0 and self._thread is not None:
                    asyncio.run_coroutine_threadsafe(self._wind_down(), loop)
                    self._thread.join()

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopped:
            with suppress(SystemExit, KeyboardInterrupt):  # also given to whoever waits for the coroutine
                loop.run_forever()

    async def _wind_down(self) -> None:
        """Stop the event loop, once what nobody waits for any more has tidied up."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            if not other.cancelling():
                other.cancel()
        if others:
            await asyncio.wait(others, timeout=LAST_WORDS_S)
        self._stopped = True
        asyncio.get_running_loop().stop()


MODEL_LOOP = ModelLoop()
"""The one of this process."""


Script = Generator[effects.Effect, effects.Answer, effects.Update]
OnText = Callable[[str], None]


def unnoticed(*_: object) -> None:
    """Emit nothing."""


@dataclass(frozen=True)
class Hands:
    """What performs the effects of a script, and who hears of them.

    Without a `book` nothing is booked: limits of a day are not checked, and a call that is lost with its process is
    not remembered. `limits` are the run's, of which the book checks those of the day and of the account.
    `ready` gives what `connect` does, or None where that takes a while.
    """

    connect: Callable[[ModelChoice], effects.Model | ProviderFailure]
    on_text: OnText = unnoticed
    on_wait: Callable[[effects.Wait], None] = unnoticed
    on_tell: Callable[[str, JsonMap], None] = unnoticed
    book: SpendingBook | None = None
    limits: RunLimits = field(default_factory=RunLimits)
    stop: StopRequest = field(default_factory=StopRequest)
    ready: Callable[[ModelChoice], effects.Model | ProviderFailure | None] = lambda _: None


def perform(script: Script, hands: Hands) -> effects.Update:
    """Run a script to its end and return the update that it decided on. Blocks while it sends and waits."""
    model: effects.Model | None = None
    answer: effects.Answer = None
    stop = hands.stop
    while True:
        try:
            effect = script.send(answer)
        except StopIteration as end:
            return dict(end.value)
        answer = None
        if isinstance(effect, effects.Settle | effects.Emit):  # also once somebody wants the run to stop
            _report(hands, effect)
        elif stop.reason:
            answer = effects.Stopped(reason=stop.reason)
        elif isinstance(effect, ModelChoice):
            found = hands.connect(effect)
            model, answer = (None, found) if isinstance(found, ProviderFailure) else (found, None)
        elif isinstance(effect, effects.Reserve):
            answer = reserve(hands.book, hands.limits, effect)
        elif isinstance(effect, effects.Call) and model is not None:
            answer = MODEL_LOOP.run(_asend(model, effect, hands))
        elif isinstance(effect, effects.Wait):
            hands.on_wait(effect)
            stop.wait(effect.seconds)
            answer = effects.Stopped(reason=stop.reason) if stop.reason else None


async def aperform(script: Script, hands: Hands) -> effects.Update:
    """Do the same without blocking the event loop. A call in flight is dropped at once."""
    model: effects.Model | None = None
    answer: effects.Answer = None
    stop = hands.stop
    while True:
        try:
            effect = script.send(answer)
        except StopIteration as end:
            return dict(end.value)
        answer = None
        if isinstance(effect, effects.Settle | effects.Emit):
            _report(hands, effect)
        elif stop.reason:
            answer = effects.Stopped(reason=stop.reason)
        elif isinstance(effect, ModelChoice):
            found = hands.ready(effect) or await _unless(stop, asyncio.to_thread(hands.connect, effect))
            model, answer = (None, found) if isinstance(found, ProviderFailure) else (found, None)
            if found is None:
                answer = effects.Stopped(reason=stop.reason)
        elif isinstance(effect, effects.Reserve):  # a database may let one wait; no entry is forgotten
            answer = await asyncio.shield(asyncio.to_thread(reserve, hands.book, hands.limits, effect))
        elif isinstance(effect, effects.Call) and model is not None:
            answer = await _asend(model, effect, hands)
        elif isinstance(effect, effects.Wait):
            hands.on_wait(effect)
            await _unless(stop, asyncio.sleep(effect.seconds))
            answer = effects.Stopped(reason=stop.reason) if stop.reason else None


def _report(hands: Hands, effect: effects.Settle | effects.Emit) -> None:
    if isinstance(effect, effects.Emit):
        hands.on_tell(effect.name, effect.payload)
    elif hands.book is not None and effect.number:
        hands.book.settle(effect.number, effect.used)


def reserve(book: SpendingBook | None, limits: RunLimits, effect: effects.Reserve) -> effects.Answer:
    """Enter a reservation into the book, if it fits; or what the thread's counters lack of it."""
    if book is None:
        return 0
    used, last = book.lost(effect.entry.thread, effect.after)
    if last > effect.after:
        return effects.Lost(used=used, number=last)
    return book.reserve(effect.entry, limits)


async def _asend(model: effects.Model, call: effects.Call, hands: Hands) -> effects.Sent | effects.Stopped:
    """How the call ended; where a stop was asked for, nothing but a reply counts."""
    stop, on_text = hands.stop, unnoticed if call.quiet else hands.on_text
    started, characters = time.monotonic(), 0
    result: ModelReply | ProviderFailure | None = None

    def pass_on(text: str) -> None:
        nonlocal characters
        characters += len(text)
        on_text(text)

    try:
        result = await _unless(stop, model.acomplete(call, pass_on))
    except Exception as error:  # noqa: BLE001 - such as one of whoever hears its text; made again it would raise again
        message = f"The model failed: {type(error).__name__}: {str(error)[:300]}"
        result = ProviderFailure(kind=ProviderErrorKind.BAD_REQUEST, message=message)
    seconds = time.monotonic() - started
    if isinstance(result, ModelReply) or (result is not None and not stop.reason):
        return effects.Sent(result=result, seconds=seconds)
    return effects.Stopped(reason=stop.reason, sent=True, seconds=seconds, received_characters=characters)


async def _unless(stop: StopRequest, work: Coroutine[Any, Any, Done]) -> Done | None:
    """What the work comes to, or None where a stop comes first; what is done by then is not thrown away.

    Raises:
        RuntimeError: the work cancelled itself.
    """
    working, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    def ring() -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile, and with it whoever waited
            loop.call_soon_threadsafe(end)

    working.add_done_callback(end)
    try:
        with stop.told(ring):
            await over
        if not working.done():
            await asyncio.wait({working}, timeout=NEARLY_THERE_S)
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait({working}, timeout=LAST_WORDS_S)
    if not working.done() or working.cancelled():
        if stop.reason:
            return None
        raise RuntimeError("it cancelled itself")
    return working.result()
