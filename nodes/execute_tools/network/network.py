"""HTTP requests of a run: to allowed hosts only, each bounded in size and time.

Connections go to checked addresses only, and end at the deadline of the request. A name is resolved once, so that a
name server that changes its answer (DNS rebinding) gains nothing. Allowed are addresses of the public internet, and
private ones of hosts that the user has named. This module is imported only in runs with network access.
"""

import codecs
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import httpcore2

from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, Target, judge_redirect, judge_url
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.files.deadline import call_within, monotonic_s

# --- Connections

_PRIVATE: Final = tuple(map(ip_network, (
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7",
)))  # fmt: skip
"""Addresses of a host in `allowed_private_hosts`."""
_NEVER: Final = tuple(map(ip_network, (
    "100.100.100.200", "168.63.129.16", "fd00:ec2::/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16",
    "3fff::/20",
)))  # fmt: skip
"""Metadata services of clouds, and reserved networks that some Pythons take for public."""
_UNICAST: Final = IPv6Network("2000::/3")  # the only part of IPv6 that hosts of the public internet have
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""A gateway connects to the IPv4 address in the last 32 bits, so that one is judged. Source: RFC 6052."""


def why_forbidden(address: str, *, private_allowed: bool = False) -> str:
    """Return why connections to this address are forbidden: "private", "reserved", "no address"; "" for an allowed one.

    `private_allowed` allows private and loopback addresses. Source: the IANA special-purpose address registries, as
    `ipaddress` has them.
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

    if not parsed.is_global or parsed.is_multicast:
        return "reserved"
    if isinstance(parsed, IPv6Address) and parsed not in _UNICAST:
        return "reserved"

    return ""


def refused_by_name(target: Target) -> ToolError | None:
    """Return why connections to this host are forbidden, if its name is a forbidden address or that of this machine."""
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
"""Returns the addresses of a host for a port; raises OSError if it has none."""

_CONNECT_S: Final = 5.0  # seconds after which the next of several addresses is tried
_MOST_ADDRESSES: Final = 8


def look_up(host: str, port: int) -> Sequence[str]:
    """Return the addresses of `host` by the system's resolver; raises OSError if it has none."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in addresses))


class RefusedConnectionError(Exception):
    """Connections to an address of the request are forbidden."""

    def __init__(self, target: Target, address: str, reason: str) -> None:
        can_be_allowed = why_forbidden(address) and not why_forbidden(address, private_allowed=True)
        remedy = ""
        if can_be_allowed:
            remedy = " To allow your own host, add it to allowed_private_hosts."

        super().__init__(f"Domain {quoted(target.host)} not allowed: its address {address} is {reason}.{remedy}")


class Deadline:
    """The deadline of one request, redirects included."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = monotonic_s() + seconds

    def remaining_s(self) -> float:
        """Return the remaining seconds, more than 0. Raises TimeoutError if none remain."""
        remaining_s = self._end - monotonic_s()
        if remaining_s <= 0:
            raise TimeoutError

        return remaining_s


def allowed_addresses(target: Target, resolve: Resolve, deadline: Deadline) -> Sequence[str]:
    """Return the addresses of the target; raises RefusedConnectionError if one of them is forbidden.

    A lookup cannot be interrupted: at the deadline its thread is abandoned.
    """
    try:
        addresses: Sequence[str] = (str(ip_address(target.host)),)
    except ValueError:
        addresses = call_within(deadline.remaining_s(), lambda: resolve(target.host, target.port))

    for address in addresses:
        forbidden = why_forbidden(address, private_allowed=target.private_allowed)
        if forbidden:
            raise RefusedConnectionError(target, address, forbidden)

    return addresses[:_MOST_ADDRESSES]


