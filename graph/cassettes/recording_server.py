"""A proxy on loopback that records what a graph in another process says to its endpoint, and what that answers.

The key is added here, so that the other process needs none; answers are handed on as they come.
"""

from collections.abc import Iterator
from threading import Lock
from typing import Any

import httpx2

from graph.cassettes.cassette_file import REQUEST_HEADERS, RESPONSE_HEADERS, Exchange, only_headers, scrubbed
from graph.cassettes.player import Scrub
from graph.cassettes.replay_server import Answering, LoopbackServer
from graph.cassettes.tape import ROOT

UPSTREAM_FAILED = 502
KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
"""In which Anthropic, Azure and Google look for a key; the others have it as a bearer."""

_OF_THE_LINE = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "cookie"})
"""Headers that are not handed on: they speak of the connection, or of somebody else."""

TIMEOUT_S = 600.0
"""Longest silence of the endpoint, in seconds: the client's own limit is to come first."""


class RecordingServer(LoopbackServer):
    """Hands requests on to the endpoint `base_url` with its key, and keeps both sides as `exchanges`."""

    def __init__(self, base_url: str, api_key: str, scrub: Scrub = scrubbed) -> None:
        """Nothing is connected before the first request."""
        self.upstream, self.api_key, self.scrub = base_url.rstrip("/"), api_key, scrub
        self.exchanges: list[Exchange] = []
        self._lock = Lock()
        super().__init__(_Recording)

    def keep(self, exchange: Exchange) -> None:
        """Write down one exchange, in the order in which answers end."""
        bodies = {"request": self.scrub(exchange.request), "response": self.scrub(exchange.response)}
        with self._lock:
            self.exchanges.append(exchange.model_copy(update=bodies))


class _Recording(Answering):
    def answer(self, body: bytes) -> None:
        """Ask the endpoint, hand its answer on, and keep both when it is whole."""
        server: RecordingServer = self.owner
        if not self.path.startswith(f"{ROOT}/"):
            self.refuse(404, f"{self.path} is not below {ROOT}")
            return
        sent = only_headers(dict(self.headers), REQUEST_HEADERS)
        url = server.upstream + self.path.removeprefix(ROOT)
        headers = only_headers(dict(self.headers), {name.lower() for name in self.headers} - _OF_THE_LINE)
        keys = {name: server.api_key for name in KEY_HEADERS if name in headers}
        headers |= keys or {"authorization": f"Bearer {server.api_key}"}
        heard: list[bytes] = []
        try:
            with (
                httpx2.Client(timeout=TIMEOUT_S, trust_env="127.0.0.1" not in url) as client,
                client.stream(self.command, url, content=body, headers=headers) as reply,
            ):
                self._hand_on(reply, heard)
                exchange = Exchange(
                    method=self.command,
                    path=self.path.partition("?")[0],
                    request=body,
                    request_headers=sent,
                    status=reply.status_code,
                    headers=only_headers(reply.headers, RESPONSE_HEADERS),
                    response=b"".join(heard),
                )
                server.keep(exchange)
        except httpx2.HTTPError as error:
            if not heard:
                self.refuse(UPSTREAM_FAILED, f"{server.upstream} cannot be asked: {error}")

    def _hand_on(self, reply: httpx2.Response, heard: list[bytes]) -> None:
        kept: dict[str, Any] = only_headers(reply.headers, RESPONSE_HEADERS)
        self.start(reply.status_code, {**kept, "transfer-encoding": "chunked"})
        for data in _parts(reply):
            heard.append(data)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


def _parts(reply: httpx2.Response) -> Iterator[bytes]:
    return (data for data in reply.iter_bytes() if data)
