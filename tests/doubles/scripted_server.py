"""An OpenAI-compatible endpoint on loopback that says what a test tells it to say, and nothing else.

    with ScriptedServer([Say("Hello"), Calls([("read_file", '{"path": "a.py"}')])]) as server:
        ...                                      # point a client at server.base_url
    assert server.requests[0]["messages"] == [...]

Replies are taken in the order in which requests arrive. A script entry may be a function of the request, and `then`
answers whatever comes after the script; without it a further request gets a 500 that says so.
"""

import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast

from nodes.records import JsonMap
from tests.doubles.replies import (
    CREATED,
    Calls,
    Chunked,
    Compute,
    Cut,
    Delivery,
    Disconnect,
    Empty,
    Filtered,
    Message,
    NoFinish,
    Refuse,
    Reply,
    Say,
    Slow,
    Status,
    completion_document,
    delivery,
    status_document,
    stream_documents,
)

__all__ = [
    "Calls",
    "Chunked",
    "Cut",
    "Disconnect",
    "Empty",
    "Filtered",
    "NoFinish",
    "Refuse",
    "Reply",
    "Say",
    "ScriptedServer",
    "Slow",
    "Status",
]


class ScriptedServer:
    """The endpoint, as a context manager. It may be entered once.

    `requests` holds the body of each completion request, `headers` its headers with lower-case names.
    """

    def __init__(self, script: Iterable[Reply | Compute] = (), *, then: Compute | None = None) -> None:
        self.requests: list[JsonMap] = []
        self.headers: list[dict[str, str]] = []
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

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the end of the server."""
        self._stopped.wait(seconds)

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
    """One connection, one request: nothing lingers in a keep-alive."""

    protocol_version = "HTTP/1.1"
    timeout = 5

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._send_json(404, _error(f"GET {self.path} is not scripted"))
        model = {"id": "scripted", "object": "model", "created": CREATED, "owned_by": "tests"}
        return self._send_json(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
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
        if plan.events == 0:
            self.close_connection = True
            return None
        if isinstance(plan.content, Status):
            return self._send(plan.content.code, status_document(plan.content), plan.content.headers)
        if request.get("stream"):
            return self._stream(plan, plan.content, request, number)
        document = json.dumps(completion_document(plan.content, request, number), ensure_ascii=False)
        return self._send(200, document, {}, whole=plan.events is None)

    def _stream(self, plan: Delivery, message: Message, request: JsonMap, number: int) -> None:
        self._start(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        events = [
            json.dumps(each, ensure_ascii=False) for each in stream_documents(message, request, number, plan.size)
        ]
        if message.finish_reason is not None:
            events.append("[DONE]")
        for event in events[: plan.events]:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        if plan.events is None:
            self.wfile.write(b"0\r\n\r\n")

    def _send_json(self, code: int, document: JsonMap) -> None:
        self._send(code, json.dumps(document, ensure_ascii=False), {})

    def _send(self, code: int, document: str, headers: dict[str, str], *, whole: bool = True) -> None:
        body = document.encode()
        self._start(code, {"Content-Type": "application/json", "Content-Length": str(len(body))} | headers)
        self.wfile.write(body if whole else body[: len(body) // 2])

    def _start(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in ({"Connection": "close"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        """Say nothing: a test's output is its own."""


def _error(message: str) -> JsonMap:
    return {"error": {"message": message, "type": "scripted", "code": None}}
