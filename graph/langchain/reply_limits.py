"""How much a model's endpoint may send: HTTP responses that are bounded in size, counted after decompression.

200 KB of gzip can hold 200 MB, which an HTTP client keeps in memory as a whole. So no compression is offered, and what
comes compressed all the same is decompressed in small pieces.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Final

import httpx2

MOST_PIECE_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of a body that is no stream, and of one event of a stream: these are held in memory as a whole.

A reply of 128,000 tokens has about 1 MB. Images and sound, which are Base64, have several.
"""

MOST_STREAM_BYTES: Final = 512 * 1024 * 1024
"""The most bytes of a stream. Endpoints send 200 to 500 bytes for each token."""

NOT_COMPRESSED: Final = {"Accept-Encoding": "identity"}
"""The header of a request that offers no compression."""

_SLICE_BYTES: Final = 1024
"""Bytes that are decompressed at a time. DEFLATE makes at most 1,032 bytes of one; other codings have no bound."""

_DEFLATED: Final = frozenset({"gzip", "deflate"})
_EVENT_STREAM: Final = "text/event-stream"
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


class ReplyLimitError(Exception):
    """An endpoint sends more than is read. The text says what, in the form "it sent ..."."""


def bound_response(response: httpx2.Response) -> None:
    """Bound the body of a response that is not read yet. This is an event hook of a sync client of httpx2.

    Raises:
        ReplyLimitError: the response is compressed in another way than by gzip or deflate. Reading the body raises it
            as well, where that is too large.
    """
    stream = response.stream
    if not isinstance(stream, httpx2.SyncByteStream):
        return

    limit = _Limit(is_stream=_is_event_stream(response))
    if not _is_compressed(response):
        response.stream = _BoundedStream(stream, stream, limit)
        return

    packed = httpx2.Response(response.status_code, headers=response.headers, stream=_Slices(stream))
    response.stream = _BoundedStream(stream, packed.iter_bytes(), limit)
    del response.headers["content-encoding"]


async def abound_response(response: httpx2.Response) -> None:
    """Bound the body of a response, as an event hook of an async client; see `bound_response`."""
    stream = response.stream
    if not isinstance(stream, httpx2.AsyncByteStream):
        return

    limit = _Limit(is_stream=_is_event_stream(response))
    if not _is_compressed(response):
        response.stream = _AsyncBoundedStream(stream, stream, limit)
        return

    packed = httpx2.Response(response.status_code, headers=response.headers, stream=_AsyncSlices(stream))
    response.stream = _AsyncBoundedStream(stream, packed.aiter_bytes(), limit)
    del response.headers["content-encoding"]


def _is_event_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").startswith(_EVENT_STREAM)


def _is_compressed(response: httpx2.Response) -> bool:
    coding = response.headers.get("content-encoding", "identity").lower()
    if coding != "identity" and coding not in _DEFLATED:
        raise ReplyLimitError(f"it sent a response with the content coding {coding[:20]!r}, which was not asked for")
    return bool(coding != "identity")


class _Limit:
    """Counts the bytes of a body."""

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._total = 0
        self._piece = 0

    def count(self, chunk: bytes) -> None:
        """Count a chunk before it is handed on."""
        self._total += len(chunk)
        self._piece += len(chunk)
        if self._piece > MOST_PIECE_BYTES:
            raise ReplyLimitError(f"it sent more than {MOST_PIECE_BYTES:,} bytes in one piece")
        if self._total > MOST_STREAM_BYTES:
            raise ReplyLimitError(f"it sent a reply of more than {MOST_STREAM_BYTES:,} bytes")

        if self._is_stream:
            self._piece = _bytes_of_last_event(chunk, self._piece)


def _slices(chunk: bytes) -> Iterator[bytes]:
    for start in range(0, len(chunk), _SLICE_BYTES):
        yield chunk[start : start + _SLICE_BYTES]


class _Slices(httpx2.SyncByteStream):
    """A stream in pieces of at most `_SLICE_BYTES`."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield from _slices(chunk)


class _AsyncSlices(httpx2.AsyncByteStream):
    """An async stream in pieces of at most `_SLICE_BYTES`."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            for piece in _slices(chunk):
                yield piece


class _BoundedStream(httpx2.SyncByteStream):
    """The bytes of `content`, up to the limit; `stream` is closed with it."""

    def __init__(self, stream: httpx2.SyncByteStream, content: Iterable[bytes], limit: _Limit) -> None:
        self._stream = stream
        self._content = content
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._content:
            self._limit.count(chunk)
            yield chunk

    def close(self) -> None:
        self._stream.close()


class _AsyncBoundedStream(httpx2.AsyncByteStream):
    """The bytes of the async `content`, up to the limit; `stream` is closed with it."""

    def __init__(self, stream: httpx2.AsyncByteStream, content: AsyncIterable[bytes], limit: _Limit) -> None:
        self._stream = stream
        self._content = content
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._content:
            self._limit.count(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _bytes_of_last_event(chunk: bytes, before: int) -> int:
    """The bytes after the last end of an event in `chunk`, or `before` where no event ends in it.

    An end that two chunks share is not seen; then the next event counts with this one.
    """
    end = max(chunk.rfind(mark) for mark in _EVENT_ENDS)
    if end < 0:
        return before

    return len(chunk) - end
