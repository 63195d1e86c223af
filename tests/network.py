"""Block network access: tests may connect to loopback only, and replays of cassettes to no host."""

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

Permission = Callable[[str], bool]


class NetworkBlockedError(RuntimeError):
    """A test connected to a host that is not allowed."""


def is_recording() -> bool:
    """Whether cassettes are recorded from live endpoints instead of replayed."""
    return os.environ.get("MENDGRAPH_RECORD") == "1"


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def allow_hosts(allowed: Permission) -> Iterator[None]:
    """Block connections to, and name lookups of, hosts for which `allowed` returns False.

    Unix domain sockets are not affected. In nested blocks each block has to allow the host.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _checked_connect(socket.socket.connect, allowed))
        patch.setattr(socket.socket, "connect_ex", _checked_connect(socket.socket.connect_ex, allowed))
        patch.setattr(socket, "getaddrinfo", _checked_lookup(socket.getaddrinfo, allowed))
        yield


def loopback_only() -> AbstractContextManager[None]:
    """Block all hosts but this machine."""
    return allow_hosts(is_loopback)


def no_network() -> AbstractContextManager[None]:
    """Block all hosts."""
    return allow_hosts(lambda _: False)


def _checked_connect(connect: Callable[..., Any], allowed: Permission) -> Callable[..., Any]:
    def checked(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _check(str(address[0]), allowed)
        return connect(self, address)

    return checked


def _checked_lookup(lookup: Callable[..., Any], allowed: Permission) -> Callable[..., Any]:
    def checked(host: str | bytes | None, *args: Any, **kwargs: Any) -> Any:
        if host is not None:
            _check(host.decode() if isinstance(host, bytes) else host, allowed)
        return lookup(host, *args, **kwargs)

    return checked


def _check(host: str, allowed: Permission) -> None:
    if not allowed(host):
        raise NetworkBlockedError(
            f"a test tried to reach {host!r}: use tests.doubles.scripted_server, or replay a cassette"
        )
