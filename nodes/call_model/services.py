"""The effects of a model call, sync and async: connect, reserve, send, wait, report.

After a stop request nothing begins, and what is running ends early; a reply that is complete by then is kept.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, SpendingBook, Used
from mendgraph.nodes.call_model.model import Call, CallDropped, CompletedCall, Model, StoppedCall, UnsettledUsage
from mendgraph.nodes.call_model.stop_request import REPLY_GRACE_S, StopRequest
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure, StopCause

Result = TypeVar("Result")

CANCEL_GRACE_S: Final = 1.0
"""How long a cancelled call may take to close its connection before it is abandoned."""


def ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class CallServices:
    """The connections, callbacks and spending book for the calls of a turn.

    Without a `book`, limits per day and per account are not checked, and calls of a crashed process are not charged.
    `ready` returns what `connect` would, or None if that would block. `on_wait` receives the seconds and the reason of
    a wait, `on_event` the name of an event and its payload.
    """

    connect: Callable[[ModelChoice], Model | ProviderFailure]
    on_text: Callable[[str], None] = ignore
    on_wait: Callable[[float, str], None] = ignore
    on_event: Callable[[str, JsonMap], None] = ignore
    book: SpendingBook | None = None
    limits: RunLimits = field(default_factory=RunLimits)
    stop: StopRequest = field(default_factory=StopRequest)
    ready: Callable[[ModelChoice], Model | ProviderFailure | None] = lambda _: None

    async def aconnect(self, choice: ModelChoice) -> Model | ProviderFailure | None:
        """Return the model, or the failure to connect; None if a stop comes first."""
        return self.ready(choice) or await _await_unless_stopped(self.stop, asyncio.to_thread(self.connect, choice))

    def reserve(self, entry: Entry, after: int) -> int | UnsettledUsage | StopCause:
        """Enter a reservation into the book, and return its number, or 0 without a book.

        `after` is the last entry in the thread's counters. `UnsettledUsage` means that a crashed process left newer
        entries, and nothing is entered; `StopCause` that a limit of the day or the account forbids the call.
        """
        if self.book is None:
            return 0

        usage, last = self.book.lost(entry.thread, after)
        if last > after:
            return UnsettledUsage(used=usage, number=last)

        return self.book.reserve(entry, self.limits)

    async def areserve(self, entry: Entry, after: int) -> int | UnsettledUsage | StopCause:
        """Do the same in a thread, as a database may block; a cancelled task leaves no entry unknown."""
        return await asyncio.shield(asyncio.to_thread(self.reserve, entry, after))

    def settle(self, number: int, used: Used) -> None:
        """Enter the actual usage of a reserved call."""
        if self.book is not None and number:
            self.book.settle(number, used)

    def send(self, model: Model, call: Call) -> CompletedCall | StoppedCall:
        """Make the call. After a stop request only a complete reply counts."""
        if self.stop.reason:
            return StoppedCall(reason=self.stop.reason)

        running = _RunningCall(self, call)
        result: ModelReply | ProviderFailure | None = None

        try:
            result = model.complete(call.model_copy(update={"stop": self.stop}), running.pass_on)
        except CallDropped:
            pass
        except Exception as error:  # noqa: BLE001 - see `_failure_of`
            result = _failure_of(error)

        return running.finish(result)

    async def asend(self, model: Model, call: Call) -> CompletedCall | StoppedCall:
        """Make the call in the running event loop; a stop request cancels it."""
        if self.stop.reason:
            return StoppedCall(reason=self.stop.reason)

        running = _RunningCall(self, call)
        try:
            result = await _await_unless_stopped(self.stop, model.acomplete(call, running.pass_on))
        except Exception as error:  # noqa: BLE001 - see `_failure_of`
            result = _failure_of(error)

        return running.finish(result)

    def wait(self, seconds: float, reason: str) -> None:
        """Wait for the next attempt, or until a stop; `reason` is the failure of the last attempt, if any."""
        if (seconds or reason) and not self.stop.reason:
            self.on_wait(seconds, reason)
            self.stop.wait(seconds)

    async def wait_async(self, seconds: float, reason: str) -> None:
        """Wait in the running event loop."""
        if (seconds or reason) and not self.stop.reason:
            self.on_wait(seconds, reason)
            await _await_unless_stopped(self.stop, asyncio.sleep(seconds))


class _RunningCall:
    """A running call: its start, and the characters received so far."""

    def __init__(self, services: CallServices, call: Call) -> None:
        self._services = services
        self._on_text = ignore if call.quiet else services.on_text
        self._started = time.monotonic()
        self._characters = 0

    def pass_on(self, text: str) -> None:
        self._characters += len(text)
        self._on_text(text)

    def finish(self, result: ModelReply | ProviderFailure | None) -> CompletedCall | StoppedCall:
        seconds = time.monotonic() - self._started
        reason = self._services.stop.reason
        if isinstance(result, ModelReply) or (result is not None and not reason):
            return CompletedCall(result=result, seconds=seconds)

        return StoppedCall(reason=reason, sent=True, seconds=seconds, received_characters=self._characters)


def _failure_of(error: Exception) -> ProviderFailure:
    """Return the failure of a call that raised, for example in a callback; it is not retried."""
    message = f"The model failed: {type(error).__name__}: {str(error)[:300]}"
    return ProviderFailure(kind=ProviderErrorKind.BAD_REQUEST, message=message)


async def _await_unless_stopped(stop: StopRequest, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of the work, or None if a stop comes first.

    Raises:
        RuntimeError: the work cancelled itself.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    is_stopped = asyncio.Event()
    stop_waiter = asyncio.ensure_future(is_stopped.wait())

    def notify() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(is_stopped.set)

    try:
        with stop.listening(notify):
            await asyncio.wait({task, stop_waiter}, return_when=asyncio.FIRST_COMPLETED)

        if not task.done():
            await asyncio.wait({task}, timeout=REPLY_GRACE_S)
    finally:
        stop_waiter.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)

    if task.done() and not task.cancelled():
        return task.result()
    if stop.reason:
        return None

    raise RuntimeError("it cancelled itself")
