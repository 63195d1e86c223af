from ipaddress import ip_address

from mendgraph.nodes.execute_tools.network.url_rules import (
    HostPattern,
    NetworkRules,
    Target,
    judge_redirect,
    judge_url,
    parse_host_entry,
    rule_problems,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.row_tables import rows

RULES = NetworkRules(
    hosts=("good.test", "*.wild.test", "ported.test:8080", "127.0.0.1:8000", "[::1]:8000", "münchen.test"),
    allow_private=("127.0.0.1", "wild.test", "*.wild.test", "[::1]:8000"),
)


def error_of(url: str, rules: NetworkRules = RULES) -> tuple[ToolErrorCode, str]:
    judged = judge_url(url, rules)
    assert isinstance(judged, ToolError), judged
    return judged.code, judged.message


ALLOWED = [
    ("http://good.test", Target("http", "good.test", 80, "/")),
    ("https://good.test/a/b?c=d", Target("https", "good.test", 443, "/a/b?c=d")),
    ("HTTPS://GOOD.test./a", Target("https", "good.test", 443, "/a")),
    ("http://good.test:443/", Target("http", "good.test", 443, "/")),
    ("http://good.test?q=http://evil.test/", Target("http", "good.test", 80, "/?q=http://evil.test/")),
    ("http://good.test/a#b@evil.test/", Target("http", "good.test", 80, "/a")),
    ("http://good.test/@evil.test/", Target("http", "good.test", 80, "/@evil.test/")),
    ("http://good.test/ä?ö=%C3%A4", Target("http", "good.test", 80, "/%C3%A4?%C3%B6=%C3%A4")),
    ('http://good.test/"<>^`{|}', Target("http", "good.test", 80, "/%22%3C%3E%5E%60%7B%7C%7D")),
    ("http://a.b.wild.test/", Target("http", "a.b.wild.test", 80, "/", private_allowed=True)),
    ("https://ported.test:8080/", Target("https", "ported.test", 8080, "/")),
    ("http://127.0.0.1:8000/", Target("http", "127.0.0.1", 8000, "/", private_allowed=True)),
    ("http://[::1]:8000/", Target("http", "::1", 8000, "/", private_allowed=True)),
    ("http://MÜNCHEN.test/", Target("http", "xn--mnchen-3ya.test", 80, "/")),
    ("http://ｇｏｏｄ.test/", Target("http", "good.test", 80, "/")),  # noqa: RUF001 - full-width letters
]


def test_url_of_a_listed_host_is_allowed() -> None:
    assert [judge_url(url, RULES) for url, _ in ALLOWED] == [target for _, target in ALLOWED]


@rows(
    ("http://evil.test/", "evil.test"),
    ("http://good.test.evil.test/", "good.test.evil.test"),
    ("http://sub.good.test/", "sub.good.test"),
    ("http://wild.test/", "wild.test"),
    ("http://localhost/", "localhost"),
    ("http://gооd.test/", "xn--gd-fmca.test"),  # noqa: RUF001 - two Cyrillic letters
    ("http://127.0.0.2:8000/", "127.0.0.2"),
    ("http://[::ffff:7f00:1]:8000/", str(ip_address("::ffff:7f00:1"))),  # Python 3.13 writes its end as an IPv4 address
)
def test_unlisted_host_is_denied(url: str, domain: str) -> None:
    allowed = "good.test, *.wild.test, ported.test:8080, 127.0.0.1:8000, [::1]:8000, münchen.test"
    message = f"Domain '{domain}' not allowed. `allowed_hosts` (`--allow-host`) has: {allowed}."
    assert error_of(url) == (ToolErrorCode.PERMISSION_DENIED, message)


@rows(
        ("", "not an absolute URL"), ("//good.test/", "not an absolute URL"), ("http:good.test", "not an absolute URL"),
        ("file:///etc/passwd", "not http or https"), ("http://good.test@evil.test/", "user name or password"),
        ("http://user:word@good.test/", "user name or password"), ("http://good.test:80:80/", "is not a host"),
        ("http://good.test:0/", "is not a host"), ("http://good.test:٨٠/", "is not a host"),
        ("http:///a", "is not a host"),
        ("http://good..test/", "is not a host"), ("http://good%2etest/", "is not a host"),
        (f"http://{'a' * 64}.test/", "is not a host"), ("http://[::1/", "is not a host"),
        (f"http://{'a.' * 126}test/", "is not a host"),
        ("http://[::1%25lo]/", "is not a host"), ("http://good.test\\@evil.test/", r"the character '\\'"),
        ("http://good.test/a b", "the character ' '"),
        ("http://good.test/\r\nHost: evil.test", r"the character '\r'"),
        ("http://good\u200b.test/", r"the character '\u200b'"),
        ("http://good.test/\u202e", r"the character '\u202e'"),
        (f"http://good.test/{'a' * 8000}", "8017 characters; the maximum is 8000"),)  # fmt: skip
def test_ambiguous_url_is_refused(url: str, part: str) -> None:
    code, message = error_of(url)
    assert code is ToolErrorCode.INVALID_ARGUMENT
    assert part in message


@rows("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "1.2.3.0x4")
def test_numeric_spellings_of_an_address_are_refused(host: str) -> None:
    rules = NetworkRules(hosts=("*",))
    assert error_of(f"http://{host}/", rules)[0] is ToolErrorCode.INVALID_ARGUMENT
    assert error_of(f"http://{host}./", rules)[0] is ToolErrorCode.INVALID_ARGUMENT


def test_network_is_disabled_without_hosts() -> None:
    """Spec 4's words."""
    code, message = error_of("http://good.test/", NetworkRules())
    assert code is ToolErrorCode.PERMISSION_DENIED
    assert message.startswith("Network access is disabled in this Environment.")


def test_star_is_any_public_host_on_the_default_ports() -> None:
    rules = NetworkRules(hosts=("*",), allow_private=("*", "here.test"))
    assert judge_url("http://a.test/", rules) == Target("http", "a.test", 80, "/")
    assert judge_url("http://here.test/", rules) == Target("http", "here.test", 80, "/", private_allowed=True)
    assert error_of("http://a.test:81/", rules)[0] is ToolErrorCode.PERMISSION_DENIED


@rows(("/b", "https://good.test/b"), ("../b", "https://good.test/b"), ("http://good.test:80/b#c", "http://good.test/b"))
def test_redirect_is_resolved_against_its_page(location: str, url: str) -> None:
    target = judge_redirect(Target("https", "good.test", 443, "/x/y"), location, RULES)
    assert isinstance(target, Target)
    assert target.url == url


ENTRIES = {
    "Example.COM.": HostPattern("example.com"),
    "*.example.com:8080": HostPattern("example.com", subdomains=True, port=8080),
    "*": HostPattern(""),
    "*:8080": HostPattern("", port=8080),
    "[::1]:8080": HostPattern("::1", port=8080),
    "10.0.0.1": HostPattern("10.0.0.1"),
    "bücher.example": HostPattern("xn--bcher-kva.example"),
}
NO_ENTRIES = (
    *("", "*.", "*.*", "a.*", "**", "*a.test", "http://a.test", "a.test/", "a@b.test", "a.test:", "a.test:0"),
    *("a.test:70000", "a b.test", "*.10.0.0.1", "*.[::1]", "::1", "127.1", "0x7f.0.0.1", "[::1%lo]", "*.0x1"),
)


def test_host_entry_is_parsed_or_refused() -> None:
    assert {entry: parse_host_entry(entry) for entry in ENTRIES} == ENTRIES
    assert [entry for entry in NO_ENTRIES if parse_host_entry(entry) is not None] == []


def test_entry_that_can_never_match_is_reported() -> None:
    rules = NetworkRules(hosts=("a.test", "http://b.test"), allow_private=("*", "10.0.0.0/8"))
    assert rule_problems(rules) == (
        "'http://b.test' is not a host: write a name such as docs.python.org, *.example.com, host:8080 or [::1]:8080.",
        "'10.0.0.0/8' is not a host: write a name such as docs.python.org, *.example.com, host:8080 or [::1]:8080.",
        "'*' cannot stand for private hosts: name each of them.",
    )
    assert rule_problems(RULES) == ()
    assert error_of("http://b.test/", rules)[0] is ToolErrorCode.PERMISSION_DENIED
