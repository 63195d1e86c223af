"""What a model call does outside of itself, sync or async: connect, book, send, wait, tell. Decides nothing.

Nothing begins once somebody wants the run to stop, and what is under way ends early. A reply that is complete by then
is taken.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, SpendingBook, Used
from mendgraph.nodes.call_model.model import Call, CallDropped, Lost, Model, Sent, Stopped
from mendgraph.nodes.call_model.stop_request import NEARLY_THERE_S, StopRequest
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure, StopCause

Done = TypeVar("Done")

LAST_WORDS_S: Final = 1.0
"""How long a call that is dropped may take to close its connection; after that it is left to the event loop."""


def unnoticed(*_: object) -> None:
    """Emit nothing."""


@dataclass(frozen=True)
class CallServices:
    """How the calls of a turn reach their model, the spending book, and who follows the run.

    Without a `book` nothing is booked: limits of a day are not checked, and a call that is lost with its process is
    not remembered. `limits` are the run's, of which the book checks those of the day and of the account.
    `ready` gives what `connect` does, or None where that takes a while. `on_wait` hears the seconds of a wait and its
    reason, `on_tell` the name of an event and its payload.
    """

    connect: Callable[[ModelChoice], Model | ProviderFailure]
    on_text: Callable[[str], None] = unnoticed
    on_wait: Callable[[float, str], None] = unnoticed
    on_tell: Callable[[str, JsonMap], None] = unnoticed
    book: SpendingBook | None = None
    limits: RunLimits = field(default_factory=RunLimits)
    stop: StopRequest = field(default_factory=StopRequest)
    ready: Callable[[ModelChoice], Model | ProviderFailure | None] = lambda _: None

    async def aconnect(self, choice: ModelChoice) -> Model | ProviderFailure | None:
        """The model, or the failure to find its endpoint; None where a stop comes first."""
        return self.ready(choice) or await _unless(self.stop, asyncio.to_thread(self.connect, choice))

    def reserve(self, entry: Entry, after: int) -> int | Lost | StopCause:
        """Enter a reservation into the book. `after` is the last entry that the thread's counters include.

        Returns the number of the new entry, 0 without a book. `Lost`: the book has newer entries of this thread, which
        a killed process left; nothing is entered. `StopCause`: a limit of the day or the account forbids the call.
        """
        if self.book is None:
            return 0

        usage, last = self.book.lost(entry.thread, after)
        if last > after:
            return Lost(used=usage, number=last)

        return self.book.reserve(entry, self.limits)

    async def areserve(self, entry: Entry, after: int) -> int | Lost | StopCause:
        """Do the same in a thread: a database may let one wait. No entry is forgotten."""
        return await asyncio.shield(asyncio.to_thread(self.reserve, entry, after))

    def settle(self, number: int, used: Used) -> None:
        """Enter what a reserved call has really used."""
        if self.book is not None and number:
            self.book.settle(number, used)

    def send(self, model: Model, call: Call) -> Sent | Stopped:
        """Make the call. Where a stop was requested, nothing but a reply counts."""
        if self.stop.reason:
            return Stopped(reason=self.stop.reason)

        sending = _Sending(self, call)
        result: ModelReply | ProviderFailure | None = None

        try:
            result = model.complete(call.model_copy(update={"stop": self.stop}), sending.pass_on)
        except CallDropped:
            pass
        except Exception as error:  # noqa: BLE001 - see `_broken`
            result = _broken(error)

        return sending.ended(result)

    async def asend(self, model: Model, call: Call) -> Sent | Stopped:
        """Make the call in the running event loop; a call in flight is dropped at once."""
        if self.stop.reason:
            return Stopped(reason=self.stop.reason)

        sending = _Sending(self, call)
        try:
            result = await _unless(self.stop, model.acomplete(call, sending.pass_on))
        except Exception as error:  # noqa: BLE001 - see `_broken`
            result = _broken(error)

        return sending.ended(result)

    def wait(self, seconds: float, reason: str) -> None:
        """Wait for the next try, or until a stop; `reason` is why the last one failed, "" before a first try."""
        if (seconds or reason) and not self.stop.reason:
            self.on_wait(seconds, reason)
            self.stop.wait(seconds)

    async def await_(self, seconds: float, reason: str) -> None:
        """Wait in the running event loop."""
        if (seconds or reason) and not self.stop.reason:
            self.on_wait(seconds, reason)
            await _unless(self.stop, asyncio.sleep(seconds))


class _Sending:
    """One call under way: when it began, and how much of its reply has come."""

    def __init__(self, services: CallServices, call: Call) -> None:
        self._services = services
        self._on_text = unnoticed if call.quiet else services.on_text
        self._started = time.monotonic()
        self._characters = 0

    def pass_on(self, text: str) -> None:
        self._characters += len(text)
        self._on_text(text)

    def ended(self, result: ModelReply | ProviderFailure | None) -> Sent | Stopped:
        seconds = time.monotonic() - self._started
        reason = self._services.stop.reason
        if isinstance(result, ModelReply) or (result is not None and not reason):
            return Sent(result=result, seconds=seconds)

        return Stopped(reason=reason, sent=True, seconds=seconds, received_characters=self._characters)


def _broken(error: Exception) -> ProviderFailure:
    """The failure of a call that raised, such as by whoever hears its text; made again it would raise again."""
    message = f"The model failed: {type(error).__name__}: {str(error)[:300]}"
    return ProviderFailure(kind=ProviderErrorKind.BAD_REQUEST, message=message)


async def _unless(stop: StopRequest, work: Coroutine[Any, Any, Done]) -> Done | None:
    """What the work comes to, or None where a stop comes first; what is done by then is not thrown away.

    Raises:
        RuntimeError: the work cancelled itself.
    """
    working = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
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
