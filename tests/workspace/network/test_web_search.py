"""Searches of each service, on doubles that refuse what the service's documentation does not allow."""

import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

from mendgraph.nodes.execute_tools.network.network import Network
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules
from mendgraph.nodes.execute_tools.network.web_search import SERVICES, WebSearch, open_search
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.doubles.search_services import KEY, SearchServer
from tests.row_tables import rows
from tests.vocabulary import JsonMap
from tests.workspace.network.loopback_servers import Everywhere, Listener, certificate_for, serving

PAGE = {"title": "asyncio", "url": "https://docs.python.org/3/library/asyncio.html", "snippet": "Coroutines & tasks"}
PUBLIC = "93.184.216.34"


def search_at(server: SearchServer | Listener, certificate: str, name: str, address: str = PUBLIC) -> WebSearch:
    """A search service whose host resolves to `address`; connections go to the server."""
    search = opened(name, {SERVICES[name].variable: KEY})
    tls = ssl.create_default_context(cafile=certificate)
    listener: Any = server
    network = Network(search.network.rules, resolve=lambda *_: [address], tls=tls, backend=Everywhere(listener))
    return replace(search, network=network)


def opened(name: str, environment: dict[str, str]) -> WebSearch:
    search = open_search(name, environment, NetworkRules(timeout_s=10.0))
    assert isinstance(search, WebSearch), search
    return search


def error_of(results: list[JsonMap] | ToolError) -> tuple[ToolErrorCode, str]:
    assert isinstance(results, ToolError), results
    assert KEY not in results.message
    return results.code, results.message


@rows(("brave", "api.search.brave.com"), ("tavily", "api.tavily.com"))
def test_service_with_a_key_returns_results(name: str, host: str, tmp_path: Path) -> None:
    certificate = certificate_for(host, tmp_path)
    with SearchServer(name, [PAGE], tls=serving(certificate)) as server:
        search = search_at(server, certificate, name)
        assert search.results("how to await & gather", 10) == [PAGE]
        assert server.queries == ["how to await & gather"]
        assert KEY not in repr(search)
    assert search.host == f"https://{host}"


def test_users_own_search_server_is_called_without_a_key() -> None:
    with SearchServer("searxng", [PAGE]) as server:
        search = opened("searxng", {"SEARXNG_URL": f"{server.url}/"})
        assert (search.host, search.results("C++ std::move", 10)) == (server.url, [PAGE])
    assert server.queries == ["C++ std::move"]


def test_search_without_matches_has_no_results(tmp_path: Path) -> None:
    certificate = certificate_for("api.search.brave.com", tmp_path)
    with SearchServer("brave", tls=serving(certificate)) as server:
        assert search_at(server, certificate, "brave").results("x", 10) == []


def test_results_are_bounded_and_exclude_unreadable_addresses() -> None:
    long = {"title": "a &amp;\n b" + "t" * 900, "url": PAGE["url"], "snippet": "s" * 9000}
    bad = [{**PAGE, "url": url} for url in ("javascript:x()", "https://a.test/" + "x" * 600, "", "file:///etc/passwd")]
    with SearchServer("searxng", [*bad, *([long] * 30)]) as server:
        results = opened("searxng", {"SEARXNG_URL": server.url}).results("x", 10)
    assert isinstance(results, list)
    assert len(results) == 10
    assert {name: len(value) for name, value in results[0].items()} == {"title": 200, "url": 46, "snippet": 500}
    assert results[0]["title"].startswith("a & bttt")


