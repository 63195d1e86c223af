"""Web search services on loopback, each of which refuses what its documentation does not allow.

Source: Brave Search API, "Web search" (`q` of 400 characters and 50 words at most, `count` up to 20); Tavily, "POST
/search"; SearXNG, "Search API" (403 for a format that its settings do not list).
"""

import json
import ssl
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from tests.vocabulary import JsonMap

KEY = "search-key-4c1d8e2f9a7b"
BRAVE_ARGUMENTS = {"q", "count", "offset", "country", "search_lang", "safesearch", "freshness", "text_decorations"}
TAVILY_ARGUMENTS = {"query", "max_results", "search_depth", "topic", "time_range", "include_domains"}


class RefusedSearchError(Exception):
    """A status, with the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def require(condition: object, status: int, reason: str) -> None:
    if not condition:
        raise RefusedSearchError(status, reason)


def results_of(snippet: str, pages: Sequence[JsonMap]) -> list[JsonMap]:
    return [{"title": page["title"], "url": page["url"], snippet: page["snippet"], "score": 0.5} for page in pages]


def brave(method: str, path: str, headers: Any, arguments: JsonMap, pages: Sequence[JsonMap]) -> JsonMap:
    require((method, path) == ("GET", "/res/v1/web/search"), 404, "path")
    require(headers["X-Subscription-Token"] == KEY, 422, "SUBSCRIPTION_TOKEN_INVALID")
    require(arguments.keys() <= BRAVE_ARGUMENTS, 422, "arguments")
    query = arguments.get("q", "")
    require(query and len(query) <= 400 and len(query.split()) <= 50, 422, "q")
    require(1 <= int(arguments.get("count", "20")) <= 20, 422, "count")
    answer: JsonMap = {"type": "search", "query": {"original": query}}
    if pages:
        answer["web"] = {"type": "search", "results": results_of("description", pages)}
    return answer


def tavily(method: str, path: str, headers: Any, arguments: JsonMap, pages: Sequence[JsonMap]) -> JsonMap:
    require((method, path) == ("POST", "/search"), 404, "path")
    require(headers["Authorization"] == f"Bearer {KEY}", 401, "key")
    require(headers["Content-Type"] == "application/json", 422, "type")
    require(arguments.keys() <= TAVILY_ARGUMENTS and arguments.get("query"), 422, "arguments")
    most = arguments.get("max_results", 5)
    require(isinstance(most, int) and 0 <= most <= 20, 422, "max_results")
    return {"query": arguments["query"], "answer": None, "results": results_of("content", pages), "response_time": 0.1}


def searxng(method: str, path: str, headers: Any, arguments: JsonMap, pages: Sequence[JsonMap]) -> JsonMap:
    require((method, path) == ("GET", "/search"), 404, "path")
    require("Authorization" not in headers, 400, "a key")
    require(arguments.get("q"), 400, "q")
    require(arguments.get("format") == "json", 403, "format")
    return {"query": arguments["q"], "results": results_of("content", pages), "number_of_results": 0}


DOUBLES = {"brave": brave, "tavily": tavily, "searxng": searxng}


class SearchServer:
    """One service. `queries` has the words of the requests that it answered; `answer` replaces its responses."""

    def __init__(
        self,
        name: str,
        pages: Sequence[JsonMap] = (),
        answer: tuple[int, str, JsonMap] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.queries: list[str] = []
        self._check, self._pages, self._answer = DOUBLES[name], pages, answer
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _respond(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, str, JsonMap]:
        parts = urlsplit(target)
        arguments = json.loads(body) if body else dict(parse_qsl(parts.query))
        self.queries.append(str(arguments.get("q") or arguments.get("query")))
        if self._answer is not None:
            return self._answer
        try:
            answer = self._check(method, parts.path, headers, arguments, self._pages)
        except RefusedSearchError as refusal:
            return refusal.status, json.dumps({"error": str(refusal)}), {}
        return 200, json.dumps(answer), {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        respond = self._respond

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, text, headers = respond(self.command, self.path, self.headers, body)
                data = text.encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer  # noqa: N815 - http.server calls them

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        return Handler
