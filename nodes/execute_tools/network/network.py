"""The hosts that a run may ask, each of its requests bounded in where it goes, in size and in time.

Connections go to addresses that were checked, and to no others, and end when the time of the request is over. A name is
looked up once, so that a name server that changes its answer (DNS rebinding) gains nothing. Only addresses of the
public internet are allowed, and private ones of hosts that the user has named. Imported only where a run may ask hosts.
"""

import codecs
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import httpcore2

from mendgraph.nodes.execute_tools.files.deadline import call_within, monotonic_s
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, Target, judge_redirect, judge_url
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted

# --- Connections

_PRIVATE: Final = tuple(map(ip_network, (
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7",
)))  # fmt: skip
"""What a host may have that a user has named for it."""
_NEVER: Final = tuple(map(ip_network, (
    "100.100.100.200", "168.63.129.16", "fd00:ec2::/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16",
    "3fff::/20",
)))  # fmt: skip
"""Metadata services of clouds, which no host may have, and what some Pythons take for public."""
_UNICAST: Final = IPv6Network("2000::/3")  # the only part of IPv6 that is given to hosts of the public internet
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
        parsed = IPv4Address(int(parsed) & 0xFFFF_FFFF)
        private_allowed = False

    if any(parsed in network for network in _NEVER):
        return "reserved"
    if any(parsed in network for network in _PRIVATE):
        return "" if private_allowed else "private"

    public = parsed.is_global and not parsed.is_multicast
    if public and not (isinstance(parsed, IPv6Address) and parsed not in _UNICAST):
        return ""

    return "reserved"


def refused_by_name(target: Target) -> ToolError | None:
    """Why nothing may connect to this host, as far as its name says it: an address, or this machine."""
    try:
        address = str(ip_address(target.host))
    except ValueError:
        if target.host != "localhost" and not target.host.endswith(".localhost"):  # Source: RFC 6761, section 6.3
            return None

        address = "127.0.0.1"

    forbidden = why_forbidden(address, private_allowed=target.private_allowed)
    if not forbidden:
        return None

    message = str(RefusedConnectionError(target, address, forbidden))
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


Resolve = Callable[[str, int], Sequence[str]]
"""The addresses of a host, for a port; OSError where it has none."""

_CONNECT_S: Final = 5.0  # how long one of several addresses may keep the next one waiting
_MOST_ADDRESSES: Final = 8


def look_up(host: str, port: int) -> Sequence[str]:
    """What the system says the addresses of `host` are; OSError where it says nothing."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in addresses))


class RefusedConnectionError(Exception):
    """Raised out of a request whose address may not be connected to."""

    def __init__(self, target: Target, address: str, reason: str) -> None:
        liftable = why_forbidden(address) and not why_forbidden(address, private_allowed=True)
        remedy = ""
        if liftable:
            remedy = " A host of your own has to be named in allowed_private_hosts."

        super().__init__(f"Domain {quoted(target.host)} not allowed: its address {address} is {reason}.{remedy}")


class Deadline:
    """The end of one request, redirects included."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = monotonic_s() + seconds

    def left(self) -> float:
        """The seconds that are left, more than 0. Raises TimeoutError: none are."""
        remaining_s = self._end - monotonic_s()
        if remaining_s <= 0:
            raise TimeoutError

        return remaining_s


def allowed_addresses(target: Target, resolve: Resolve, deadline: Deadline) -> Sequence[str]:
    """The addresses of the target; RefusedConnectionError where a single one of them may not be connected to.

    A lookup cannot be interrupted, so that one that hangs is left behind at the deadline.
    """
    try:
        addresses: Sequence[str] = (str(ip_address(target.host)),)
    except ValueError:
        addresses = call_within(deadline.left(), lambda: resolve(target.host, target.port))

    for address in addresses:
        if forbidden := why_forbidden(address, private_allowed=target.private_allowed):
            raise RefusedConnectionError(target, address, forbidden)

    return addresses[:_MOST_ADDRESSES]


class CheckedBackend(httpcore2.NetworkBackend):
    """Connects to `addresses` in turn, whatever name it is given; `backend` does the connecting."""

    def __init__(
        self, target: Target, addresses: Sequence[str], deadline: Deadline, backend: httpcore2.NetworkBackend
    ) -> None:
        self._target = target
        self._addresses = addresses
        self._deadline = deadline
        self._backend = backend

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

            with ExitStack() as closing:
                closing.callback(stream.close)
                far_end = str(stream.get_extra_info("server_addr")[0])
                forbidden = why_forbidden(far_end, private_allowed=self._target.private_allowed)

                if forbidden or ip_address(far_end) != ip_address(address):
                    raise RefusedConnectionError(self._target, far_end, forbidden or "not the one that was looked up")

                closing.pop_all()

            return _TimedStream(stream, self._deadline)

        raise failure


