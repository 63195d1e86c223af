import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx2
import pytest

from mendgraph.nodes.execute_tools.network.network import HttpResponse, Network, decode_text
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.row_tables import rows
from tests.workspace.network.loopback_servers import Everywhere, Listener, http_answer, require_loopback

PUBLIC = "93.184.216.34"
ADDRESSES = {"good.test": PUBLIC, "next.test": "1.1.1.1", "inner.test": "10.0.0.1", "evil.test": "8.8.8.8"}


def resolve(host: str, _: int) -> Sequence[str]:
    return [ADDRESSES[host]]


def network_to(listener: Listener, network: Everywhere | None = None, **rules: Any) -> Network:
    """A network that resolves each name of `ADDRESSES` and connects to this listener."""
    named = {"hosts": ("good.test", "next.test", "inner.test"), "max_bytes": 1000, "timeout_s": 10.0, **rules}
    return Network(NetworkRules(**named), resolve=resolve, backend=network or Everywhere(listener))


def error_of(answer: HttpResponse | ToolError) -> tuple[ToolErrorCode, str]:
    assert isinstance(answer, ToolError), answer
    return answer.code, answer.message


def test_document_is_read_with_its_type() -> None:
    with Listener(http_answer(b'{"a": 1}', content_type="application/json; charset=utf-8")) as listener:
        answer = network_to(listener).get("http://good.test/a?b#c", 5)
    assert answer == HttpResponse(200, "http://good.test/a?b", "application/json", '{"a": 1}', 8, cut=False)


def test_request_is_fixed_and_contains_nothing_about_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    cookie = http_answer(status="302 Found", location="/b", set_cookie="a=b", content_length="0")
    with Listener(lambda head: [cookie if b" /a " in head else http_answer()]) as listener:
        network_to(listener).get("http://good.test/a", 5)
        sent = listener.requests
    headers = (
        b"Host: good.test\r\nUser-Agent: mendgraph\r\nAccept: text/*, application/json, application/xml, */*;q=0.1\r\n"
        b"Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
    )
    assert sent == [b"GET /a HTTP/1.1\r\n" + headers, b"GET /b HTTP/1.1\r\n" + headers]


@rows("127.0.0.1", "::1")
def test_allowed_private_host_is_reached_over_a_real_connection(host: str) -> None:
    """Uses the real network stack; by the name localhost the same listener is refused."""
    with Listener(http_answer(), host=require_loopback(host)) as listener:
        entry = f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
        network = Network(NetworkRules(hosts=(entry, f"localhost:{listener.port}"), allow_private=(entry,)))
        answer = network.get(f"http://{entry}/", 5)
        assert answer == HttpResponse(200, f"http://{entry}/", "text/plain", "hello", 5, cut=False)
        assert f"Host: {entry}\r\n".encode() in listener.requests[0]
        code, message = error_of(network.get(f"http://localhost:{listener.port}/", 5))
    assert (code, "is private" in message) == (ToolErrorCode.PERMISSION_DENIED, True)
    assert listener.connections == 1


@rows(
        ("http://evil.test/", "Domain 'evil.test' not allowed"), ("//evil.test/", "Domain 'evil.test' not allowed"),
        ("http://inner.test/", "its address 10.0.0.1 is private"),
        ("http://good.test:22/", "Port 22 of 'good.test' not allowed"),
        ("http://127.0.0.1/", "Domain '127.0.0.1' not allowed"), ("http://2130706433/", "is not a host"),
        ("http://good.test@evil.test/", "user name or password"), ("ftp://good.test/", "not http or https"),
        ("file:///etc/passwd", "not http or https"), ("http://good.test\\@evil.test/", "percent-encoded"),
        ("/\\evil.test/", "percent-encoded"), ("http://[", "not a URL"), ("/a\tb", r"the character '\t'"),)  # fmt: skip
def test_disallowed_redirect_is_not_followed(location: str, part: str) -> None:
    """The listener answers for every host: only the first request reaches it."""
    with Listener(http_answer(status="302 Found", location=location)) as listener:
        network = Everywhere(listener)
        code, message = error_of(network_to(listener, network).get("http://good.test/", 5))
    assert code in {ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.INVALID_ARGUMENT}
    assert message.startswith("'http://good.test/' redirects to ") or "private" in part
    assert part in message
    assert (network.connected, listener.connections) == ([PUBLIC], 1)


@rows("301", "302", "303", "307", "308")
def test_every_kind_of_redirect_is_followed(status: str) -> None:
    away = http_answer(b"", status=f"{status} Elsewhere", location="/b", content_length="0")
    with Listener(lambda head: [away if b" /a " in head else http_answer()]) as listener:
        answer = network_to(listener).get("http://good.test/a", 5)
    assert answer == HttpResponse(200, "http://good.test/b", "text/plain", "hello", 5, cut=False)


@rows("300", "304", "305")
def test_other_status_with_a_location_is_an_answer(status: str) -> None:
    with Listener(http_answer(b"", status=f"{status} Elsewhere", location="/b", content_length="0")) as listener:
        answer = network_to(listener).get("http://good.test/a", 5)
    assert isinstance(answer, HttpResponse)
    assert (answer.status, listener.connections) == (int(status), 1)