class CheckedBackend(httpcore2.NetworkBackend):
    """Connects to one of `addresses`, whatever name it gets, by another `backend`."""

    def __init__(
        self, target: Target, addresses: Sequence[str], deadline: Deadline, backend: httpcore2.NetworkBackend
    ) -> None:
        self._target = target
        self._addresses = addresses
        self._deadline = deadline
        self._backend = backend

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - the name must not be resolved again
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline is valid instead
        local_address: str | None = None,  # noqa: ARG002 - callers pass none
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Return the first connection that succeeds; its peer is checked again before a byte is sent.

        Raises:
            RefusedConnectionError: the peer is not the address that was checked.
            httpcore2.ConnectError: no address accepts a connection.
        """
        failure: Exception = httpcore2.ConnectError("it has no address")

        for address in self._addresses:
            seconds = min(self._deadline.remaining_s(), _CONNECT_S)
            try:
                stream = self._backend.connect_tcp(address, port, timeout=seconds, socket_options=socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
                continue

            with ExitStack() as closing:
                closing.callback(stream.close)
                peer = str(stream.get_extra_info("server_addr")[0])
                forbidden = why_forbidden(peer, private_allowed=self._target.private_allowed)

                if forbidden or ip_address(peer) != ip_address(address):
                    raise RefusedConnectionError(self._target, peer, forbidden or "not the one that was looked up")

                closing.pop_all()

            return _TimedStream(stream, self._deadline)

        raise failure


class _TimedStream(httpcore2.NetworkStream):
    """A connection whose reads and writes end at the deadline, also with a server that sends single bytes."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the deadline is valid instead
        return self._stream.read(max_bytes, self._deadline.remaining_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the deadline is valid instead
        self._stream.write(buffer, self._deadline.remaining_s())

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - the deadline is valid instead
    ) -> httpcore2.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, self._deadline.remaining_s())
        return _TimedStream(secured, self._deadline)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


# --- Content types

UNKNOWN_TYPE: Final = "application/octet-stream"
"""The type of a body without a Content-Type. Source: RFC 9110, section 8.3."""
_TYPE: Final = re.compile(
    r"\s*([a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100})\s*(?:;.*)?", re.IGNORECASE | re.DOTALL
)
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*[\"']?([a-z0-9_.:-]{1,40})", re.IGNORECASE)
_TEXT_SUBTYPES: Final = frozenset(
    {"json", "xml", "javascript", "x-javascript", "x-ndjson", "yaml", "x-yaml", "toml", "x-sh"}
)
"""Subtypes of `application` that are text."""
_LATIN: Final = {"iso8859-1": "cp1252", "cp1252": "cp1252", "ascii": "cp1252"}
"""Codecs of old pages, by the declared ones. Source: WHATWG Encoding."""


def decode_text(data: bytes, content_type: str, *, cut: bool = False) -> str | None:
    """Decode the body as Latin-1 if that is declared, else as UTF-8, with U+FFFD for errors; None if it is binary."""
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
"""The headers of every request: they hold nothing about the user, the machine or earlier responses."""
_NONE: Final[Mapping[str, str]] = {}
_LONGEST_REASON: Final = 200


@dataclass(frozen=True)
class HttpResponse:
    """A response of any status. `url` is the last one after redirects, `content_type` the media type.

    `size` counts the bytes of the body that were read; `cut`: the body has more. `unreadable`: it is no text.
    """

    status: int
    url: str
    content_type: str
    text: str
    size: int
    cut: bool
    unreadable: ToolError | None = None


