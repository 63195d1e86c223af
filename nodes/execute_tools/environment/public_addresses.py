"""Which addresses lie on the public internet, and what is wrong with every other one."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

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
