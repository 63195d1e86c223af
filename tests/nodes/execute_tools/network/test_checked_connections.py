import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterable, Sequence

import httpcore2
import httpx2
import pytest
from hypothesis import example, given, strategies as st

from mendgraph.nodes.execute_tools.network.checked_connections import (
    CheckedBackend,
    Deadline,
    RefusedConnectionError,
    allowed_addresses,
    look_up,
    why_forbidden,
)
from mendgraph.nodes.execute_tools.network.network import HttpResponse, Network
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, Target
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.network.loopback_servers import (
    Everywhere,
    Listener,
    certificate_for,
    http_answer,
    require,
    serving,
)

TARGET = Target("http", "a.test", 80, "/")
PUBLIC = "93.184.216.34"
FORBIDDEN = [
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "100.100.100.200", "0.0.0.0", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.0.8"),  # noqa: S104 - nothing binds to it
    *("::1", "::", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("::127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2001:0:7f00:1::"),
]


def resolving(*addresses: str) -> "Lookups":
    return Lookups([list(addresses)])


class Lookups:
    """A name server that gives these answers in turn, the last one for ever."""

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self.answers, self.asked = answers, 0

    def __call__(self, *_: object) -> Sequence[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


def fetch(backend: httpcore2.NetworkBackend) -> int:
    """A plain client: the losing control, unless `backend` checks."""
    with httpcore2.ConnectionPool(network_backend=backend) as pool:
        return pool.request("GET", "http://a.test/").status


@pytest.mark.parametrize("address", FORBIDDEN)
def test_no_byte_reaches_a_forbidden_address_and_a_plain_client_reaches_it(address: str) -> None:
    with Listener(http_answer()) as listener:
        judged = allowed_addresses(TARGET, resolving(PUBLIC, address), Deadline(5))
        assert isinstance(judged, ToolError)
        assert judged.code is ToolErrorCode.PERMISSION_DENIED
        assert judged.message.startswith(f"Domain 'a.test' not allowed: its address {address} is ")
        with pytest.raises(RefusedConnectionError, match="not allowed: its address"):
            fetch(CheckedBackend(TARGET, [address], Deadline(5), Everywhere(listener)))
        with httpcore2.ConnectionPool(network_backend=Everywhere(listener)) as control:
            host = f"[{address}]" if ":" in address else address
            assert control.request("GET", httpcore2.URL(f"http://{host}/")).status == 200
    assert [bool(each) for each in listener.requests] == [False, True]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_loopback_is_refused_and_plain_httpx_reaches_it(host: str) -> None:
    target = Target("http", host, 80, "/")
    with Listener(http_answer(), host=require(host)) as listener:
        judged = allowed_addresses(target, look_up, Deadline(5))
        assert isinstance(judged, ToolError)
        assert judged.code is ToolErrorCode.PERMISSION_DENIED
        url = Target("http", host, listener.port, "/").url
        assert httpx2.get(url, trust_env=False).status_code == 200
    assert listener.connections == 1


def test_a_host_that_is_named_for_it_may_be_private_but_never_link_local() -> None:
    target = Target("http", "a.test", 80, "/", private_allowed=True)
    assert allowed_addresses(target, resolving("10.0.0.1", "::1"), Deadline(5)) == ("10.0.0.1", "::1")
    for each in (target, TARGET):
        judged = allowed_addresses(each, resolving("169.254.169.254"), Deadline(5))
        assert isinstance(judged, ToolError)
        assert judged.message == "Domain 'a.test' not allowed: its address 169.254.169.254 is link-local."


def test_a_name_server_that_changes_its_answer_gains_nothing() -> None:
    """DNS rebinding. The control checks a name, then connects to that name, as clients do."""
    with Listener(http_answer()) as listener:
        lookups, network = Lookups([[PUBLIC], ["127.0.0.1"]]), Everywhere(listener)
        addresses = allowed_addresses(TARGET, lookups, Deadline(5))
        assert addresses == (PUBLIC,)
        assert fetch(CheckedBackend(TARGET, addresses, Deadline(5), network)) == 200
        assert (lookups.asked, network.connected) == (1, [PUBLIC])

        control, network = Lookups([[PUBLIC], ["127.0.0.1"]]), Everywhere(listener)
        assert not isinstance(allowed_addresses(TARGET, control, Deadline(5)), ToolError)
        network.connect_tcp(control("a.test", 80)[0], 80).close()
        assert network.connected == ["127.0.0.1"]


@pytest.mark.parametrize("far_end", ["127.0.0.1", "10.0.0.1", "93.184.216.35"])
def test_the_far_end_of_the_connection_is_checked_before_a_byte_is_sent(far_end: str) -> None:
    with Listener(http_answer()) as listener:
        with pytest.raises(RefusedConnectionError):
            fetch(CheckedBackend(TARGET, [PUBLIC], Deadline(5), Everywhere(listener, far_end=far_end)))
        assert fetch(Everywhere(listener, far_end=far_end)) == 200
    assert [bool(each) for each in listener.requests] == [False, True]


def test_every_step_has_the_time_that_is_left() -> None:
    with Listener(http_answer()) as listener:
        stream = CheckedBackend(TARGET, [PUBLIC], Deadline(0.05), Everywhere(listener)).connect_tcp("a.test", 80)
        with pytest.raises((httpcore2.ReadTimeout, TimeoutError)):
            stream.read(1)
        for step in (lambda: stream.read(1), lambda: stream.write(b"x")):
            with pytest.raises(TimeoutError):
                step()
        stream.close()


def test_a_lookup_that_hangs_is_left_behind() -> None:
    over = threading.Event()

    def hang(*_: object) -> Sequence[str]:
        over.wait(10)
        return [PUBLIC]

    with pytest.raises(TimeoutError):
        allowed_addresses(TARGET, hang, Deadline(0.05))
    over.set()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label too long"), "UnicodeError"),
        (OSError(), "OSError"),
    ],
)
def test_a_name_without_an_address(error: Exception, reason: str) -> None:
    def fail(*_: object) -> Sequence[str]:
        raise error

    judged = allowed_addresses(TARGET, fail, Deadline(5))
    message = f"The address of 'a.test' cannot be looked up: {reason}."
    assert judged == ToolError(code=ToolErrorCode.IO_ERROR, message=message)


