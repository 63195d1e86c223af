"""One reply as it arrives over HTTP, sync or async: sent for, read, and put together."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from typing import Final

import httpx2

from nodes.call_model.assembly import ReplyAssembly
from nodes.call_model.event_lines import EventLines
from nodes.call_model.failures import BrokenConnectionError, ConnectTimeoutError, StatusError
from nodes.call_model.reply_clock import Clock
from nodes.call_model.reply_events import read_event, take
from nodes.call_model.retry import retry_after_s
from nodes.language.storable_text import storable
from nodes.records import JsonMap

CONNECT_TIMEOUT_S: Final = 10.0
LAST_BYTES_S: Final = 0.25
"""How long is waited for the end of an answer that has said it is done, so that its connection can be used again."""

MOST_REST: Final = 65_536
"""Bytes that are looked at of a refusal, and of what follows an answer that has said it is done."""


class ReplyStream:
    """The reading of one reply. What has come is in `assembly`; texts go to `on_text` as they come."""

    def __init__(self, clock: Clock, on_text: Callable[[str], None], today: Callable[[], float]) -> None:
        """`today` gives seconds since 1970, for an endpoint that names the date of the next try."""
        self.assembly = ReplyAssembly()
        self.clock = clock
        self._on_text, self._today = on_text, today
        self._lines, self._done = EventLines(), False

    def __repr__(self) -> str:
        return "<a reply>"  # a tracer that shows it should not show the whole

    def read(self, client: httpx2.Client, request: httpx2.Request) -> Generator[list[JsonMap]]:
        """Send the request and give the events of its answer, those that came together at once.

        Raises:
            ReplyTimeoutError, BrokenConnectionError, StatusError, StreamedError: why there is no whole reply.
            ValueError, TypeError, AttributeError, LookupError, RecursionError: the answer is no chat completion.
        """
        try:
            response = client.send(request, stream=True)
        except Exception as error:
            raise self._named(error) from error
        try:
            parts = response.iter_bytes()
            if not response.is_success:
                raise refusal(response, _first_bytes(parts), self._today())
            for part in parts:
                if events := self._taken(part):
                    yield events
                self.clock.check()
                if self._done:
                    self._read_rest(parts)
                    break
        except httpx2.HTTPError as error:
            raise self._named(error) from error
        finally:
            response.close()
        self._check_begun()

    async def aread(self, client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncGenerator[list[JsonMap]]:
        """Do the same in an event loop, whose timeout the caller sets by the clock."""
        try:
            response = await client.send(request, stream=True)
        except Exception as error:
            raise self._named(error) from error
        try:
            parts = response.aiter_bytes()
            if not response.is_success:
                raise refusal(response, await _afirst_bytes(parts), self._today())
            async for part in parts:
                if events := self._taken(part):
                    yield events
                self.clock.check()
                if self._done:
                    await _aread_rest(parts)
                    break
        except httpx2.HTTPError as error:
            raise self._named(error) from error
        finally:
            await response.aclose()
        self._check_begun()

    def _taken(self, part: bytes) -> list[JsonMap]:
        """The events that are whole with this part; what they say is told at once, also before one that is broken."""
        events: list[JsonMap] = []
        said: list[str] = []
        try:
            for data in self._lines.feed(part):
                if data.startswith(b"[DONE]"):
                    self._done = True
                    break
                event = read_event(data)
                if text := take(event, self.assembly):
                    said.append(text)
                events.append(event)
        finally:
            if said:
                text = "".join(said)
                self._on_text(text if text.isascii() else storable(text))
        if events and self.assembly.spoken:
            self.clock.part()
        return events

    def _read_rest(self, parts: Iterator[bytes]) -> None:
        self.clock.leave(LAST_BYTES_S)
        _first_bytes(parts)

    def _named(self, error: Exception) -> Exception:
        """The failure of a connection in our words; which of several ways it broke makes no difference to a run."""
        if isinstance(error, httpx2.ConnectTimeout) and self.clock.left() > 0:
            return ConnectTimeoutError(CONNECT_TIMEOUT_S)
        return self.clock.overdue() if isinstance(error, httpx2.TimeoutException) else BrokenConnectionError()

    def _check_begun(self) -> None:
        if not self.assembly.begun:
            raise ValueError("No generation chunks were returned")


def refusal(response: httpx2.Response, body: bytes, now: float) -> StatusError:
    """The error of an answer whose status is one; `now` in seconds since 1970."""
    text = body.decode("utf-8", "replace").strip()
    said: object = text
    with suppress(ValueError, RecursionError):
        said = json.loads(text)
    return StatusError(response.status_code, said, retry_after_s(response.headers.get("retry-after", ""), now))


def _first_bytes(parts: Iterator[bytes]) -> bytes:
    """What comes, as far as it is looked at; where it breaks off, that is what came."""
    came = b""
    with suppress(httpx2.HTTPError):
        for part in parts:
            came += part
            if len(came) > MOST_REST:
                break
    return came


async def _afirst_bytes(parts: AsyncIterator[bytes]) -> bytes:
    came = b""
    with suppress(httpx2.HTTPError):
        async for part in parts:
            came += part
            if len(came) > MOST_REST:
                break
    return came


async def _aread_rest(parts: AsyncIterator[bytes]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_BYTES_S):
            await _afirst_bytes(parts)