class Network:
    """The network access of a run. `resolve`, `tls` and `backend` replace the system's resolver, roots and sockets."""

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
        """GET `url` and follow its redirects, in `timeout_s` seconds or those of the rules, whichever is less.

        INVALID_ARGUMENT for an invalid URL and for binary content, PERMISSION_DENIED for what the rules do not allow,
        TIMEOUT, UNAVAILABLE for a server that cannot be reached, IO_ERROR for one that breaks the protocol.
        """
        deadline = Deadline(min(timeout_s, self.rules.timeout_s))
        target = judge_url(url, self.rules)

        for _ in range(self.rules.max_redirects + 1):
            if isinstance(target, ToolError):
                return target

            response = self._send(target, deadline)
            if isinstance(response, HttpResponse) and response.unreadable:
                return response.unreadable
            if not isinstance(response, str):
                return response

            target = judge_redirect(target, response, self.rules)

        message = f"{quoted(url)} redirects more than {self.rules.max_redirects} times."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

    def ask(self, url: str, timeout_s: float, headers: Mapping[str, str], body: bytes) -> HttpResponse | ToolError:
        """Send one request with further `headers`, a POST if it has a `body`; the errors are those of `get`.

        A redirect is an IO_ERROR: the headers may hold a key. An `unreadable` response is returned for its status.
        """
        deadline = Deadline(min(timeout_s, self.rules.timeout_s))
        target = judge_url(url, self.rules)
        if isinstance(target, ToolError):
            return target

        response = self._send(target, deadline, headers, body)
        if not isinstance(response, str):
            return response

        message = (
            f"{quoted(target.url)} redirects to {quoted(response)}, which is not followed: name the final address."
        )
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

    def _send(
        self, target: Target, deadline: Deadline, more_headers: Mapping[str, str] = _NONE, body: bytes = b""
    ) -> HttpResponse | str | ToolError:
        """Send one request; the response, or the Location of a redirect."""
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        headers: dict[bytes | str, bytes | str] = {"Host": target.authority, **_HEADERS}
        headers.update(more_headers.items())
        method = "POST" if body else "GET"

        try:
            addresses = allowed_addresses(target, self._resolve, deadline)
            if target.scheme == "https" and self._tls is None:
                self._tls = httpcore2.default_ssl_context()

            backend = CheckedBackend(target, addresses, deadline, self._backend)
            with (  # one connection, closed at the end; the pool uses no proxies, cookies or environment variables
                httpcore2.ConnectionPool(ssl_context=self._tls, network_backend=backend) as pool,
                pool.stream(method, url, headers=headers, content=body or None) as response,
            ):
                return _read(target, response, self.rules.max_bytes, deadline)
        except RefusedConnectionError as refused:
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=str(refused))
        except (TimeoutError, httpcore2.TimeoutException):
            message = f"{quoted(target.url)} did not answer completely within {deadline.seconds:g} s."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError, ValueError) as error:
            reason = str(error)[:_LONGEST_REASON] or type(error).__name__
            is_unreachable = isinstance(error, httpcore2.NetworkError | OSError)
            code = ToolErrorCode.IO_ERROR
            if is_unreachable and not isinstance(error, socket.gaierror):
                code = ToolErrorCode.UNAVAILABLE

            return ToolError(code=code, message=f"Cannot get {quoted(target.url)}: {reason}.")


def _read(
    target: Target, response: httpcore2.Response, most: int, deadline: Deadline
) -> HttpResponse | str | ToolError:
    headers: dict[str, str] = {}
    for name, value in response.headers:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace"))

    if response.status in _REDIRECTS and headers.get("location"):
        return headers["location"]

    content_type = headers.get("content-type", "")
    match = _TYPE.fullmatch(content_type)
    media_type = match[1].lower() if match else UNKNOWN_TYPE  # `text/html` of `Text/HTML; charset=utf-8`
    unreadable = _unreadable_content(response.status, media_type, headers)
    if unreadable:
        problem = _not_text(target, response.status, unreadable)
        return HttpResponse(response.status, target.url, media_type, "", 0, cut=False, unreadable=problem)

    data = bytearray()

    for piece in response.iter_stream():
        deadline.remaining_s()
        data += piece
        if len(data) > most:
            break

    cut = len(data) > most
    text = decode_text(bytes(data[:most]), content_type, cut=cut)
    if text is None:
        problem = _not_text(target, response.status, f"binary content that calls itself {media_type}")
        return HttpResponse(response.status, target.url, media_type, "", 0, cut=False, unreadable=problem)

    return HttpResponse(response.status, target.url, media_type, text, min(len(data), most), cut)


def _unreadable_content(status: int, media_type: str, headers: Mapping[str, str]) -> str:
    """Return why the body is not read: its encoding or its type; "" for text and for an empty body."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in {"", "identity"}:
        return f"content encoded as {quoted(encoding)}"

    kind, _, subtype = media_type.partition("/")
    is_text = kind == "text" or (kind == "application" and subtype in _TEXT_SUBTYPES)
    if is_text or media_type.endswith(("+json", "+xml", "+yaml")):
        return ""

    is_empty = status in {204, 304} or headers.get("content-length") == "0"
    return "" if is_empty else media_type


def _not_text(target: Target, status: int, content: str) -> ToolError:
    code = ToolErrorCode.UNAVAILABLE if status >= 500 else ToolErrorCode.INVALID_ARGUMENT
    message = f"{quoted(target.url)} answered {status} with {content}; only text, JSON and XML can be read."
    return ToolError(code=code, message=message)
