"""Connections to addresses that were checked, and to no others, which end when the time of the request is over.

A name is looked up once, so that a name server that changes its answer (DNS rebinding) gains nothing. Only addresses of
the public internet are allowed, and private ones of hosts that the user has named.
"""

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import httpcore2

from mendgraph.nodes.execute_tools.files.deadline import call_within, monotonic_s
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.network.url_rules import Target
from mendgraph.nodes.records import ToolError, ToolErrorCode

_METADATA: Final = "a cloud's metadata service"
_LOCAL: Final[dict[str, str]] = {
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "private (carrier-grade NAT)",
    "127.0.0.0/8": "loopback",
    "172.16.0.0/12": "private",
    "192.168.0.0/16": "private",
    "::1/128": "loopback",
    "fc00::/7": "private",
}
"""What a host may have that a user has named for it."""
_NEVER: Final[dict[str, str]] = {
    "100.100.100.200/32": _METADATA,
    "168.63.129.16/32": _METADATA,
    "fd00:ec2::/32": _METADATA,
    "0.0.0.0/8": "unspecified",
    "169.254.0.0/16": "link-local",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "reserved (documentation)",
    "192.88.99.0/24": "reserved (6to4 relay)",
    "198.18.0.0/15": "reserved (benchmarks)",
    "198.51.100.0/24": "reserved (documentation)",
    "203.0.113.0/24": "reserved (documentation)",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/128": "unspecified",
    "::ffff:0:0/96": "IPv4 in IPv6",
    "2001::/32": "IPv4 in IPv6 (Teredo)",
    "2001::/23": "reserved",
    "2001:db8::/32": "reserved (documentation)",
    "2002::/16": "IPv4 in IPv6 (6to4)",
    "3fff::/20": "reserved (documentation)",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
"""What no host may have. Source: the IANA special-purpose address registries, and the clouds' documentation."""


def _networks(table: dict[str, str]) -> tuple[tuple[IPv4Network | IPv6Network, str], ...]:
    return tuple((ip_network(each), reason) for each, reason in table.items())


_LOCAL_NETWORKS: Final = _networks(_LOCAL)
_NEVER_NETWORKS: Final = _networks(_NEVER)
_UNICAST: Final = IPv6Network("2000::/3")
"""The only part of IPv6 that is given to hosts of the public internet."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""A gateway reaches the IPv4 address in the last 32 bits, so that one is judged. Source: RFC 6052."""


def why_forbidden(address: str, *, private_allowed: bool = False) -> str:
    """Why nothing may connect to this address, or "" where it may: "private", "loopback", "link-local", ...

    `private_allowed` lifts private and loopback addresses, and no others. What is no address is forbidden.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return "no address"
    if parsed in _NAT64:
        embedded = why_forbidden(str(IPv4Address(int(parsed) & 0xFFFF_FFFF)))
        return f"IPv4 in IPv6 (NAT64), {embedded}" if embedded else ""
    return _reason(parsed, private_allowed)


def _reason(address: IPv4Address | IPv6Address, private_allowed: bool) -> str:
    never = next((reason for network, reason in _NEVER_NETWORKS if address in network), "")
    local = next((reason for network, reason in _LOCAL_NETWORKS if address in network), "")
    if never or local:
        return never or ("" if private_allowed else local)
    return "reserved" if isinstance(address, IPv6Address) and address not in _UNICAST else ""


Resolve = Callable[[str, int], Sequence[str]]
"""The addresses of a host, for a port; OSError where it has none."""

_CONNECT_S: Final = 5.0
"""How long one of several addresses may keep the next one waiting."""
_MOST_ADDRESSES: Final = 8


class RefusedConnectionError(Exception):
    """Raised out of a request whose address may not be connected to."""

    def __init__(self, error: ToolError) -> None:
        super().__init__(error.message)
        self.error = error


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
            raise RefusedConnectionError(refusal(self._target, far_end, forbidden or "not the one that was looked up"))


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


def look_up(host: str, port: int) -> Sequence[str]:
    """What the system says the addresses of `host` are; OSError where it says nothing."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def allowed_addresses(target: Target, resolve: Resolve, deadline: Deadline) -> tuple[str, ...] | ToolError:
    """The addresses of the target, all of them allowed; PERMISSION_DENIED where a single one is not.

    A lookup cannot be interrupted, so that one that hangs is left behind at the deadline. Raises TimeoutError: the
    lookup took too long.
    """
    if _is_literal(target.host):
        found: Sequence[str] = (target.host,)
    else:
        try:
            found = call_within(deadline.left(), lambda: resolve(target.host, target.port))
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            message = f"The address of {quoted(target.host)} cannot be looked up: {reason}."
            return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
    for address in found:
        forbidden = why_forbidden(address, private_allowed=target.private_allowed)
        if forbidden:
            return refusal(target, address, forbidden)
    return tuple(found[:_MOST_ADDRESSES])


def refusal(target: Target, address: str, reason: str) -> ToolError:
    """That this address of the target is not connected to."""
    liftable = why_forbidden(address) and not why_forbidden(address, private_allowed=True)
    remedy = " A host of your own has to be named in allowed_private_hosts." if liftable else ""
    message = f"Domain {quoted(target.host)} not allowed: its address {address} is {reason}.{remedy}"
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
