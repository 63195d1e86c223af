"""How long a reply may still take: as a whole and, once it has begun, from one part to the next.

Sync reads are bounded below the HTTP client, at the socket: the client's own read timeout begins anew with every byte,
so one that drips, or comments that keep coming, would put the end off for ever. Async calls run under
`asyncio.timeout`, which `Clock.left` sets.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ssl import SSLContext
from typing import Any

import httpcore2
import httpx2

from nodes.call_model.failures import IdleTimeoutError, ReplyTimeoutError, TotalTimeoutError


class Clock:
    """The time of one reply, in seconds of `now`, which never goes back."""

    def __init__(self, now: Callable[[], float], total_s: float, idle_s: float | None) -> None:
        """The whole of it begins now, silence counts from the first `part` on."""
        self._now, self._total_s, self._idle_s = now, total_s, idle_s
        self._started = now()
        self._end = self._started + total_s
        self._silent_end: float | None = None

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return self._now() - self._started

    def part(self) -> None:
        """A part of the reply has come."""
        if self._idle_s is not None:
            self._silent_end = self._now() + self._idle_s

    def leave(self, seconds: float) -> None:
        """The reply is complete; whatever still comes may take this long."""
        self._end, self._silent_end = self._now() + seconds, None

    def left(self) -> float:
        """Seconds until this reply is given up; not above zero where it is."""
        end = self._end if self._silent_end is None else min(self._end, self._silent_end)
        return end - self._now()

    def overdue(self) -> ReplyTimeoutError:
        """Which time is over; the whole where it is not clear."""
        if self._silent_end is not None and self._idle_s is not None and self._silent_end < self._end:
            return IdleTimeoutError(self._idle_s)
        return TotalTimeoutError(self._total_s)

    def check(self) -> None:
        """Go on only within the time.

        Raises:
            ReplyTimeoutError: it is over.
        """
        if self.left() <= 0:
            raise self.overdue()


_RUNNING: ContextVar[Clock | None] = ContextVar("clock of the reply that is read in this context", default=None)


@contextmanager
def timed_by(clock: Clock) -> Iterator[None]:
    """Let the reads and writes of this context end with this clock."""
    token = _RUNNING.set(clock)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def bind_reads(client: httpx2.Client) -> None:
    """Bound the reads of this client's connections, also those through a proxy, by the clock of their context.

    The pool's backend is an argument of httpcore2 that httpx2 does not hand through.
    """
    transports = [client._transport, *client._mounts.values()]  # noqa: SLF001 - see above
    for transport in transports:
        if isinstance(transport, httpx2.HTTPTransport):
            pool = transport._pool  # noqa: SLF001 - see above
            pool._network_backend = _TimedBackend(pool._network_backend)  # noqa: SLF001 - see above


def _bound(timeout: float | None) -> float | None:
    clock = _RUNNING.get()
    if clock is None:
        return timeout
    left = clock.left()
    if left <= 0:
        raise httpcore2.ReadTimeout("the time of this reply is over")
    return left if timeout is None else min(left, timeout)


class _TimedBackend(httpcore2.NetworkBackend):
    """What our clients ask of a backend: endpoints have addresses, and the tries of a call are counted elsewhere."""

    def __init__(self, backend: httpcore2.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        stream = self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        return _TimedStream(stream)


class _TimedStream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _bound(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _bound(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, _bound(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
