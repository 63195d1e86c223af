import socket
import ssl
from collections.abc import Sequence

import httpcore2
import pytest

from mendgraph.nodes.execute_tools.network.network import (
    CheckedBackend,
    Deadline,
    HttpResponse,
    Network,
    RefusedConnectionError,
    allowed_addresses,
    why_forbidden,
)
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, Target
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.row_tables import rows
from tests.workspace.network.loopback_servers import Everywhere, Listener, certificate_for, http_answer, serving

TARGET = Target("http", "a.test", 80, "/")
PUBLIC = "93.184.216.34"


def resolving(*addresses: str) -> "Lookups":
    return Lookups([list(addresses)])


class Lookups:
    """A name server that gives these answers in turn, then always the last one."""

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self.answers, self.asked = answers, 0

    def __call__(self, *_: object) -> Sequence[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


def fetch(backend: httpcore2.NetworkBackend) -> int:
    """A plain client: the failing control, unless `backend` checks."""
    with httpcore2.ConnectionPool(network_backend=backend) as pool:
        return pool.request("GET", "http://a.test/").status


@rows("127.0.0.1", "10.0.0.1", "93.184.216.35")
def test_peer_address_is_checked_before_a_byte_is_sent(far_end: str) -> None:
    with Listener(http_answer()) as listener:
        with pytest.raises(RefusedConnectionError):
            fetch(CheckedBackend(TARGET, [PUBLIC], Deadline(5), Everywhere(listener, far_end=far_end)))
        assert fetch(Everywhere(listener, far_end=far_end)) == 200
    assert [bool(request) for request in listener.requests] == [False, True]


def test_every_step_has_the_remaining_time() -> None:
    with Listener(http_answer()) as listener:
        stream = CheckedBackend(TARGET, [PUBLIC], Deadline(0.05), Everywhere(listener)).connect_tcp("a.test", 80)
        with pytest.raises((httpcore2.ReadTimeout, TimeoutError)):
            stream.read(1)
        for step in (lambda: stream.read(1), lambda: stream.write(b"x")):
            with pytest.raises(TimeoutError):
                step()
        stream.close()


# --- TLS, with a name that is looked up once and checked against the certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    return certificate_for("a.test", tmp_path_factory.mktemp("tls"))


def ask(host: str, listener: Listener, tls: ssl.SSLContext | None, seconds: float = 5) -> HttpResponse | ToolError:
    rules = NetworkRules(hosts=("a.test", "b.test"))
    network = Network(rules, resolve=resolving(PUBLIC), tls=tls, backend=Everywhere(listener))
    return network.get(f"https://{host}/", seconds)


def test_trusted_certificate_for_the_name_is_accepted(certificate: str) -> None:
    with Listener(http_answer(), tls=serving(certificate)) as listener:
        answer = ask("a.test", listener, ssl.create_default_context(cafile=certificate))
    assert answer == HttpResponse(200, "https://a.test/", "text/plain", "hello", 5, cut=False)


@rows(("b.test", True, "Hostname mismatch"), ("a.test", False, "certificate verify failed"))
def test_any_other_certificate_is_refused_before_a_request(
    host: str, trusted: bool, reason: str, certificate: str
) -> None:
    with Listener(http_answer(), tls=serving(certificate)) as listener:
        answer = ask(host, listener, ssl.create_default_context(cafile=certificate) if trusted else None)
    assert isinstance(answer, ToolError)
    assert (answer.code, reason in answer.message, listener.requests) == (ToolErrorCode.UNAVAILABLE, True, [])


# --- Addresses


def test_eight_addresses_of_a_host_are_tried_and_all_are_checked() -> None:
    public = [f"93.184.216.{number}" for number in range(1, 10)]
    assert allowed_addresses(TARGET, resolving(*public), Deadline(5)) == public[:8]
    with pytest.raises(RefusedConnectionError):
        allowed_addresses(TARGET, resolving(*public, "10.0.0.1"), Deadline(5))


@rows("10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "100.64.0.1", "127.8.8.8", "::1",
     "fc00::1", "fdff::1")  # fmt: skip
def test_private_address_is_allowed_only_for_named_hosts(address: str) -> None:
    assert (why_forbidden(address), why_forbidden(address, private_allowed=True)) == ("private", "")
    named = Target("http", "a.test", 80, "/", private_allowed=True)
    assert allowed_addresses(named, resolving(PUBLIC, address), Deadline(5)) == [PUBLIC, address]
    with pytest.raises(RefusedConnectionError) as refused:
        allowed_addresses(TARGET, resolving(PUBLIC, address), Deadline(5))
    assert str(refused.value) == (
        f"Domain 'a.test' not allowed: its address {address} is private. To allow your own host, add it to"
        " allowed_private_hosts."
    )


FORBIDDEN = (
    *("169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "0.0.0.0", "192.0.0.8"),  # noqa: S104 - nothing binds to it
    *("192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1", "239.255.255.255"),
    *("240.0.0.1", "255.255.255.255", "::", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "::ffff:127.0.0.1"),
    *("::ffff:8.8.8.8", "::127.0.0.1", "2002:7f00:1::", "2001:0:7f00:1::", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
    *("100::1", "2001:db8::1", "3fff::1", "5f00::1", "", "localhost", "2130706433", "0177.0.0.1", "0x7f.1"),
)


def test_special_addresses_are_never_allowed() -> None:
    assert [address for address in FORBIDDEN if not why_forbidden(address)] == []
    assert [address for address in FORBIDDEN if not why_forbidden(address, private_allowed=True)] == []


def test_public_addresses_are_allowed_also_behind_nat64() -> None:
    assert [why_forbidden(address) for address in (PUBLIC, "2606:2800:220:1::1", "64:ff9b::5db8:d822")] == ["", "", ""]
    assert why_forbidden("64:ff9b::7f00:1", private_allowed=True) == "private"


@rows(socket.gaierror(-2, "Name or service not known"), UnicodeError("too long"))
def test_unresolvable_name_is_not_an_outage(error: Exception) -> None:
    def fail(*_: object) -> Sequence[str]:
        raise error

    outcome = Network(NetworkRules(hosts=("a.test",)), resolve=fail).get("http://a.test/", 5)
    assert isinstance(outcome, ToolError)
    assert outcome.code is ToolErrorCode.IO_ERROR


def test_next_address_is_tried_if_one_is_unreachable() -> None:
    with Listener(http_answer()) as listener:
        network = Everywhere(listener, dead=("1.1.1.1",))
        assert fetch(CheckedBackend(TARGET, ["1.1.1.1", PUBLIC], Deadline(5), network)) == 200
    assert network.connected == ["1.1.1.1", PUBLIC]
    with pytest.raises(httpcore2.ConnectError):
        fetch(CheckedBackend(TARGET, ["1.1.1.1"], Deadline(5), network))