def test_redirect_loop_ends() -> None:
    with Listener(http_answer(status="302 Found", location="http://good.test/")) as listener:
        answer = network_to(listener).get("http://good.test/", 5)
    assert listener.connections == 6
    assert error_of(answer) == (ToolErrorCode.IO_ERROR, "'http://good.test/' redirects more than 5 times.")


def test_long_answer_is_cut() -> None:
    with Listener(http_answer(b"x" * 1001)) as listener:
        answer = network_to(listener).get("http://good.test/", 5)
    assert answer == HttpResponse(200, "http://good.test/", "text/plain", "x" * 1000, 1000, cut=True)


@rows(
    (http_answer(b"x", content_type=""), "answered 200 with application/octet-stream"),
    (http_answer(b"x", status="404 x", content_type="image/png"), "answered 404 with image/png"),
    (http_answer(b"a\x00b"), "binary content that calls itself text/plain"),
    (http_answer(b"x", content_encoding="gzip"), "content encoded as 'gzip'"),
)
def test_non_text_answer_is_refused_with_its_type_and_size(answer: bytes, message: str) -> None:
    with Listener(answer) as listener:
        code, error_message = error_of(network_to(listener).get("http://good.test/", 5))
    assert code is ToolErrorCode.INVALID_ARGUMENT
    assert message in error_message
    assert error_message.endswith("; only text, JSON and XML can be read.")


def slow_answer(head: bytes, drop: bytes) -> Callable[[bytes], Iterable[bytes]]:
    def answer(_: bytes) -> Iterable[bytes]:
        yield head
        for _drop in range(1000):
            time.sleep(0.02)
            yield drop

    return answer


@rows(
    (http_answer(b"", content_length="1000"), b"x"),
    (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
)
def test_slow_dripping_server_times_out(head: bytes, drop: bytes) -> None:
    with Listener(slow_answer(head, drop)) as listener:
        began = time.monotonic()
        code, message = error_of(network_to(listener).get("http://good.test/", 0.3))
        assert time.monotonic() - began < 3
    assert (code, message) == (ToolErrorCode.TIMEOUT, "'http://good.test/' did not answer completely within 0.3 s.")


@rows(
    b"",
    b"garbage\r\n\r\n",
    b"HTTP/1.1 200 OK\r\na: b\x00c\r\n\r\n",
    http_answer(b"hello", content_length="6"),
    http_answer(b"zz\r\nhello", content_length="", transfer_encoding="chunked"),
    b"HTTP/1.1 200 OK\r\na: " + b"b" * 1_000_000,
)
def test_unintelligible_response_is_a_typed_error(answer: bytes) -> None:
    with Listener(answer) as listener:
        code, message = error_of(network_to(listener).get("http://good.test/", 5))
    assert code is ToolErrorCode.IO_ERROR
    assert message.startswith("Cannot get 'http://good.test/': ")
    assert len(message) < 400


@rows("http://evil.test/", "http://good.test@evil.test/", "http://good.test/\r\nHost: evil.test", "http://0x7f.1/")
def test_refused_address_is_not_looked_up(url: str) -> None:
    lookups: list[str] = []

    def note(host: str, _: int) -> Sequence[str]:
        lookups.append(host)
        return [PUBLIC]

    with Listener(http_answer()) as listener:
        network = Network(NetworkRules(hosts=("good.test",)), resolve=note, backend=Everywhere(listener))
        assert isinstance(network.get(url, 5), ToolError)
    assert (lookups, listener.connections) == ([], 0)


def test_url_that_only_looks_allowed_is_refused_unlike_in_plain_httpx() -> None:
    with Listener(http_answer(b"secret")) as listener:
        url = f"http://good.test@127.0.0.1:{listener.port}/"
        assert isinstance(network_to(listener).get(url, 5), ToolError)
        assert httpx2.get(url, trust_env=False).text == "secret"
    assert listener.connections == 1


@rows(
    ("héllo".encode(), "text/plain", "héllo"),
    ("héllo".encode("latin-1"), "text/plain; charset=ISO-8859-1", "héllo"),
    ("héllo".encode("latin-1"), 'text/plain; Charset = "latin1"', "héllo"),
    ("héllo".encode("utf-16"), "text/plain", None),
    ("héllo".encode("utf-8-sig"), "text/plain; charset=latin-1", "héllo"),
    (b"h\xe9llo", "text/plain", "h\ufffdllo"),
    (b"a-b", "text/plain; charset=punycode", "a-b"),
    (b"hello", "text/plain; charset=../../x", "hello"),
    (b"", "text/plain", ""),
    (b"a\x00b", "text/plain", None),
)
def test_body_is_decoded_by_its_content_type(data: bytes, content_type: str, text: str | None) -> None:
    assert decode_text(data, content_type) == text


def test_truncated_character_is_dropped() -> None:
    assert decode_text("hé".encode()[:2], "text/plain", cut=True) == "h"
    assert decode_text("hé".encode()[:2], "text/plain") == "h\ufffd"
