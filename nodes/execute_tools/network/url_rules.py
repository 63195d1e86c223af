"""The URLs that a run may request. A URL is parsed once, strictly; the parsed parts are sent, not the text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote, urljoin

import idna

from mendgraph.nodes.records import ToolError, ToolErrorCode, invalid, quoted

DISABLED: Final = "Network access is disabled in this Environment."  # Source: spec 4
_ALLOWED: Final = "`allowed_hosts` (`--allow-host`)"
_REMEDY: Final = f"Whoever starts the run can name hosts in {_ALLOWED}."
MAX_URL_CHARACTERS: Final = 8_000  # Source: RFC 9110, section 4.1, what every reader should support
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_LISTED_HOSTS: Final = 10
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?:#.*)?"
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{0,5}))?")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last label of what other parsers take for an IPv4 address. Source: WHATWG URL, "ends in a number"."""
_UNQUOTED: Final = "/%:@!$&'()*+,;=~?[]"
"""Signs that are not quoted, beside letters and digits; `%` because a URL is quoted already."""


@dataclass(frozen=True)
class NetworkRules:
    """The hosts that a run may send requests to, and the limits of a request.

    `hosts` are exact names or addresses, `*.example.com` (all names below it), or `*` (any public host), each with
    `:port` unless it is 80 or 443; without hosts there is no network. `allow_private` lists hosts, also in `hosts`,
    that may have private or loopback addresses. Sizes are bytes, times seconds.
    """

    hosts: tuple[str, ...] = ()
    allow_private: tuple[str, ...] = ()
    max_bytes: int = 1_000_000
    timeout_s: float = 20.0
    max_redirects: int = 5


@dataclass(frozen=True)
class Target:
    """The target of one request, in canonical form. `path` starts with "/" and includes the query."""

    scheme: str
    host: str
    port: int
    path: str
    private_allowed: bool = False

    @property
    def authority(self) -> str:
        """The value of the Host header: the host, and the port unless it is the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.port == _DEFAULT_PORTS[self.scheme]:
            return host

        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the target."""
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True)
class HostPattern:
    """One entry of a list of hosts. `host` is "" for any host; `port` is 0 for 80 and 443."""

    host: str
    subdomains: bool = False
    port: int = 0

    def has_host(self, host: str) -> bool:
        """Return whether the entry matches this host."""
        if not self.subdomains:
            return self.host in ("", host)
        return host.endswith(f".{self.host}")

    def has_port(self, port: int) -> bool:
        """Return whether the entry allows this port."""
        if self.port:
            return port == self.port
        return port in _DEFAULT_PORTS.values()


def judge_url(url: str, rules: NetworkRules) -> Target | ToolError:
    """Return the target of `url`, if the rules allow it; the addresses of its host are checked later.

    INVALID_ARGUMENT unless it is an http or https URL, PERMISSION_DENIED for what the rules do not allow.
    """
    if not rules.hosts:
        return _denied(f"{DISABLED} {_REMEDY}")

    target = parse_url(url)
    if isinstance(target, ToolError):
        return target

    matching = [pattern for pattern in _patterns(rules.hosts) if pattern.has_host(target.host)]
    if not matching:
        allowed_hosts = ", ".join(rules.hosts[:_LISTED_HOSTS])
        return _denied(f"Domain {quoted(target.host)} not allowed. {_ALLOWED} has: {allowed_hosts}.")

    if not any(pattern.has_port(target.port) for pattern in matching):
        return _denied(
            f"Port {target.port} of {quoted(target.host)} not allowed: only 80 and 443, or the port that the entry"
            f" in {_ALLOWED} names."
        )

    private = names_target(rules.allow_private, target, any_host=False)
    return Target(target.scheme, target.host, target.port, target.path, private_allowed=private)


def names_target(entries: Iterable[str], target: Target, *, any_host: bool = True) -> bool:
    """Return whether an entry matches the target, with its port or without one; `*` only with `any_host`."""
    for pattern in _patterns(entries):
        is_listed = pattern.has_host(target.host) and pattern.port in (0, target.port)
        if is_listed and (any_host or pattern.host):
            return True

    return False


def judge_redirect(origin: Target, location: str, rules: NetworkRules) -> Target | ToolError:
    """Return the target of a Location header of `origin`, judged like the URL of a request."""
    problem = _unreadable(location)
    try:
        target = invalid(problem) if problem else judge_url(urljoin(origin.url, location), rules)
    except ValueError:
        target = invalid(f"{quoted(location)} is not a URL.")

    if isinstance(target, Target):
        return target

    message = f"{quoted(origin.url)} redirects to {quoted(location)}, which is not followed. {target.message}"
    return target.model_copy(update={"message": message})


