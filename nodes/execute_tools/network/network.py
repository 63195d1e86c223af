"""The hosts that a run may ask, each of its requests bounded in where it goes, in size and in time."""

import codecs
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import gaierror
from typing import TYPE_CHECKING, Final

from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, Target, judge_redirect, judge_url
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    import httpcore2

    from mendgraph.nodes.execute_tools.network.checked_connections import Deadline, Resolve

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
_CHARSETS: Final = ("utf-8", "utf-16", "ascii", "iso8859-", "cp125", "koi8-", "shift_jis", "euc_", "gb", "big5")
"""Beginnings of codecs that read in linear time and give text; Python has others, such as punycode and zip."""
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def media_type(content_type: str) -> str:
    """`text/html` of `Text/HTML; charset=utf-8`; what cannot be read is `application/octet-stream`."""
    match = _TYPE.fullmatch(content_type)
    return match[1].lower() if match else UNKNOWN_TYPE


def is_text(kind: str) -> bool:
    """Whether a body of this media type is read: text, JSON, XML and their kin."""
    return kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml", "+yaml"))


def decode_text(data: bytes, content_type: str, *, cut: bool = False) -> str | None:
    """The body in its charset (UTF-8 unless it says otherwise), with U+FFFD for what does not fit; None if binary."""
    match = _CHARSET.search(content_type)
    try:
        named = codecs.lookup(match[1]).name if match else "utf-8"
    except LookupError:
        named = "utf-8"
    if named == "utf-16":
        named = "utf-16-le"  # Python insists on a byte order mark
    said = named if named.startswith(_CHARSETS) else "utf-8"
    codec = next((codec for mark, codec in _MARKS if data.startswith(mark)), said)
    if b"\x00" in data[:8_000] and not codec.startswith("utf-16"):
        return None
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
            if not isinstance(answer, str):
                return answer
            target = judge_redirect(target, answer, self.rules)
        message = f"{quoted(url)} redirects more than {self.rules.max_redirects} times."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

    def _answer(self, target: Target, deadline: "Deadline") -> HttpResponse | str | ToolError:
        """What the target answers, or where it redirects to."""
        import httpcore2

        from mendgraph.nodes.execute_tools.network.checked_connections import RefusedConnectionError

        try:
            with self._asked(target, deadline) as response:
                return _read(target, response, self.rules.max_bytes, deadline)
        except RefusedConnectionError as refused:
            return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=str(refused))
        except (TimeoutError, httpcore2.TimeoutException):
            message = f"{quoted(target.url)} did not answer completely within {deadline.seconds:g} s."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError, ValueError) as error:
            reason = str(error)[:_LONGEST_REASON] or type(error).__name__
            unreachable = isinstance(error, httpcore2.NetworkError | OSError) and not isinstance(error, gaierror)
            code = ToolErrorCode.UNAVAILABLE if unreachable else ToolErrorCode.IO_ERROR
            return ToolError(code=code, message=f"Cannot get {quoted(target.url)}: {reason}.")

    @contextmanager
    def _asked(self, target: Target, deadline: "Deadline") -> Iterator["httpcore2.Response"]:
        """The answer to one request, on a connection of its own that is closed at the end.

        The pool knows no proxies, cookies or environment; it is given the parts that were judged, not a URL to read.
        """
        import httpcore2

        from mendgraph.nodes.execute_tools.network import checked_connections as checked

        addresses = checked.allowed_addresses(target, self._resolve or checked.look_up, deadline)
        if target.scheme == "https" and self._tls is None:
            self._tls = httpcore2.default_ssl_context()
        backend = checked.CheckedBackend(target, addresses, deadline, self._backend or httpcore2.SyncBackend())
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        headers = {"Host": target.authority, **_HEADERS}
        with (
            httpcore2.ConnectionPool(ssl_context=self._tls, network_backend=backend) as pool,
            pool.stream("GET", url, headers=headers) as response,
        ):
            yield response


def _read(
    target: Target, response: "httpcore2.Response", most: int, deadline: "Deadline"
) -> HttpResponse | str | ToolError:
    headers: dict[str, str] = {}
    for name, value in response.headers:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace"))
    if response.status in _REDIRECTS and headers.get("location"):
        return headers["location"]
    kind, length = media_type(headers.get("content-type", "")), headers.get("content-length", "")
    encoding = headers.get("content-encoding", "").strip().lower()
    what = f"content encoded as {quoted(encoding)}" if encoding not in {"", "identity"} else ""
    if not is_text(kind) and response.status not in {204, 304} and length != "0":
        what = what or kind
    data = bytearray()
    for piece in () if what else response.iter_stream():
        deadline.left()
        data += piece
        if len(data) > most:
            break
    cut = len(data) > most
    text = None if what else decode_text(bytes(data[:most]), headers.get("content-type", ""), cut=cut)
    if text is not None:
        return HttpResponse(response.status, target.url, kind, text, min(len(data), most), cut)
    what = what or f"binary content that calls itself {kind}"
    message = f"{quoted(target.url)} answered {response.status} with {what}; only text, JSON and XML can be read."
    code = ToolErrorCode.UNAVAILABLE if response.status >= 500 else ToolErrorCode.INVALID_ARGUMENT
    return ToolError(code=code, message=message)
