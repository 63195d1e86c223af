import ipaddress

import pytest
from hypothesis import example, given, strategies as st

from nodes.execute_tools.environment.public_addresses import why_forbidden

PUBLIC = ["93.184.216.34", "1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "223.255.0.1"]
PUBLIC_6 = ["2606:4700:4700::1111", "2a00:1450:4001:80b::200e", "64:ff9b::8.8.8.8"]


@pytest.mark.parametrize("address", [*PUBLIC, *PUBLIC_6])
def test_public_addresses_are_fine(address: str) -> None:
    assert why_forbidden(address) == ""


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


@given(st.ip_addresses(v=4))
def test_an_address_behind_nat64_is_as_good_as_itself(address: ipaddress.IPv4Address) -> None:
    assert (why_forbidden(f"64:ff9b::{address}") == "") == (why_forbidden(str(address)) == "")


@given(st.text(max_size=40))
def test_whatever_is_no_address_is_forbidden(text: str) -> None:
    assert isinstance(why_forbidden(text), str)
    assert why_forbidden(f"x{text}") == "no address"
