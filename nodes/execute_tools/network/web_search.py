"""The web search services: the form of their requests, and where the results stand in what they return.

A key goes to its service alone: no redirect is followed. What a search returns allows no further host.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import unescape
from typing import Any, Final
from urllib.parse import urlencode

from mendgraph.nodes.execute_tools.network.network import HttpResponse, Network
from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules, Target, parse_url
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

MOST_RESULTS: Final = 10
_LONGEST: Final = {"title": 200, "url": 500, "snippet": 500}
"""Most characters of each field of a result."""


_QUOTED_URL: Final = re.compile(r"'https?://[^']*'")


@dataclass(frozen=True)
class SearchService:
    """One service. `variable` holds its key, or its address if `url` is empty.

    `query` names the words among the `arguments` of a request, which are JSON if the service `posts`. The list of
    results has the key `results`, below `parent` if that is set.
    """

    variable: str
    query: str
    arguments: Mapping[str, str | int]
    snippet: str
    url: str = ""
    key_header: str = ""
    key_form: str = "{}"
    posts: bool = False
    parent: str = ""


SERVICES: Final = {
    "brave": SearchService(
        variable="BRAVE_API_KEY",
        query="q",
        arguments={"count": MOST_RESULTS, "text_decorations": "false"},
        snippet="description",
        url="https://api.search.brave.com/res/v1/web/search",
        key_header="X-Subscription-Token",
        parent="web",
    ),
    "tavily": SearchService(
        variable="TAVILY_API_KEY",
        query="query",
        arguments={"max_results": MOST_RESULTS},
        snippet="content",
        url="https://api.tavily.com/search",
        key_header="Authorization",
        key_form="Bearer {}",
        posts=True,
    ),
    "searxng": SearchService(variable="SEARXNG_URL", query="q", arguments={"format": "json"}, snippet="content"),
}
"""Source: Brave Search API, "Web search"; Tavily, "POST /search"; SearXNG, "Search API"."""

_SPENT: Final = frozenset({402, 429, 432, 433})
"""Too many requests, or no credit. Source: Tavily uses 432 and 433 for the limits of a plan."""


@dataclass(frozen=True)
class WebSearch:
    """A service that a run may ask, with the key in `headers`."""

    name: str
    service: SearchService
    target: Target
    network: Network
    headers: Mapping[str, str] = field(repr=False)

    @property
    def host(self) -> str:
        """The scheme and the host that a search is sent to."""
        return f"{self.target.scheme}://{self.target.authority}"

    def results(self, query: str, timeout_s: float) -> list[JsonMap] | ToolError:
        """Return the first results, each with a title, a URL and a snippet.

        PERMISSION_DENIED for a refused key, RATE_LIMITED, IO_ERROR for what is no list of results, and the codes of
        `Network.ask`.
        """
        service = self.service
        arguments = {service.query: query, **service.arguments}
        url = self.target.url
        body = b""

        if service.posts:
            body = json.dumps(arguments).encode()
        else:
            url = f"{url}?{urlencode(arguments)}"

        response = self.network.ask(url, timeout_s, self.headers, body)
        if isinstance(response, HttpResponse):
            refusal = self._refusal(response.status)
            if refusal is not None:
                return refusal

            response = response.unreadable or response

        if isinstance(response, ToolError):  # its message has the URL, whose path may be a secret of the user
            message = _QUOTED_URL.sub(self.name, response.message, count=1)
            remedy = f"Continue without it; the user must check {service.variable} and the network."
            return ToolError(code=response.code, message=f"{message} {remedy}")

        entries = _entries_in(response.text, service)
        if entries is None:
            message = f"{self.name} did not answer with a list of results. Continue without it."
            return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

        results = [_result(entry, service.snippet) for entry in entries]
        return [result for result in results if result is not None][:MOST_RESULTS]

    def _refusal(self, status: int) -> ToolError | None:
        """Return the error of a response with this status, None for a success."""
        if status < 300:
            return None

        code = ToolErrorCode.IO_ERROR
        remedy = f"ask with other and fewer words. {self.service.variable} may also be wrong."
        if status in {401, 403}:
            code = ToolErrorCode.PERMISSION_DENIED
            remedy = f"the user must set a valid {self.service.variable}."
            if not self.service.key_header:
                remedy = f"it asks for a login, and none is sent to {self.service.variable}; choose another server."
                if status == 403:
                    remedy = "the server must allow `json` in `search.formats` of its settings.yml."
        elif status in _SPENT:
            code = ToolErrorCode.RATE_LIMITED
            remedy = "no more searches are allowed now. Go on without them, or search later."
        elif status >= 500:
            code = ToolErrorCode.UNAVAILABLE
            remedy = "go on without it, or search later."

        return ToolError(code=code, message=f"{self.name} answered {status}: {remedy}")


def open_search(name: str, environment: Mapping[str, str], rules: NetworkRules) -> WebSearch | ToolError:
    """Return the service of this name, with the limits of `rules`, or why it cannot be asked.

    Its host alone may be asked, and may be private if the user has named it.
    """
    service = SERVICES[name]
    value = environment.get(service.variable, "").strip()
    target = parse_url(service.url or f"{value.rstrip('/')}/search")

    is_usable = value.isascii() and value.isprintable() and (service.url or not {"?", "#"} & {*value})
    if not value or not is_usable or isinstance(target, ToolError):
        holds = "its key" if service.url else "the address of a server, such as http://127.0.0.1:8888"
        message = f"{name} needs {service.variable}: set it in the environment to {holds}."
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

    hosts = (target.authority,)
    private = () if service.url else hosts
    headers = {"Accept": "application/json"}
    if service.key_header:
        headers[service.key_header] = service.key_form.format(value)
    if service.posts:
        headers["Content-Type"] = "application/json"

    network = Network(replace(rules, hosts=hosts, allow_private=private))
    return WebSearch(name, service, target, network, headers)


def _entries_in(text: str, service: SearchService) -> list[Any] | None:
    """Return the list of results in a response, None if it is none; a response without results may have no list."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None

    if isinstance(document, dict) and service.parent:
        document = document.get(service.parent, {})
    if not isinstance(document, dict):
        return None

    entries = document.get("results", [])
    return entries if isinstance(entries, list) else None


def _result(entry: Any, snippet: str) -> JsonMap | None:
    """Return a result with short texts, None without a URL that `http_get` could read."""
    if not isinstance(entry, dict):
        return None

    values = {"title": entry.get("title"), "url": entry.get("url"), "snippet": entry.get(snippet)}
    texts = {name: _without_surrogates(value) for name, value in values.items() if isinstance(value, str)}
    url = texts.pop("url", "")
    if len(url) > _LONGEST["url"] or isinstance(parse_url(url), ToolError):
        return None

    short = {name: " ".join(unescape(text).split())[: _LONGEST[name]] for name, text in texts.items()}
    return {"title": short.get("title", ""), "url": url, "snippet": short.get("snippet", "")}


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
