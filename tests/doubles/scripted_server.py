"""An OpenAI-compatible endpoint on loopback that plays a script, and refuses what OpenAI refuses.

    with ScriptedServer([Say("Hello"), Calls([("read_file", '{"path": "a.py"}')])]) as server:
        ...                                      # point a client at server.base_url
    assert server.requests[0]["messages"] == [...]

Replies are taken in the order in which requests arrive. A script entry may be a function of the request, and `then`
answers whatever comes after the script; without it a further request gets a 500 that says so.

A request without a key, or one that breaks a rule of `tests.providers.openai_rules`, gets OpenAI's status and body, and
the test fails when the server ends, unless it expects that by name: see `refusals` and `LenientServer`.
"""

import json
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self, cast

from tests.doubles.listener import ConnectionHandler, Listener
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
from tests.providers.openai_rules import check_chat_request, openai_error, wrong_openai_key
from tests.providers.wire import JsonMap, RefusedError

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
    "LenientServer",
    "NoFinish",
    "Refuse",
    "Reply",
    "Say",
    "ScriptedServer",
    "Slow",
    "Stall",
    "Status",
    "Think",
    "refusing_endpoint",
]

_RESET: Final = struct.pack("ii", 1, 0)
"""The option `SO_LINGER` with no time to linger: closing resets the connection."""


@contextmanager
def refusing_endpoint() -> Iterator[str]:
    """The URL of an endpoint that refuses every connection: the port is bound, but no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


class ScriptedServer:
    """The endpoint, as a context manager. It may be entered once.

    `requests` holds the body of each completion request that was accepted, `headers` its headers with lower-case names;
    `paths` are those of all requests. `key` is the only key that is accepted, "" accepts any.

    `refusals` holds what was refused. A test that expects refusals passes `refuses=True`.
    """

    def __init__(
        self,
        script: Iterable[Reply | Compute] = (),
        *,
        then: Compute | None = None,
        key: str = "",
        refuses: bool = False,
    ) -> None:
        self.requests: list[JsonMap] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refusals: list[RefusedError] = []
        self.connections = 0
        self._script = list(script)
        self._then = then
        self._key = key
        self._refuses = refuses
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_port}/v1"

    @property
    def remaining(self) -> int:
        return max(len(self._script) - len(self.requests), 0)

    def say_next(self, *replies: Reply | Compute) -> None:
        """Answer the next requests with these replies, and nothing that was left over."""
        self._script = [*[Say("")] * len(self.requests), *replies]

    def __enter__(self) -> Self:
        self._listener = Listener(_Connection, self)
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopped.set()
        self._listener.stop()

        if error is None and self.refusals and not self._refuses:
            bodies = [f"{refusal.status} {refusal.body}" for refusal in self.refusals]
            raise AssertionError("\n  ".join(["the endpoint refused requests:", *bodies]))

    def check(self, request: JsonMap, authorization: str) -> None:
        """Refuse what OpenAI refuses.

        Raises:
            RefusedError: with OpenAI's status and body.
        """
        self.check_key(authorization)
        check_chat_request(request)

    def check_key(self, authorization: str) -> None:
        """Refuse a request without a key, or with another one than `key`.

        Raises:
            RefusedError: with OpenAI's status and body.
        """
        key = authorization.removeprefix("Bearer ")
        if not key or (self._key and key != self._key):
            raise RefusedError(401, wrong_openai_key(authorization), "key")

    def take(self, request: JsonMap, headers: dict[str, str]) -> tuple[int, Delivery]:
        """Record a request; its number, from 1, and what to answer.

        Raises:
            RefusedError: the request breaks a rule.
        """
        try:
            self.check(request, headers.get("authorization", ""))
        except RefusedError as refusal:
            self.refusals.append(refusal)
            raise

        with self._lock:
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


class LenientServer(ScriptedServer):
    """An endpoint that accepts any request, with or without a key, as some small servers do."""

    def check(self, request: JsonMap, authorization: str) -> None:
        """Accept the request."""

    def check_key(self, authorization: str) -> None:
        """Accept the key."""


class _Connection(ConnectionHandler):
    """A connection of a client, which stays open unless a fault is scripted."""

    def setup(self) -> None:
        super().setup()
        self._endpoint.connections += 1

    def do_GET(self) -> None:  # noqa: N802 - http.server calls it
        if self.path != "/v1/models":
            self._send_error(404, f"Invalid URL (GET {self.path})")
            return

        try:
            self._endpoint.check_key(self.request_headers.get("authorization", ""))
        except RefusedError as refusal:
            self._send_refusal(refusal)
            return

        model = {"id": "scripted", "object": "model", "created": CREATED, "owned_by": "tests"}
        self._send_json(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:  # noqa: N802 - http.server calls it
        body = self.read_body()
        self._endpoint.paths.append(self.path)
        if self.path != "/v1/chat/completions":
            self._send_error(404, f"Invalid URL (POST {self.path})")
            return

        try:
            request = cast("JsonMap", json.loads(body))
        except ValueError as error:
            self._send_error(400, f"We could not parse the JSON body of your request: {error}")
            return

        try:
            number, plan = self._endpoint.take(request, self.request_headers)
        except RefusedError as refusal:
            self._send_refusal(refusal)
            return

        self._endpoint.wait(plan.seconds)
        try:
            self._answer(plan, request, number)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client went away

    @property
    def _endpoint(self) -> ScriptedServer:
        return cast("ScriptedServer", cast("Listener", self.server).endpoint)

    def _answer(self, plan: Delivery, request: JsonMap, number: int) -> None:
        if plan.fault is not Fault.NONE:
            self.close_connection = True

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
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            os.close(self.connection.detach())

    def _stream(self, plan: Delivery, events: list[bytes]) -> None:
        self.start_answer(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        if plan.at_byte is not None:
            events = [b"".join(events)[: plan.at_byte]]

        self._write(events[: plan.events])
        if plan.fault is Fault.PAUSE:
            self._endpoint.wait(plan.pause_s)
            self._write(events[plan.events :])
        while plan.fault is Fault.COMMENTS and not self._endpoint.wait(plan.pause_s):
            self._write([b": still here\n\n"])

        if plan.fault in (Fault.NONE, Fault.PAUSE):
            self.send_chunk(b"")

    def _write(self, events: list[bytes]) -> None:
        for data in filter(None, events):
            self.send_chunk(data)

    def _send(self, plan: Delivery, code: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a body whose length is told; a fault after some events, of which it has none, comes in its middle."""
        sent = body[: len(body) // 2 if plan.at_byte is None and plan.fault is not Fault.NONE else plan.at_byte]
        length = len(sent if plan.fault is Fault.NONE else body)
        self.start_answer(code, {"Content-Type": "application/json", "Content-Length": str(length)} | headers)
        self.wfile.write(sent)

    def _send_error(self, code: int, message: str) -> None:
        self._send_json(code, openai_error(message))

    def _send_refusal(self, refusal: RefusedError) -> None:
        self._send_json(refusal.status, refusal.body)

    def _send_json(self, code: int, document: object) -> None:
        self.send_document(code, json.dumps(document, ensure_ascii=False).encode())