# --- TLS, with a name that is looked up once and checked against the certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    return certificate_for("a.test", tmp_path_factory.mktemp("tls"))


def ask(host: str, listener: Listener, tls: ssl.SSLContext | None, seconds: float = 5) -> HttpResponse | ToolError:
    rules = NetworkRules(hosts=("a.test", "b.test"))
    network = Network(rules, resolve=resolving(PUBLIC), tls=tls, backend=Everywhere(listener))
    return network.get(f"https://{host}/", seconds)


def test_a_certificate_that_is_trusted_and_for_the_name(certificate: str) -> None:
    with Listener(http_answer(), tls=serving(certificate)) as listener:
        answer = ask("a.test", listener, ssl.create_default_context(cafile=certificate))
    assert answer == HttpResponse(200, "https://a.test/", "text/plain", "hello", 5, cut=False)


@pytest.mark.parametrize(
    ("host", "trusted", "reason"),
    [("b.test", True, "Hostname mismatch"), ("a.test", False, "certificate verify failed")],
)
def test_any_other_certificate_is_refused_before_a_request(
    certificate: str, host: str, trusted: bool, reason: str
) -> None:
    with Listener(http_answer(), tls=serving(certificate)) as listener:
        answer = ask(host, listener, ssl.create_default_context(cafile=certificate) if trusted else None)
    assert isinstance(answer, ToolError)
    assert (answer.code, reason in answer.message, listener.requests) == (ToolErrorCode.UNAVAILABLE, True, [])


def test_a_server_without_tls_is_an_error() -> None:
    with Listener(b"SSH-2.0-OpenSSH_9.2\r\n" * 100, at_once=True) as listener:
        answer = ask("a.test", listener, None)
    assert isinstance(answer, ToolError)
    assert (answer.code, answer.message.startswith("Cannot get ")) == (ToolErrorCode.UNAVAILABLE, True)


