"""Connections to addresses that were checked, and to no others, which end when the time of the request is over.

A name is looked up once, so that a name server that changes its answer (DNS rebinding) gains nothing. Only addresses of
the public internet are allowed, and private ones of hosts that the user has named.
"""

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import httpcore2

from mendgraph.nodes.execute_tools.files.deadline import call_within, monotonic_s
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.network.url_rules import Target

_PRIVATE: Final = tuple(
    map(
        ip_network, ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7")
    )
)
"""What a host may have that a user has named for it."""
_NEVER: Final = tuple(
    map(
        ip_network,
        (
            "100.100.100.200",
            "168.63.129.16",
            "fd00:ec2::/32",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "2001::/23",
            "2002::/16",
            "3fff::/20",
        ),
    )
)
"""Metadata services of clouds, which no host may have, and what some Pythons take for public."""
_UNICAST: Final = IPv6Network("2000::/3")
"""The only part of IPv6 that is given to hosts of the public internet."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""A gateway reaches the IPv4 address in the last 32 bits, so that one is judged. Source: RFC 6052."""


def why_forbidden(address: str, *, private_allowed: bool = False) -> str:
    """Why nothing may connect to this address, or "" where it may: "private", "reserved", "no address".

    `private_allowed` lifts private and loopback addresses, and no others. Source: the IANA special-purpose address
    registries, as `ipaddress` has them.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return "no address"
    if parsed in _NAT64:
        parsed, private_allowed = IPv4Address(int(parsed) & 0xFFFF_FFFF), False
    if any(parsed in network for network in _NEVER):
        return "reserved"
    if any(parsed in network for network in _PRIVATE):
        return "" if private_allowed else "private"
    public = parsed.is_global and not parsed.is_multicast
    return "" if public and not (isinstance(parsed, IPv6Address) and parsed not in _UNICAST) else "reserved"


Resolve = Callable[[str, int], Sequence[str]]
"""The addresses of a host, for a port; OSError where it has none."""

_CONNECT_S: Final = 5.0
"""How long one of several addresses may keep the next one waiting."""
_MOST_ADDRESSES: Final = 8


def look_up(host: str, port: int) -> Sequence[str]:
    """What the system says the addresses of `host` are; OSError where it says nothing."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class RefusedConnectionError(Exception):
    """Raised out of a request whose address may not be connected to."""

    def __init__(self, target: Target, address: str, reason: str) -> None:
        liftable = why_forbidden(address) and not why_forbidden(address, private_allowed=True)
        remedy = " A host of your own has to be named in allowed_private_hosts." if liftable else ""
        super().__init__(f"Domain {quoted(target.host)} not allowed: its address {address} is {reason}.{remedy}")


class Deadline:
    """The end of one request, redirects included."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = monotonic_s() + seconds

    def left(self) -> float:
        """The seconds that are left, more than 0. Raises TimeoutError: none are."""
        left = self._end - monotonic_s()
        if left <= 0:
            raise TimeoutError
        return left


def allowed_addresses(target: Target, resolve: Resolve, deadline: Deadline) -> Sequence[str]:
    """The addresses of the target; RefusedConnectionError where a single one of them may not be connected to.

    A lookup cannot be interrupted, so that one that hangs is left behind at the deadline.
    """
    try:
        found: Sequence[str] = (str(ip_address(target.host)),)
    except ValueError:
        found = call_within(deadline.left(), lambda: resolve(target.host, target.port))
    for address in found:
        if forbidden := why_forbidden(address, private_allowed=target.private_allowed):
            raise RefusedConnectionError(target, address, forbidden)
    return found[:_MOST_ADDRESSES]


class CheckedBackend(httpcore2.NetworkBackend):
    """Connects to `addresses` in turn, whatever name it is given; `backend` does the connecting."""

    def __init__(
        self, target: Target, addresses: Sequence[str], deadline: Deadline, backend: httpcore2.NetworkBackend
    ) -> None:
        self._target, self._addresses = target, addresses
        self._deadline, self._backend = deadline, backend

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - the name was looked up already, and is not to be looked up again
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline counts
        local_address: str | None = None,  # noqa: ARG002 - none is ever asked for
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """The first connection that comes about, its far end checked once more before a byte is sent.

        Raises:
            RefusedConnectionError: the far end is not the address that was judged.
            httpcore2.ConnectError: nobody answers at any address.
        """
        failure: Exception = httpcore2.ConnectError("it has no address")
        for address in self._addresses:
            seconds = min(self._deadline.left(), _CONNECT_S)
            try:
                stream = self._backend.connect_tcp(address, port, timeout=seconds, socket_options=socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
                continue
            try:
                self._check_far_end(stream, address)
            except BaseException:
                stream.close()
                raise
            return _TimedStream(stream, self._deadline)
        raise failure

    def _check_far_end(self, stream: httpcore2.NetworkStream, address: str) -> None:
        """Raises RefusedConnectionError, and OSError where the connection is gone already."""
        far_end = str(stream.get_extra_info("server_addr")[0])
        forbidden = why_forbidden(far_end, private_allowed=self._target.private_allowed)
        if forbidden or ip_address(far_end) != ip_address(address):
            raise RefusedConnectionError(self._target, far_end, forbidden or "not the one that was looked up")


class _TimedStream(httpcore2.NetworkStream):
    """A connection each of whose steps has the time that is left: a server that drips bytes gains nothing."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline counts
        return self._stream.read(max_bytes, self._deadline.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the deadline counts
        self._stream.write(buffer, self._deadline.left())

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - the deadline counts
    ) -> httpcore2.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, self._deadline.left())
        return _TimedStream(secured, self._deadline)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