def parse_host_entry(entry: str) -> HostPattern | None:
    """Return the parsed entry of a list of hosts, or None for an invalid one."""
    match = _AUTHORITY.fullmatch(entry)
    if match is None:
        return None

    port = _port(match["port"] or "", 0)
    if port is None or (match["port"] is not None and not port):
        return None
    if match["host"] == "*":
        return HostPattern("", port=port)

    subdomains = match["host"].startswith("*.")
    host = canonical_host(match["host"].removeprefix("*."))
    if not host or (subdomains and (":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]))):
        return None

    return HostPattern(host, subdomains, port)


def rule_problems(rules: NetworkRules) -> tuple[str, ...]:
    """One sentence for each invalid entry, to show to the user."""
    problems = []

    for entry in (*rules.hosts, *rules.allow_private):
        if parse_host_entry(entry) is None:
            examples = "docs.python.org, *.example.com, host:8080 or [::1]:8080"
            problems.append(f"{quoted(entry)} is not a host: write a name such as {examples}.")

    if any(pattern.host == "" for pattern in _patterns(rules.allow_private)):
        problems.append("'*' cannot stand for private hosts: name each of them.")

    return tuple(problems)


def canonical_host(host: str) -> str:
    """Return the name in lower-case ASCII without a final dot, or the usual form of the address; "" if invalid.

    The argument has IPv6 in brackets, the result has none. Numbers that others take for IPv4 (decimal, octal,
    hexadecimal, short) are invalid. Source: UTS 46 for names that are not ASCII.
    """
    try:
        if host.startswith("["):
            if host.endswith("]") and "%" not in host:
                return str(IPv6Address(host[1:-1]))
            return ""

        if len(host) > 253:
            return ""

        ascii_host = host if host.isascii() else idna.encode(host, uts46=True).decode("ascii")
        name = ascii_host.lower().removesuffix(".")
        labels = name.split(".")
        if _NUMBER.fullmatch(labels[-1]):
            return str(IPv4Address(name))
    except ValueError:
        return ""

    if all(_LABEL.fullmatch(label) for label in labels):
        return name

    return ""


def parse_url(url: str) -> Target | ToolError:
    """Return the target of `url`, whether or not it is allowed; INVALID_ARGUMENT unless it is an http or https URL."""
    problem = _unreadable(url)
    if problem:
        return invalid(problem)

    match = _URL.fullmatch(url)
    if match is None:
        return invalid(f"{quoted(url)} is not an absolute URL: write it as https://host/path.")

    scheme = match["scheme"].lower()
    if scheme not in _DEFAULT_PORTS:
        return invalid(f"{quoted(url)} is not http or https.")
    if "@" in match["authority"]:
        return invalid("The URL has a user name or password: remove it, because no credentials are sent.")

    host = ""
    port = None
    authority = _AUTHORITY.fullmatch(match["authority"])
    if authority:
        host = canonical_host(authority["host"])
        port = _port(authority["port"] or "", _DEFAULT_PORTS[scheme])

    if not host or not port:
        return invalid(
            f"{quoted(match['authority'])} is not a host: write a name, four decimal numbers, or IPv6 in brackets, and"
            " a port from 1 to 65535 if it needs one."
        )

    path = quote((match["path"] or "/") + (match["query"] or ""), safe=_UNQUOTED)
    return Target(scheme, host, port, path)


def _unreadable(url: str) -> str:
    """Return the problem of a URL on which parsers may disagree, such as white space or backslashes; else ""."""
    if len(url) > MAX_URL_CHARACTERS:
        return f"The URL has {len(url)} characters; the maximum is {MAX_URL_CHARACTERS}."

    for character in url:
        if character in " \\" or not character.isprintable():
            return f"The URL has the character {character!a}, which must be percent-encoded."

    return ""


def _port(digits: str, default: int) -> int | None:
    """Return the port, `default` for "", None for an invalid one."""
    port = int(digits) if digits else default
    return port if port <= 65_535 else None


def _patterns(entries: Iterable[str]) -> list[HostPattern]:
    return [pattern for pattern in map(parse_host_entry, entries) if pattern is not None]


def _denied(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
