"""Performs the script of a model call: connects, sends and waits. Decides nothing.

Each effect ends early when somebody wants the run to stop, and none begins after that. A reply that is complete by then
is taken. The script of a sync run is performed in an event loop as well (`model_loop`), where a call can be dropped.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from mendgraph.nodes.call_model.effects import (
    Answer,
    Booked,
    Connect,
    Effect,
    Lost,
    Reserve,
    Send,
    Sent,
    Settle,
    Stopped,
    Tell,
    Update,
    Wait,
)
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.call_model.limits import SpendingBook
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.call_model.model_loop import MODEL_LOOP
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure, StopCause

Script = Generator[Effect, Answer, Update]
Connector = Callable[[Connect], Model | ProviderFailure]
OnText = Callable[[str], None]
OnWait = Callable[[Wait], None]
OnTell = Callable[[str, JsonMap], None]
Result = TypeVar("Result")

LAST_WORDS_S: Final = 1.0
"""How long a call that is dropped may take to close its connection; after that it is left to the event loop."""


NEARLY_THERE_S: Final = 0.05
"""How long a stop waits for a call whose reply is as good as there: it is paid for, and need not be asked for again."""


class Stop(Protocol):
    """Somebody's wish that the run ends."""

    @property
    def reason(self) -> str:
        """Who wants it, as in "by Ctrl-C"; "" while nobody does."""
        ...

    async def asked(self) -> None:
        """Wait in the event loop until somebody wants it."""
        ...


class Never:
    """Nobody ever wants it."""

    reason = ""

    async def asked(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()


NEVER: Final = Never()


def unnoticed(*_: object) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Hands:
    """What performs the effects of a script, and who hears of them.

    Without a `book` nothing is booked: limits of a day are not checked, and a call that is lost with its process is
    not remembered. `limits` are the run's, of which the book checks those of the day and of the account.
    """

    connect: Connector
    on_text: OnText = unnoticed
    on_wait: OnWait = unnoticed
    on_tell: OnTell = unnoticed
    book: SpendingBook | None = None
    limits: RunLimits = field(default_factory=RunLimits)
    stop: Stop = NEVER


def perform(script: Script, hands: Hands) -> Update:
    """Run a script to its end and return the update that it decided on. Blocks while it sends and waits."""
    return MODEL_LOOP.run(aperform(script, hands))


async def aperform(script: Script, hands: Hands) -> Update:
    """Do the same without blocking the event loop. A call in flight is dropped at once where the run is stopped."""
    model: Model | ProviderFailure | None = None
    answer: Answer = None
    stop = hands.stop
    while True:
        try:
            effect = script.send(answer)
        except StopIteration as end:
            return dict(end.value)
        answer = None
        if stop.reason and not isinstance(effect, Settle | Tell):
            answer = Stopped(reason=stop.reason)
        elif isinstance(effect, Reserve | Settle | Tell):
            answer = await _written(hands, effect)
        elif isinstance(effect, Connect):
            model = await _unless(stop, asyncio.to_thread(hands.connect, effect))
            if model is None:
                answer = Stopped(reason=stop.reason)
            elif isinstance(model, ProviderFailure):
                answer = model
        elif isinstance(effect, Send) and model is not None and not isinstance(model, ProviderFailure):
            answer = await _asend(model, effect.call, unnoticed if effect.call.quiet else hands.on_text, stop)
        elif isinstance(effect, Wait):
            hands.on_wait(effect)
            await _unless(stop, asyncio.sleep(effect.seconds))
            answer = Stopped(reason=stop.reason) if stop.reason else None


async def _written(hands: Hands, effect: Reserve | Settle | Tell) -> Answer:
    """Reservations in a thread, as a database may let one wait; it is waited for, so that no entry is forgotten."""
    if isinstance(effect, Tell):
        hands.on_tell(effect.name, effect.payload)
    elif isinstance(effect, Settle):
        if hands.book is not None and effect.number:
            hands.book.settle(effect.number, effect.used)
    elif hands.book is None:
        return Booked(number=0)
    else:
        return await asyncio.shield(asyncio.to_thread(_reserved, hands.book, effect, hands.limits))
    return None


def _reserved(book: SpendingBook, effect: Reserve, limits: RunLimits) -> Answer:
    used, last = book.lost(effect.entry.thread, effect.after)
    if last > effect.after:
        return Lost(used=used, number=last)
    entered = book.reserve(effect.entry, limits)
    return entered if isinstance(entered, StopCause) else Booked(number=entered)


async def _asend(model: Model, call: Call, on_text: OnText, stop: Stop) -> Sent | Stopped:
    """How the call ended; where a stop was asked for, nothing but a reply counts."""
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
        return Sent(result=result, seconds=seconds)
    return Stopped(reason=stop.reason, sent=True, seconds=seconds, received_characters=characters)


async def _unless(stop: Stop, work: Coroutine[Any, Any, Result]) -> Result | None:
    """What the work comes to, or None where a stop comes first; what is done by then is not thrown away.

    Raises:
        RuntimeError: the work cancelled itself.
    """
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.asked())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait({working}, timeout=NEARLY_THERE_S)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working}, timeout=LAST_WORDS_S)
    if not working.done() or working.cancelled():
        if stop.reason:
            return None
        raise RuntimeError("it cancelled itself")
    return working.result()
