"""Tests speak to loopback at most, and replays to nobody."""

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

Permission = Callable[[str], bool]


class NetworkBlockedError(RuntimeError):
    """A test reached for a host that it may not reach."""


def is_recording() -> bool:
    """Whether cassettes are written from live endpoints rather than replayed."""
    return os.environ.get("MENDGRAPH_RECORD") == "1"


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is this machine as itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def only(allowed: Permission) -> Iterator[None]:
    """Let sockets reach, and names be looked up, only where `allowed` says yes of the host.

    Sockets without a host (Unix domain) are free. Blocks nest: a host has to be allowed by each of them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _checked_connect(socket.socket.connect, allowed))
        patch.setattr(socket.socket, "connect_ex", _checked_connect(socket.socket.connect_ex, allowed))
        patch.setattr(socket, "getaddrinfo", _checked_lookup(socket.getaddrinfo, allowed))
        yield


def loopback_only() -> AbstractContextManager[None]:
    """The rule of all tests."""
    return only(is_loopback)


def nobody() -> AbstractContextManager[None]:
    """The rule of a replay."""
    return only(lambda _: False)


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