@pytest.mark.parametrize("secured", [True, False])
def test_silence_is_a_timeout_in_the_handshake_and_after_it(certificate: str, secured: bool) -> None:
    def silence(_: bytes) -> Iterable[bytes]:
        listener.stopped.wait(10)
        yield b""

    with Listener(silence, tls=serving(certificate) if secured else None) as listener:
        answer = ask("a.test", listener, ssl.create_default_context(cafile=certificate), 0.3)
    assert isinstance(answer, ToolError)
    assert answer.code is ToolErrorCode.TIMEOUT


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [
        ("10.0.0.0", "10.255.255.255", "private"),
        ("172.16.0.0", "172.31.255.255", "private"),
        ("192.168.0.0", "192.168.255.255", "private"),
        ("100.64.0.0", "100.127.255.255", "private (carrier-grade NAT)"),
        ("127.0.0.0", "127.255.255.255", "loopback"),
        ("::1", "::1", "loopback"),
        ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "private"),
    ],
)
def test_private_addresses_are_for_hosts_that_are_named_for_it(first: str, last: str, reason: str) -> None:
    assert {why_forbidden(first), why_forbidden(last)} == {reason}
    assert {why_forbidden(first, private_allowed=True), why_forbidden(last, private_allowed=True)} == {""}


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("0.0.0.0", "unspecified"),  # noqa: S104 - nothing binds to it
        ("0.255.255.255", "unspecified"),
        ("169.254.0.0", "link-local"),
        ("169.254.169.254", "link-local"),
        ("100.100.100.200", "a cloud's metadata service"),
        ("168.63.129.16", "a cloud's metadata service"),
        ("fd00:ec2::254", "a cloud's metadata service"),
        ("192.0.0.192", "reserved"),
        ("192.0.2.1", "reserved (documentation)"),
        ("198.18.0.1", "reserved (benchmarks)"),
        ("198.51.100.1", "reserved (documentation)"),
        ("203.0.113.1", "reserved (documentation)"),
        ("192.88.99.1", "reserved (6to4 relay)"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "site-local"),
        ("ff02::1", "multicast"),
        ("::ffff:127.0.0.1", "IPv4 in IPv6"),
        ("::ffff:8.8.8.8", "IPv4 in IPv6"),
        ("::127.0.0.1", "reserved"),
        ("::ffff:0:127.0.0.1", "reserved"),
        ("2002:7f00:1::", "IPv4 in IPv6 (6to4)"),
        ("2001:0:7f00:1::", "IPv4 in IPv6 (Teredo)"),
        ("64:ff9b::127.0.0.1", "IPv4 in IPv6 (NAT64), loopback"),
        ("64:ff9b::10.0.0.1", "IPv4 in IPv6 (NAT64), private"),
        ("64:ff9b:1::1", "reserved"),
        ("100::1", "reserved"),
        ("2001:db8::1", "reserved (documentation)"),
        ("2001:20::1", "reserved"),
        ("3fff::1", "reserved (documentation)"),
        ("5f00::1", "reserved"),
        ("", "no address"),
        ("localhost", "no address"),
        ("2130706433", "no address"),
        ("0177.0.0.1", "no address"),
        ("0x7f.1", "no address"),
    ],
)
def test_no_host_may_have_these(address: str, reason: str) -> None:
    assert (why_forbidden(address), why_forbidden(address, private_allowed=True)) == (reason, reason)


@given(st.ip_addresses())
@example(ipaddress.ip_address("198.18.0.1"))
def test_what_is_allowed_is_global_for_the_standard_library_too(address: ipaddress.IPv4Address) -> None:
    """A table of somebody else's, which agrees on what is not public (NAT64 is judged by what is in it)."""
    if why_forbidden(str(address)) == "" and address not in ipaddress.ip_network("64:ff9b::/96"):
        assert address.is_global
        assert (address.is_multicast, address.is_reserved, address.is_link_local) == (False, False, False)
