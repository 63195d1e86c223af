"""Bounds the size of HTTP responses: event hooks for the HTTP clients of chat models.

200 KB of gzip can hold 200 MB, which an HTTP client keeps in memory as a whole. So no compression is offered, and a
compressed response is refused.
"""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from threading import Timer
from typing import Any, Final

import httpx2

MOST_PIECE_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of a body that is no stream, and of one event of a stream: these are held in memory as a whole.

A reply of 128,000 tokens has about 1 MB. Images and sound, which are Base64, have several.
"""

MOST_STREAM_BYTES: Final = 512 * 1024 * 1024
"""The most bytes of a stream. Endpoints send 200 to 500 bytes for each token."""

NOT_COMPRESSED: Final = {"Accept-Encoding": "identity"}
"""The header of a request that offers no compression."""

_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LAST_EVENT: Final = b"data: [DONE]"
_DRAIN_S: Final = 0.1
"""Seconds that a response may take to end after its last event. Source: the openai SDK, of async clients."""


class ReplyLimitError(Exception):
    """An endpoint sends more than is read. The text says what, in the form "it sent ..."."""


def bound_response(response: httpx2.Response) -> None:
    """Bound the body of a response that is not read yet: an event hook of a sync client.

    Raises:
        ReplyLimitError: the response is compressed. Reading a body that is too large raises it as well.
    """
    if isinstance(response.stream, httpx2.SyncByteStream):
        _refuse_compression(response)
        response.stream = _BoundedStream(response, response.stream)


async def abound_response(response: httpx2.Response) -> None:
    """Bound the body of a response, as an event hook of an async client; see `bound_response`."""
    if isinstance(response.stream, httpx2.AsyncByteStream):
        _refuse_compression(response)
        response.stream = _AsyncBoundedStream(response, response.stream)


def _refuse_compression(response: httpx2.Response) -> None:
    coding = response.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise ReplyLimitError(f"it sent a response with the content coding {coding[:20]!r}, which was not requested")


class _ByteCounter:
    """Counts the bytes of one body."""

    def __init__(self, response: httpx2.Response) -> None:
        self._is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        self._total = 0
        self._piece = 0
        self.is_done = False

    def count(self, chunk: bytes) -> None:
        """Count a chunk. Raises ReplyLimitError: the body is too large."""
        self._total += len(chunk)
        self._piece += len(chunk)
        if self._piece > MOST_PIECE_BYTES:
            raise ReplyLimitError(f"it sent more than {MOST_PIECE_BYTES:,} bytes in one piece")
        if self._total > MOST_STREAM_BYTES:
            raise ReplyLimitError(f"it sent a reply of more than {MOST_STREAM_BYTES:,} bytes")

        if self._is_stream:
            end = max(chunk.rfind(mark) for mark in _EVENT_ENDS)  # one that two chunks share is not seen
            if end >= 0:
                self._piece = len(chunk) - end

            self.is_done = _LAST_EVENT in chunk


class _BoundedStream(httpx2.SyncByteStream):
    def __init__(self, response: httpx2.Response, stream: httpx2.SyncByteStream) -> None:
        self._network: Any = response.extensions.get("network_stream")
        self._stream = stream
        self._chunks = iter(stream)
        self._counter = _ByteCounter(response)

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._counter.count(chunk)
            yield chunk

    def close(self) -> None:
        if self._counter.is_done and self._network is not None:
            self._drain()

        self._stream.close()

    def _drain(self) -> None:
        """Read the end of the response, so that its connection is used again; break off one that does not end."""
        connection = self._network.get_extra_info("socket")
        timer = Timer(_DRAIN_S, _shut_down, (connection,))
        timer.daemon = True
        timer.start()

        try:
            with suppress(Exception):
                for _ in self._chunks:
                    pass
        finally:
            timer.cancel()


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _AsyncBoundedStream(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream
        self._counter = _ByteCounter(response)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._counter.count(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