FAILURES: list[tuple[int, str, JsonMap, ToolErrorCode, str]] = [
    (403, "{}", {}, ToolErrorCode.PERMISSION_DENIED, "`json` in `search.formats`"),
    (429, "{}", {}, ToolErrorCode.RATE_LIMITED, "no more searches are allowed now"),
    (429, "x", {"Content-Type": "application/octet-stream"}, ToolErrorCode.RATE_LIMITED, "no more searches"),
    (401, "\0", {}, ToolErrorCode.PERMISSION_DENIED, "answered 401: it asks for a login"),
    (503, "{}", {}, ToolErrorCode.UNAVAILABLE, "answered 503"),
    (422, "{}", {}, ToolErrorCode.IO_ERROR, "fewer words"),
    (200, "<html>", {"Content-Type": "text/html"}, ToolErrorCode.IO_ERROR, "did not answer with a list of results"),
    (200, "[" * 100_000, {}, ToolErrorCode.IO_ERROR, "did not answer with a list of results"),
    (200, '{"results": 1}', {}, ToolErrorCode.IO_ERROR, "did not answer with a list of results"),
    (200, "[1]", {}, ToolErrorCode.IO_ERROR, "did not answer with a list of results"),
    (200, "\0", {}, ToolErrorCode.INVALID_ARGUMENT, "binary content"),
    (302, "", {"Location": "http://10.0.0.1/"}, ToolErrorCode.IO_ERROR, "'http://10.0.0.1/', which is not"),
]  # fmt: skip


@rows(*FAILURES)
def test_failure_is_a_typed_error_with_a_remedy(
    status: int, text: str, headers: JsonMap, code: ToolErrorCode, part: str
) -> None:
    with SearchServer("searxng", answer=(status, text, headers)) as server:
        error_code, message = error_of(opened("searxng", {"SEARXNG_URL": server.url}).results("x", 10))
    assert (error_code, part in message) == (code, True), message


@rows(("brave", "X-Subscription-Token"), ("tavily", "Authorization"))
def test_refused_key_or_redirect_sends_the_key_nowhere_else(name: str, header: str, tmp_path: Path) -> None:
    search = opened(name, {SERVICES[name].variable: KEY})
    host = search.target.host
    certificate = certificate_for(host, tmp_path)
    with SearchServer(name, answer=(401, "{}", {}), tls=serving(certificate)) as server:
        code, message = error_of(search_at(server, certificate, name).results("x", 10))
    assert (code, SERVICES[name].variable in message) == (ToolErrorCode.PERMISSION_DENIED, True)

    away = (307, "", {"Location": "https://elsewhere.test/"})
    with SearchServer(name, answer=away, tls=serving(certificate)) as server:
        code, message = error_of(search_at(server, certificate, name).results("x", 10))
        assert len(server.queries) == 1
    assert (code, "is not followed" in message) == (ToolErrorCode.IO_ERROR, True)
    assert header in search.headers


def test_service_that_resolves_to_a_private_address_gets_no_request(tmp_path: Path) -> None:
    certificate = certificate_for("api.tavily.com", tmp_path)
    with SearchServer("tavily", tls=serving(certificate)) as server:
        code, message = error_of(search_at(server, certificate, "tavily", "10.0.0.1").results("x", 10))
        assert (code, "is private" in message, server.queries) == (ToolErrorCode.PERMISSION_DENIED, True, [])


def test_service_that_does_not_answer_is_a_timeout() -> None:
    with Listener(lambda _: iter(())) as listener:
        search = opened("searxng", {"SEARXNG_URL": f"http://127.0.0.1:{listener.port}"})
        code, _ = error_of(search.results("x", 1e-9))
    assert code == ToolErrorCode.TIMEOUT


@rows(
    ("brave", ""), ("tavily", "  "), ("brave", "key\nX-Other: 1"), ("searxng", ""), ("searxng", "localhost:8888"),
    ("searxng", "http://user:pass@a.test"), ("searxng", "ftp://a.test"),
    ("searxng", "http://a.test/?key=1"), ("searxng", "http://a.test/#part"),
)  # fmt: skip
def test_missing_key_or_address_names_its_variable_without_its_value(name: str, value: str) -> None:
    variable = SERVICES[name].variable
    error = open_search(name, {variable: value}, NetworkRules())
    assert isinstance(error, ToolError)
    assert (error.code, f"{name} needs {variable}" in error.message) == (ToolErrorCode.UNAVAILABLE, True)
    assert not value.strip() or value not in error.message


def test_query_reaches_tavily_as_json(tmp_path: Path) -> None:
    certificate = certificate_for("api.tavily.com", tmp_path)
    query = 'quotes " and \u2603'
    with SearchServer("tavily", [PAGE], tls=serving(certificate)) as server:
        assert search_at(server, certificate, "tavily").results(query, 10) == [PAGE]
    assert json.dumps(server.queries) == json.dumps([query])
