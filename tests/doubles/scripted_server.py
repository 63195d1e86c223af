"""An OpenAI-compatible endpoint on loopback that says what a test tells it to say, and nothing else.

    with ScriptedServer([Say("Hello"), Calls([("read_file", '{"path": "a.py"}')])]) as server:
        ...                                      # point a client at server.base_url
    assert server.requests[0]["messages"] == [...]

Replies are taken in the order in which requests arrive. A script entry may be a function of the request, and `then`
answers whatever comes after the script; without it a further request gets a 500 that says so.
"""

import json
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast

from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import (
    CREATED,
    NO_USAGE,
    Calls,
    Chunked,
    Compute,
    Cut,
    CutAt,
    Delivery,
    Disconnect,
    Drip,
    Empty,
    Fault,
    Filtered,
    NoFinish,
    Refuse,
    Reply,
    Say,
    Slow,
    Stall,
    Status,
    Think,
    completion_document,
    delivery,
    event_bytes,
    status_document,
)

__all__ = [
    "NO_USAGE",
    "Calls",
    "Chunked",
    "Cut",
    "CutAt",
    "Disconnect",
    "Drip",
    "Empty",
    "Filtered",
    "NoFinish",
    "Refuse",
    "Reply",
    "Say",
    "ScriptedServer",
    "Slow",
    "Stall",
    "Status",
    "Think",
    "nobody_listening",
]

_TEAR_DOWN = struct.pack("ii", 1, 0)
"""Linger on, for no time: closing then resets the connection."""


@contextmanager
def nobody_listening() -> Iterator[str]:
    """The address of an endpoint that refuses every connection: its port is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


class ScriptedServer:
    """The endpoint, as a context manager. It may be entered once.

    Each connection takes one request, unless they are kept alive; then their client has to close them. `requests`
    holds the body of each completion request, `headers` its headers with lower-case names; `paths` are those of all
    requests, also of what is not there.
    """

    def __init__(
        self, script: Iterable[Reply | Compute] = (), *, then: Compute | None = None, keep_alive: bool = False
    ) -> None:
        self.keep_alive = keep_alive
        self.requests: list[JsonMap] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._script = list(script)
        self._then = then
        self._turn = threading.Lock()
        self._stopped = threading.Event()

    @property
    def base_url(self) -> str:
        """The address to give to a client, `/v1` included."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def remaining(self) -> int:
        """How many scripted replies nobody has asked for."""
        return max(len(self._script) - len(self.requests), 0)

    def say_next(self, *replies: Reply | Compute) -> None:
        """Answer the next requests with these replies, and nothing that was left over."""
        self._script = [*[Say("")] * len(self.requests), *replies]

    def __enter__(self) -> Self:
        self._http = _Listener(("127.0.0.1", 0), _Handler)
        self._http.scripted = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopped.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, request: JsonMap, headers: dict[str, str]) -> tuple[int, Delivery]:
        """Record a request; its number, from 1, and what to answer."""
        with self._turn:
            self.requests.append(request)
            self.headers.append(headers)
            number = len(self.requests)
        return number, delivery(self._reply(number, request))

    def wait(self, seconds: float) -> bool:
        """Wait, but not beyond the end of the server; whether that has come."""
        return self._stopped.wait(seconds) if seconds else self._stopped.is_set()

    def _reply(self, number: int, request: JsonMap) -> Reply:
        entry = self._script[number - 1] if number <= len(self._script) else self._then
        if entry is None:
            text = f"the script is exhausted: request {number} came, {len(self._script)} replies were scripted"
            return Status(500, {"error": {"message": text, "type": "scripted", "code": "script_exhausted"}})
        return entry(request) if callable(entry) else entry


class _Listener(ThreadingHTTPServer):
    """Joins its threads at the end, so that no socket outlives the test."""

    daemon_threads = False
    block_on_close = True
    scripted: ScriptedServer


class _Handler(BaseHTTPRequestHandler):
    """One connection, and one request of it or several."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written apart
    timeout = 5

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._send_json(404, _error(f"GET {self.path} is not scripted"))
        model = {"id": "scripted", "object": "model", "created": CREATED, "owned_by": "tests"}
        return self._send_json(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self._scripted.paths.append(self.path)
        if self.path != "/v1/chat/completions":
            return self._send_json(404, _error(f"POST {self.path} is not scripted"))
        try:
            request = cast("JsonMap", json.loads(body))
        except ValueError as error:
            return self._send_json(400, _error(f"the body is not JSON: {error}"))
        number, plan = self._scripted.take(request, {name.lower(): value for name, value in self.headers.items()})
        self._scripted.wait(plan.seconds)
        try:
            return self._answer(plan, request, number)
        except (BrokenPipeError, ConnectionResetError):
            return None  # the client went away, which is its right

    @property
    def _scripted(self) -> ScriptedServer:
        return cast("_Listener", self.server).scripted

    def _answer(self, plan: Delivery, request: JsonMap, number: int) -> None:
        self.close_connection = not self._scripted.keep_alive or plan.fault is not Fault.NONE
        if plan.events == 0 and plan.fault in (Fault.BREAK, Fault.RESET):
            pass  # before any answer at all
        elif isinstance(plan.content, Status):
            body = status_document(plan.content).encode()
            self._send(plan, plan.content.code, body, plan.content.headers)
        elif request.get("stream"):
            self._stream(plan, event_bytes(plan.content, request, number, plan.size))
        else:
            document = completion_document(plan.content, request, number)
            self._send(plan, 200, json.dumps(document, ensure_ascii=False).encode(), {})
        if plan.fault is Fault.RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _TEAR_DOWN)
            os.close(self.connection.detach())

    def _stream(self, plan: Delivery, events: list[bytes]) -> None:
        self._start(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        if plan.at_byte is not None:
            events = [b"".join(events)[: plan.at_byte]]
        self._write(events[: plan.events])
        if plan.fault is Fault.PAUSE:
            self._scripted.wait(plan.pause_s)
            self._write(events[plan.events :])
        while plan.fault is Fault.COMMENTS and not self._scripted.wait(plan.pause_s):
            self._write([b": still here\n\n"])
        if plan.fault in (Fault.NONE, Fault.PAUSE):
            self.wfile.write(b"0\r\n\r\n")

    def _write(self, events: list[bytes]) -> None:
        for data in filter(None, events):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _send_json(self, code: int, document: JsonMap) -> None:
        self._send(Delivery(Status(code)), code, json.dumps(document, ensure_ascii=False).encode(), {})

    def _send(self, plan: Delivery, code: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a body whose length is told; a fault after some events, of which it has none, comes in its middle."""
        sent = body[: len(body) // 2 if plan.at_byte is None and plan.fault is not Fault.NONE else plan.at_byte]
        length = len(sent if plan.fault is Fault.NONE else body)
        self._start(code, {"Content-Type": "application/json", "Content-Length": str(length)} | headers)
        self.wfile.write(sent)

    def _start(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        keep = self._scripted.keep_alive and not self.close_connection
        connection = {} if keep else {"Connection": "close"}
        for name, value in (connection | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        """Say nothing: a test's output is its own."""


def _error(message: str) -> JsonMap:
    return {"error": {"message": message, "type": "scripted", "code": None}}
