"""Nothing is reached while a cassette plays: a client that nobody has caught must not find a real endpoint."""

import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

Permission = Callable[[str], bool]


class OfflineError(RuntimeError):
    """Somebody reached for the network in a replay.

    It is no OSError: HTTP clients would take that for a connection that failed, and try again.
    """


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is this machine as itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def only(allowed: Permission, explain: Callable[[str], str]) -> Iterator[None]:
    """Let sockets of this process reach, and names be looked up, only where `allowed` says yes of the host.

    Elsewhere `explain` of the host is the message of an `OfflineError`. Sockets without a host (Unix domain) are free.
    Blocks nest: a host has to be allowed by each of them.
    """

    def check(host: str) -> None:
        if not allowed(host):
            raise OfflineError(explain(host))

    with (
        mock.patch.object(socket.socket, "connect", _checked_connect(socket.socket.connect, check)),
        mock.patch.object(socket.socket, "connect_ex", _checked_connect(socket.socket.connect_ex, check)),
        mock.patch.object(socket, "getaddrinfo", _checked_lookup(socket.getaddrinfo, check)),
    ):
        yield


def _checked_connect(connect: Callable[..., Any], check: Callable[[str], None]) -> Callable[..., Any]:
    def checked(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            check(str(address[0]))
        return connect(self, address)

    return checked


def _checked_lookup(lookup: Callable[..., Any], check: Callable[[str], None]) -> Callable[..., Any]:
    def checked(host: str | bytes | None, *args: Any, **kwargs: Any) -> Any:
        if host is not None:
            check(host.decode() if isinstance(host, bytes) else host)
        return lookup(host, *args, **kwargs)

    return checked
