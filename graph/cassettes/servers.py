"""Servers on loopback for an agent in another process: one replays a cassette, one forwards to a recorded endpoint.

with ReplayServer(Player(cassette, "the cassette")) as server:
subprocess.run(["mendgraph", "--base-url", server.base_url, ...])
assert (server.player.misses, server.player.unplayed) == ([], [])
"""

import json
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final, NamedTuple, Self, cast

import httpx2

from mendgraph.graph.cassettes.cassette_file import RESPONSE_HEADERS, select_headers
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.recorder import ROOT
from mendgraph.graph.langchain.failures import NOT_RECORDED

MISSED: Final = 422
"""The status of a request that was not recorded; clients retry 409 and 5xx."""

UPSTREAM_FAILED: Final = 502

_POLL_S: Final = 0.02
"""Interval in seconds at which a server checks whether it is shut down."""


class Request(NamedTuple):
    """A request to a server on loopback; header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Response(NamedTuple):
    """The response of a server on loopback."""

    status: int
    headers: dict[str, str]
    body: bytes


class LoopbackServer(ABC):
    """A server at a free port of 127.0.0.1, as a context manager; its end waits for the requests in progress."""

    def __init__(self) -> None:
        """Take a free port; requests are answered once the server is entered.

        Raises:
            OSError: no port is available.
        """
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), LoopbackHandler)
        self._http.daemon_threads = False
        cast("Any", self._http).owner = self
        self._thread = Thread(target=self._http.serve_forever, args=(_POLL_S,), daemon=True)

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._http.server_port

    @property
    def base_url(self) -> str:
        """The address of the endpoint, including `/v1`."""
        return f"http://127.0.0.1:{self.port}{ROOT}"

    @abstractmethod
    def answer(self, request: Request) -> Response:
        """Return the response to a request."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class ReplayServer(LoopbackServer):
    """Answers from a cassette."""

    def __init__(self, player: Player) -> None:
        self.player = player
        super().__init__()

    def answer(self, request: Request) -> Response:
        """Play the exchange that was recorded for a request."""
        exchange = self.player.take(request.method, request.path, request.body)
        if isinstance(exchange, str):
            return refusal(MISSED, exchange)

        return Response(exchange.status, exchange.headers, exchange.response)


class ForwardingServer(LoopbackServer):
    """Forwards requests to the endpoint `base_url` with its key; this process's tape records them."""

    TIMEOUT_S: Final = 600.0
    """Timeout in seconds of the endpoint; the client's own is shorter."""

    _KEY_HEADERS: Final[tuple[str, ...]] = ("x-api-key", "api-key", "x-goog-api-key")
    """Headers in which Anthropic, Azure and Google expect a key; others expect a bearer token."""

    _CONNECTION_HEADERS: Final = frozenset(
        {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "cookie"}
    )
    """Headers that are not forwarded."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._upstream = base_url.rstrip("/")
        self._api_key = api_key
        super().__init__()

    def answer(self, request: Request) -> Response:
        """Return the endpoint's response once it is complete."""
        if not request.path.startswith(f"{ROOT}/"):
            return refusal(404, f"{request.path} is not below {ROOT}")

        url = self._upstream + request.path.removeprefix(ROOT)
        headers = {name: value for name, value in request.headers.items() if name not in self._CONNECTION_HEADERS}
        keys = {name: self._api_key for name in self._KEY_HEADERS if name in headers}
        headers |= keys or {"authorization": f"Bearer {self._api_key}"}

        try:
            with httpx2.Client(timeout=self.TIMEOUT_S, trust_env="127.0.0.1" not in url) as client:
                reply = client.request(request.method, url, content=request.body, headers=headers)
        except httpx2.HTTPError as error:
            return refusal(UPSTREAM_FAILED, f"{self._upstream} cannot be asked: {error}")

        kept = select_headers(reply.headers, RESPONSE_HEADERS - {"content-encoding"})  # httpx2 has decoded the body
        return Response(reply.status_code, kept, reply.content)


def refusal(status: int, message: str) -> Response:
    """Return an error in OpenAI's form that asks the client not to retry."""
    error = {"message": message, "type": "cassette", "code": NOT_RECORDED, "param": None}
    headers = {"content-type": "application/json", "x-should-retry": "false"}
    return Response(status, headers, json.dumps({"error": error}).encode())


class LoopbackHandler(BaseHTTPRequestHandler):
    """A connection, which is closed after its request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are sent separately
    timeout = 30

    def do_GET(self) -> None:
        """Answer a request without a body."""
        self._respond(b"")

    def do_POST(self) -> None:
        """Answer a request with a body; one in chunks is refused, which no client of a model sends."""
        length = self.headers.get("content-length", "")
        if length.isascii() and length.isdigit():
            self._respond(self.rfile.read(int(length)))
        else:
            self._send(refusal(411, "a request needs the length of its body"))

    def _respond(self, body: bytes) -> None:
        """Answer a program, but no page in a browser, which could play the cassette or spend the endpoint's key."""
        owner: LoopbackServer = cast("Any", self.server).owner
        headers = {name.lower(): value for name, value in self.headers.items()}
        hosts = ([f"127.0.0.1:{owner.port}"], [f"localhost:{owner.port}"])

        if {"origin", "sec-fetch-site"} & headers.keys() or self.headers.get_all("host") not in hosts:
            message = f"web pages may not use this server: ask {owner.base_url} from a program"
            self._send(refusal(403, message))
        else:
            self._send(owner.answer(Request(self.command, self.path, headers, body)))

    def _send(self, response: Response) -> None:
        self.close_connection = True
        headers = {**response.headers, "content-length": str(len(response.body)), "connection": "close"}

        try:
            self.send_response(response.status)
            for name, value in headers.items():
                self.send_header(name, value)

            self.end_headers()
            self.wfile.write(response.body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has disconnected

    def log_message(self, *_: Any) -> None:
        """Log nothing: the output is the test's."""
