"""The offline guarantee of a replay: sockets of this process reach, and names are looked up of, allowed hosts alone."""

import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


class OfflineError(RuntimeError):
    """A replayed test tried to reach the network.

    It is no `OSError`, which HTTP clients would take for a failed connection and retry.
    """


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine's loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def only(is_allowed: Callable[[str], bool], explain: Callable[[str], str]) -> Iterator[None]:
    """Raise an `OfflineError` with the message `explain(host)` for every host that is not allowed.

    Unix domain sockets are not restricted. In nested blocks a host has to be allowed by each.
    """
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def check(host: str) -> None:
        if not is_allowed(host):
            raise OfflineError(explain(host))

    def checked_connect(original: Callable[..., Any]) -> Callable[..., Any]:
        def connect(self: socket.socket, address: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6):
                check(str(address[0]))

            return original(self, address)

        return connect

    def checked_getaddrinfo(host: str | bytes | None, *args: Any, **kwargs: Any) -> Any:
        if host is not None:
            check(host.decode() if isinstance(host, bytes) else host)

        return getaddrinfo(host, *args, **kwargs)

    with (
        mock.patch.object(socket.socket, "connect", checked_connect(connect)),
        mock.patch.object(socket.socket, "connect_ex", checked_connect(connect_ex)),
        mock.patch.object(socket, "getaddrinfo", checked_getaddrinfo),
    ):
        yield
