"""Reads one reply of a chat model within its time: in its caller's event loop, or by a sync call in a thread."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import current_thread, main_thread
from time import monotonic
from typing import Any, Final, NamedTuple

import langsmith
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage

from mendgraph.graph.langchain import failures
from mendgraph.graph.langchain.callbacks import UNHEARD, Report, atell_callbacks, is_listened_to, tell_callbacks
from mendgraph.graph.langchain.connections import is_openai_chat
from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.nodes.call_model.model import Call, CallDropped
from mendgraph.nodes.call_model.prompts.estimates import MOST_BYTES_PER_TOKEN
from mendgraph.nodes.call_model.stop_request import REPLY_GRACE_S, StopRequest
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure
from mendgraph.nodes.workspace.files.deadline import Worker

CANCEL_GRACE_S: Final = 0.5  # seconds that a cancelled chat model may take to end

_BROKEN_OFF: Final = ProviderFailure(
    kind=ProviderErrorKind.INCOMPLETE_STREAM,
    message="The reply broke off before the endpoint said that it was complete.",
)


class Request(NamedTuple):
    """One request to a copy of a chat model with all settings. `sent` names what the next request may omit."""

    chat: BaseChatModel
    messages: list[AnyMessage]
    options: JsonMap
    sent: frozenset[str]
    without_tools: bool
    limit: int
    callbacks: Any


class CallClock:
    """The time limits of one call; that of silence begins with the first part of the reply."""

    def __init__(self, call: Call) -> None:
        self._began_s = monotonic()
        self._total_s = call.timeout_s
        self._idle_s = call.idle_timeout_s
        self._silent_end: float | None = None
        self.started = False

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return monotonic() - self._began_s

    def note_part(self, *, spoken: bool) -> None:
        """Note that a part has arrived; `spoken`: the reply has begun, and not only its metadata."""
        self.started = True
        if spoken and self._idle_s is not None:
            self._silent_end = monotonic() + self._idle_s

    def remaining_s(self) -> float:
        """Return the seconds until the call has no time left."""
        end = self._began_s + self._total_s
        if self._silent_end is not None:
            end = min(end, self._silent_end)

        return end - monotonic()

    def wait_s(self) -> float:
        """Return the seconds to wait before `remaining_s` is read again: the first part starts another limit."""
        remaining_s = max(0.0, self.remaining_s())
        if self._idle_s is None:
            return remaining_s

        return min(remaining_s, self._idle_s)

    def timeout_error(self) -> failures.ReplyTimeoutError:
        """Return the error of a call whose time is over."""
        if self._silent_end is not None and self._silent_end < self._began_s + self._total_s:
            return failures.ReplyTimeoutError(f"the reply had begun, and nothing more came for {self._idle_s:g} s")
        return failures.ReplyTimeoutError(f"no complete reply within {self._total_s:g} s")


class ReplyReader:
    """Reads one reply into `assembly`, and passes its text on as it arrives."""

    def __init__(self, request: Request, call: Call, clock: CallClock, on_text: Callable[[str], None]) -> None:
        self.assembly = ReplyAssembly(usage_is_total=is_openai_chat(request.chat))
        self.request = request
        self.clock = clock
        self._call = call
        self._on_text = on_text
        self._dropped = False

    def read(self) -> Exception | None:
        """Read the reply in a thread; return the error that ended it early, None if it is complete.

        The thread is abandoned when the time is over, or the run has to stop.

        Raises:
            CallDropped: the run has to stop.
        """
        bell: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt its own `get`, as in a signal handler
        ring = partial(bell.put, None)
        stop = self._call.stop or StopRequest()
        reading = Worker(copy_context(), self._read_in_thread).outcome
        reading.add_done_callback(lambda _: ring())

        try:
            with stop.listening(ring):
                while not (reading.done() or stop.reason) and self.clock.remaining_s() > 0:
                    with suppress(Empty):
                        bell.get(timeout=self.clock.wait_s())

            if stop.reason and not reading.done():
                with suppress(TimeoutError):
                    reading.exception(REPLY_GRACE_S)
        finally:
            self._dropped = not reading.done()

        if self._dropped and stop.reason:
            raise CallDropped(self.assembly.characters)
        if self._dropped:
            return self.clock.timeout_error()
        return _error_of(reading)

    async def aread(self) -> Exception | None:
        """Read the reply in the running event loop; see `read`."""
        reading: asyncio.Future[None]
        if _is_async(self.request.chat):
            reading = asyncio.ensure_future(self._aread_in_loop())
        else:  # LangChain would read it in a thread that keeps the process from ending
            reading = asyncio.wrap_future(Worker(copy_context(), self._read_in_thread).outcome)
        try:
            while not reading.done() and self.clock.remaining_s() > 0:
                await asyncio.wait({reading}, timeout=self.clock.wait_s())
        finally:
            self._dropped = not reading.done()
            if self._dropped:
                reading.cancel()
                await asyncio.wait({reading}, timeout=CANCEL_GRACE_S)
        if self._dropped:
            if reading.done() and not reading.cancelled():
                _ = reading.exception()  # or asyncio would report that nobody has looked
            return self.clock.timeout_error()
        return _error_of(reading)

    def result(self, error: Exception | None) -> ModelReply | Exception:
        """Return the reply, or the error. A reply that was complete before its connection broke is used."""
        try:
            reply = self.assembly.reply(self.clock.seconds)
        except Exception as broken:  # noqa: BLE001 - a user's chat model may send anything
            return broken
        if reply is not None and (error is None or self.assembly.finish_reason):
            return reply
        if error is not None:
            return error

        word = self.assembly.finish_reason
        failure = _BROKEN_OFF
        if word:
            message = f"The endpoint ended the reply with the unknown word {word[:40]!r}, and it is not complete."
            failure = _BROKEN_OFF.model_copy(update={"message": message})

        return failures.CallFailedError(failure)

    def _read_in_thread(self) -> None:
        try:
            with closing(self._texts()) as texts:
                if is_listened_to(self.request.callbacks):
                    tell_callbacks(self._report(), texts)
                else:
                    deque(texts, maxlen=0)
        except NotImplementedError:
            if self.assembly.characters or not _is_async(self.request.chat):
                raise
            asyncio.run(self._aread_in_loop())  # the chat model has only async methods
        except (SystemExit, KeyboardInterrupt) as error:  # in this thread they end no process
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    async def _aread_in_loop(self) -> None:
        try:
            async with aclosing(self._atexts()) as texts:
                if is_listened_to(self.request.callbacks):
                    await atell_callbacks(self._report(), texts)
                else:
                    async for _ in texts:
                        pass
        except (SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise  # of a person
            raise RuntimeError(f"{type(error).__name__}: {error}") from error  # or it would end the event loop

    def _report(self) -> Report:
        return Report(self.request.chat, self.request.callbacks, self._call, self.assembly)

    def _texts(self) -> Generator[str]:
        request = self.request
        with langsmith.tracing_context(enabled=False):  # callbacks get the text without secrets: see `_read_in_thread`
            parts: Any = request.chat.stream(request.messages, {"callbacks": UNHEARD}, **request.options)
            with closing(parts):
                for part in parts:
                    yield self._take(part)
                    if self._dropped or self._exceeds_limit():
                        return

    async def _atexts(self) -> AsyncGenerator[str]:
        request = self.request
        with langsmith.tracing_context(enabled=False):
            parts: Any = request.chat.astream(request.messages, {"callbacks": UNHEARD}, **request.options)
            async with aclosing(parts):
                async for part in parts:
                    yield self._take(part)
                    if self._exceeds_limit():
                        return

    def _exceeds_limit(self) -> bool:
        """Return whether the reply has more than twice its limit of tokens, which its endpoint ignores; cut it then."""
        allowed = self.request.limit or self._call.max_output_tokens
        exceeds = self.assembly.characters > 2 * allowed * MOST_BYTES_PER_TOKEN
        if exceeds:
            self.assembly.finish_reason = "length"
        return exceeds

    def _take(self, part: AIMessage) -> str:
        if self._dropped:
            return ""
        text = self.assembly.take(part)
        self.clock.note_part(spoken=self.assembly.spoken)
        if text:
            self._on_text(storable(text))

        return text


def _error_of(reading: "asyncio.Future[None] | Future[None]") -> Exception | None:
    if reading.cancelled():
        return RuntimeError("it cancelled itself")
    error = reading.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error


def _is_async(chat: BaseChatModel) -> bool:
    """Return whether a chat model has async methods; LangChain would call another one in a thread."""
    kind = type(chat)
    streams = kind._astream is not BaseChatModel._astream  # noqa: SLF001 - what a chat model overrides
    return streams or (
        kind._stream is BaseChatModel._stream and kind._agenerate is not BaseChatModel._agenerate  # noqa: SLF001
    )