class _TimedStream(httpcore2.NetworkStream):
    """A connection each of whose steps has the time that is left: a server that drips bytes gains nothing."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

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


# --- What an answer says

UNKNOWN_TYPE: Final = "application/octet-stream"
"""What a body is that says nothing of itself. Source: RFC 9110, section 8.3."""
_TYPE: Final = re.compile(
    r"\s*([a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100})\s*(?:;.*)?", re.IGNORECASE | re.DOTALL
)
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*[\"']?([a-z0-9_.:-]{1,40})", re.IGNORECASE)
_TEXT_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("json", "xml", "javascript", "x-javascript", "x-ndjson", "yaml", "x-yaml", "toml", "x-sh")
)
_LATIN: Final = {"iso8859-1": "cp1252", "cp1252": "cp1252", "ascii": "cp1252"}
"""Codecs that old pages are written in. Source: WHATWG Encoding, which reads the first of them as the second."""


def decode_text(data: bytes, content_type: str, *, cut: bool = False) -> str | None:
    """The body as Latin-1 if it says so, else as UTF-8, with U+FFFD for what does not fit; None if it is binary."""
    if b"\x00" in data[:8_000]:
        return None

    match = _CHARSET.search(content_type)
    codec = "utf-8-sig"
    if match and not data.startswith(codecs.BOM_UTF8):
        with suppress(LookupError):
            codec = _LATIN.get(codecs.lookup(match[1]).name, codec)

    return codecs.getincrementaldecoder(codec)(errors="replace").decode(data, final=not cut)


# --- Requests

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final[dict[bytes | str, bytes | str]] = {
    "User-Agent": "mendgraph",
    "Accept": "text/*, application/json, application/xml, */*;q=0.1",
    "Accept-Encoding": "identity",
    "Connection": "close",
}
"""The same for every request: nothing in them is about the user, the machine or an earlier answer."""
_LONGEST_REASON: Final = 200


@dataclass(frozen=True)
class HttpResponse:
    """An answer, of whatever status. `url` is where it came from in the end, `content_type` its media type.

    `size` counts the bytes of the body that were read; `cut` says that there are more.
    """

    status: int
    url: str
    content_type: str
    text: str
    size: int
    cut: bool


class Network:
    """What a run may ask. `resolve`, `tls` and `backend` stand in for the system's name server, roots and sockets."""

    def __init__(
        self,
        rules: NetworkRules,
        *,
        resolve: Resolve = look_up,
        tls: ssl.SSLContext | None = None,
        backend: httpcore2.NetworkBackend | None = None,
    ) -> None:
        self.rules = rules
        self._resolve = resolve
        self._tls = tls
        self._backend = backend or httpcore2.SyncBackend()

    def get(self, url: str, timeout_s: float) -> HttpResponse | ToolError:
        """GET `url`, and follow its redirects by the same rules; `timeout_s` seconds, or the rules', for all of it.

        INVALID_ARGUMENT for what is no such URL or no text, PERMISSION_DENIED for what the rules do not allow, TIMEOUT,
        UNAVAILABLE for a server that cannot be reached and IO_ERROR for one that cannot be understood.
        """
        deadline = Deadline(min(timeout_s, self.rules.timeout_s))
        target = judge_url(url, self.rules)

        for _ in range(self.rules.max_redirects + 1):
            if isinstance(target, ToolError):
                return target

            answer = self._answer(target, deadline)
            if not isinstance(answer, str):
                return answer

            target = judge_redirect(target, answer, self.rules)

        message = f"{quoted(url)} redirects more than {self.rules.max_redirects} times."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

    def _answer(self, target: Target, deadline: Deadline) -> HttpResponse | str | ToolError:
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        headers = {"Host": target.authority, **_HEADERS}

        try:
            addresses = allowed_addresses(target, self._resolve, deadline)
            if target.scheme == "https" and self._tls is None:
                self._tls = httpcore2.default_ssl_context()

            backend = CheckedBackend(target, addresses, deadline, self._backend)
            with (  # a connection of its own, closed at the end; the pool knows no proxies, cookies or environment
                httpcore2.ConnectionPool(ssl_context=self._tls, network_backend=backend) as pool,
                pool.stream("GET", url, headers=headers) as response,
            ):
                return _read(target, response, self.rules.max_bytes, deadline)
        except RefusedConnectionError as refused:
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=str(refused))
        except (TimeoutError, httpcore2.TimeoutException):
            message = f"{quoted(target.url)} did not answer completely within {deadline.seconds:g} s."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError, ValueError) as error:
            reason = str(error)[:_LONGEST_REASON] or type(error).__name__
            unreachable = isinstance(error, httpcore2.NetworkError | OSError) and not isinstance(error, socket.gaierror)

            if unreachable:
                code = ToolErrorCode.UNAVAILABLE
            else:
                code = ToolErrorCode.IO_ERROR

            return ToolError(code=code, message=f"Cannot get {quoted(target.url)}: {reason}.")


def _read(
    target: Target, response: httpcore2.Response, most: int, deadline: Deadline
) -> HttpResponse | str | ToolError:
    headers: dict[str, str] = {}
    for name, value in response.headers:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace"))

    if response.status in _REDIRECTS and headers.get("location"):
        return headers["location"]

    match = _TYPE.fullmatch(headers.get("content-type", ""))
    length = headers.get("content-length", "")
    kind = match[1].lower() if match else UNKNOWN_TYPE  # `text/html` of `Text/HTML; charset=utf-8`
    encoding = headers.get("content-encoding", "").strip().lower()
    what = ""

    if encoding not in {"", "identity"}:
        what = f"content encoded as {quoted(encoding)}"

    readable = kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml", "+yaml"))
    if not readable and response.status not in {204, 304} and length != "0":
        what = what or kind

    data = bytearray()

    for piece in () if what else response.iter_stream():
        deadline.left()
        data += piece
        if len(data) > most:
            break

    cut = len(data) > most

    if what:
        text = None
    else:
        text = decode_text(bytes(data[:most]), headers.get("content-type", ""), cut=cut)

    if text is not None:
        return HttpResponse(response.status, target.url, kind, text, min(len(data), most), cut)

    what = what or f"binary content that calls itself {kind}"
    message = f"{quoted(target.url)} answered {response.status} with {what}; only text, JSON and XML can be read."

    if response.status >= 500:
        code = ToolErrorCode.UNAVAILABLE
    else:
        code = ToolErrorCode.INVALID_ARGUMENT

    return ToolError(code=code, message=message)
