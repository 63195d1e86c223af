"""The hosts that a run may ask, each of its requests bounded in where it goes, in size and in time.

What an answer's body says is unpacked piece by piece within a bound, and read as text if it is one.
"""

import codecs
import re
import ssl
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, Target, judge_redirect, judge_url
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    import httpcore2

    from mendgraph.nodes.execute_tools.network.checked_connections import Deadline, Resolve

ENCODINGS: Final = frozenset({"", "identity", "gzip", "x-gzip"})
"""What may be around a body, once: more layers could keep a reader busy without giving it a byte."""
UNKNOWN_TYPE: Final = "application/octet-stream"
"""What a body is that says nothing of itself. Source: RFC 9110, section 8.3."""

_PIECE_BYTES: Final = 1 << 16
_SNIFFED_BYTES: Final = 8_000
_GZIP: Final = zlib.MAX_WBITS | 16
_TYPE: Final = re.compile(
    r"\s*([a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100})\s*(?:;.*)?", re.IGNORECASE | re.DOTALL
)
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*[\"']?([a-z0-9_.:-]{1,40})", re.IGNORECASE)
_TEXT_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("json", "xml", "javascript", "x-javascript", "x-ndjson", "yaml", "x-yaml", "toml", "x-sh")
)
_CHARSETS: Final = ("utf-8", "utf-16", "utf-32", "ascii", "iso8859-", "cp125", "cp866", "koi8-", "mac-")
_ASIAN_CHARSETS: Final = ("shift_jis", "euc_", "gb", "big5", "cp932", "cp949", "cp950")
"""Beginnings of codecs that read in linear time and give text; Python has others, such as punycode and zip."""
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class Body(NamedTuple):
    """The bytes that were kept; `cut` says that there are more."""

    data: bytes
    cut: bool


def media_type(content_type: str) -> str:
    """`text/html` of `Text/HTML; charset=utf-8`; what cannot be read is `application/octet-stream`."""
    match = _TYPE.fullmatch(content_type)
    return match[1].lower() if match else UNKNOWN_TYPE


def is_text(kind: str) -> bool:
    """Whether a body of this media type is read: text, JSON, XML and their kin."""
    return kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml", "+yaml"))


def read_body(chunks: Iterable[bytes], encoding: str, most: int, check: Callable[[], object]) -> Body:
    """The first `most` bytes of the body after decompression; no more is ever held than a piece beyond that.

    `check` is called at each piece, and may raise to end it.

    Raises:
        ValueError: what came is not the compressed data that it should be, or breaks off.
    """
    data = bytearray()
    for piece in _unzipped(chunks) if encoding in {"gzip", "x-gzip"} else chunks:
        check()
        data += piece
        if len(data) > most:
            return Body(bytes(data[:most]), cut=True)
    return Body(bytes(data), cut=False)


def decode_text(body: Body, content_type: str) -> str | None:
    """The body in its charset (UTF-8 unless it says otherwise), with U+FFFD for what does not fit; None if binary."""
    codec = next((codec for mark, codec in _MARKS if body.data.startswith(mark)), "") or _charset(content_type)
    if b"\x00" in body.data[:_SNIFFED_BYTES] and not codec.startswith(("utf-16", "utf-32")):
        return None
    return codecs.getincrementaldecoder(codec)(errors="replace").decode(body.data, final=not body.cut)


def _charset(content_type: str) -> str:
    match = _CHARSET.search(content_type)
    try:
        name = codecs.lookup(match[1]).name if match else "utf-8"
    except LookupError:
        return "utf-8"
    if name in {"utf-16", "utf-32"}:
        return f"{name}-le"  # Python insists on a byte order mark, and where there is one it was seen already
    return name if name.startswith(_CHARSETS + _ASIAN_CHARSETS) else "utf-8"


def _unzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP)
    begun = False
    for chunk in chunks:
        begun = begun or bool(chunk)
        rest = chunk
        while rest and not unpacker.eof:
            try:
                yield unpacker.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise ValueError(f"its gzip data is damaged ({error})") from error
            rest = unpacker.unconsumed_tail
    if begun and not unpacker.eof:
        raise ValueError("its gzip data breaks off")


_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final[dict[bytes | str, bytes | str]] = {
    "User-Agent": "mendgraph",
    "Accept": "text/*, application/json, application/xml, */*;q=0.1",
    "Accept-Encoding": "gzip",
    "Connection": "close",
}
"""The same for every request: nothing in them is about the user, the machine or an earlier answer."""
_LONGEST_REASON: Final = 200


@dataclass(frozen=True)
class HttpResponse:
    """An answer, of whatever status. `url` is where it came from in the end, `content_type` its media type.

    `size` counts the bytes of the body that were read, after decompression; `cut` says that there are more.
    """

    status: int
    url: str
    content_type: str
    text: str
    size: int
    cut: bool


@dataclass(frozen=True)
class _Redirect:
    location: str


class Network:
    """What a run may ask. `resolve`, `tls` and `backend` stand in for the system's name server, roots and sockets."""

    def __init__(
        self,
        rules: NetworkRules,
        *,
        resolve: "Resolve | None" = None,
        tls: ssl.SSLContext | None = None,
        backend: "httpcore2.NetworkBackend | None" = None,
    ) -> None:
        self.rules = rules
        self._resolve, self._tls, self._backend = resolve, tls, backend

    def get(self, url: str, timeout_s: float) -> HttpResponse | ToolError:
        """GET `url`, and follow its redirects by the same rules; `timeout_s` seconds, or the rules', for all of it.

        INVALID_ARGUMENT for what is no such URL or no text, PERMISSION_DENIED for what the rules do not allow, TIMEOUT,
        UNAVAILABLE for a server that cannot be reached and IO_ERROR for one that cannot be understood.
        """
        from mendgraph.nodes.execute_tools.network.checked_connections import Deadline

        deadline = Deadline(min(timeout_s, self.rules.timeout_s))
        target = judge_url(url, self.rules)
        for _ in range(self.rules.max_redirects + 1):
            if isinstance(target, ToolError):
                return target
            answer = self._answer(target, deadline)
            if not isinstance(answer, _Redirect):
                return answer
            target = judge_redirect(target, answer.location, self.rules)
        message = f"{quoted(url)} redirects more than {self.rules.max_redirects} times."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

    def _answer(self, target: Target, deadline: "Deadline") -> HttpResponse | _Redirect | ToolError:
        import httpcore2

        from mendgraph.nodes.execute_tools.network.checked_connections import RefusedConnectionError

        try:
            with self._asked(target, deadline) as response:
                return _read(target, response, self.rules.max_bytes, deadline)
        except RefusedConnectionError as refused:
            return refused.error
        except (TimeoutError, httpcore2.TimeoutException):
            message = f"{quoted(target.url)} did not answer completely within {deadline.seconds:g} s."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError, ValueError) as error:
            reason = str(error)[:_LONGEST_REASON] or type(error).__name__
            unreachable = isinstance(error, httpcore2.NetworkError | OSError)
            code = ToolErrorCode.UNAVAILABLE if unreachable else ToolErrorCode.IO_ERROR
            return ToolError(code=code, message=f"Cannot get {quoted(target.url)}: {reason}.")

    @contextmanager
    def _asked(self, target: Target, deadline: "Deadline") -> Iterator["httpcore2.Response"]:
        """The answer to one request, on a connection of its own that is closed at the end.

        The pool knows no proxies, cookies or environment; it is given the parts that were judged, not a URL to read.
        """
        import httpcore2

        from mendgraph.nodes.execute_tools.network.checked_connections import (
            CheckedBackend,
            RefusedConnectionError,
            allowed_addresses,
            look_up,
        )

        addresses = allowed_addresses(target, self._resolve or look_up, deadline)
        if isinstance(addresses, ToolError):
            raise RefusedConnectionError(addresses)
        if target.scheme == "https" and self._tls is None:
            self._tls = httpcore2.default_ssl_context()
        backend = CheckedBackend(target, addresses, deadline, self._backend or httpcore2.SyncBackend())
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        headers = {"Host": target.authority, **_HEADERS}
        with (
            httpcore2.ConnectionPool(ssl_context=self._tls, network_backend=backend) as pool,
            pool.stream("GET", url, headers=headers) as response,
        ):
            yield response


def _read(
    target: Target, response: "httpcore2.Response", most: int, deadline: "Deadline"
) -> HttpResponse | _Redirect | ToolError:
    headers = _texts(response)
    if response.status in _REDIRECTS and headers.get("location"):
        return _Redirect(headers["location"])
    kind = media_type(headers.get("content-type", ""))
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ENCODINGS:
        return _unread(target, response, f"content encoded as {quoted(encoding)}", headers)
    if not is_text(kind) and not _is_empty(response, headers):
        return _unread(target, response, kind, headers)
    body = read_body(response.iter_stream(), encoding, most, deadline.left)
    text = decode_text(body, headers.get("content-type", ""))
    if text is None:
        return _unread(target, response, f"binary content that calls itself {kind}", headers)
    return HttpResponse(response.status, target.url, kind, text, len(body.data), body.cut)


def _texts(response: "httpcore2.Response") -> dict[str, str]:
    """The headers as text, by lower-case name; the first of each counts, but encodings add up."""
    headers: dict[str, str] = {}
    for raw_name, raw in response.headers:
        name, value = raw_name.decode("latin-1").lower(), raw.decode("utf-8", "replace")
        if name == "content-encoding" and name in headers:
            value = f"{headers.pop(name)}, {value}"
        headers.setdefault(name, value)
    return headers


def _is_empty(response: "httpcore2.Response", headers: dict[str, str]) -> bool:
    return response.status in {204, 304} or headers.get("content-length") == "0"


def _unread(target: Target, response: "httpcore2.Response", what: str, headers: dict[str, str]) -> ToolError:
    length = headers.get("content-length", "")
    size = f"{length} bytes" if length.isdecimal() and len(length) < 20 else "unknown size"
    message = (
        f"{quoted(target.url)} answered {response.status} with {what} of {size}; only text, JSON and XML can be read."
    )
    code = ToolErrorCode.UNAVAILABLE if response.status >= 500 else ToolErrorCode.INVALID_ARGUMENT
    return ToolError(code=code, message=message)
