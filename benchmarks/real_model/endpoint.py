"""The endpoint of an evaluation: a local proxy of the embedded model that counts and limits the calls of each run.

Each run has a separate base URL (`/run/<number>/v1`). The proxy forwards replies unchanged, streamed or not, and
records their token counts (`reply_facts`). The limits are the same for every harness (`measured_run`). A call beyond
them gets a permanent HTTP 429.

With a reply cache, a repeated request gets the stored bytes immediately, and its original seconds and tokens are
counted again. That makes ablations cheap and repeated runs comparable. `--no-cache` measures again. In a partly
replayed run, the server has computed fewer prompts, so it caches less. The server starts when a reply must be computed,
and restarts for each harness and label.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

from benchmarks.real_model.measured_run import Limits, MeasuredRun
from benchmarks.real_model.record import CallRecord
from benchmarks.real_model.reply_cache import ReplyCache, StoredReply, request_key
from benchmarks.real_model.reply_facts import is_complete, read_facts
from mendgraph.nodes.call_model.local_model import LocalServer, ServerSlot, start_local_server, why_unavailable
from mendgraph.nodes.call_model.weights import weights_path
from mendgraph.nodes.records import JsonMap, ProviderFailure

REPLY_TIMEOUT_S = 600.0
COMPLETIONS = "/chat/completions"
CACHED_STATUSES = frozenset({200, 400})
"""The statuses that depend only on the request. A prompt beyond the window has status 400."""


class EmbeddedServer:
    """The server of the embedded model, which starts when its address is first requested."""

    def __init__(self) -> None:
        self._slot = ServerSlot(lambda: why_unavailable() or start_local_server(weights_path()))
        self._running: LocalServer | None = None

    def __call__(self) -> str | ProviderFailure:
        """Return the base URL with `/v1`, and start the server if needed. Thread-safe."""
        server = self._slot.get()
        if isinstance(server, ProviderFailure):
            return server
        self._running = server
        return server.base_url

    def stop(self) -> None:
        """Stop the server. The next call starts a new one with an empty cache."""
        if self._running is not None:
            self._running.stop()
            self._running = None


class MeasuredEndpoint:
    """The proxy as a context manager for one use. `upstream` returns the base URL of the server."""

    def __init__(
        self,
        upstream: Callable[[], str | ProviderFailure],
        model: str,
        weights_sha256: str = "",
        cache: ReplyCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self._upstream = upstream
        self._weights = weights_sha256
        self._cache = cache
        self._clock = clock
        self._numbers = itertools.count(1)
        self._runs: dict[str, MeasuredRun] = {}
        self._pending: dict[socket, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Listen on a free port of loopback."""
        self._http = _Listener(("127.0.0.1", 0), _Handler)
        self._http.endpoint = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Abort all calls and join all threads."""
        for number in list(self._runs):
            self.close_run(self._runs[number])
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def open_run(self, limits: Limits, *, greedy: bool) -> tuple[MeasuredRun, str]:
        """Start the run of a task, and return it with its base URL."""
        run = MeasuredRun(next(self._numbers), limits, greedy, self._clock)
        self._runs[str(run.number)] = run
        return run, f"http://127.0.0.1:{self._http.server_port}/run/{run.number}/v1"

    def close_run(self, run: MeasuredRun) -> None:
        """End a run and abort its calls, so that the server stops computing them."""
        with self._lock:
            self._runs.pop(str(run.number), None)
            connections = [connection for connection, number in self._pending.items() if number == run.number]
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(SHUT_RDWR)

    def run_of(self, path: str) -> MeasuredRun | None:
        """Return the run with this request path."""
        parts = path.split("/", 3)
        if len(parts) != 4 or parts[1] != "run":
            return None
        return self._runs.get(parts[2])

    def begin_call(self, run: MeasuredRun, request: JsonMap) -> tuple[str, JsonMap, str, StoredReply | None]:
        """Begin a call; return the exceeded limit or "", the request to send, its key, and a stored reply."""
        with self._lock:
            limit = run.admit()
            upstream_request = run.apply_limits(request)
            occurrence = run.occurrence(json.dumps(upstream_request, sort_keys=True))
            key = request_key(upstream_request, self._weights, occurrence)

        stored = None
        if self._cache and not limit:
            stored = self._cache.get(key)
        return limit, upstream_request, key, stored

    def record_call(self, run: MeasuredRun, key: str, reply: StoredReply, *, replayed: bool) -> None:
        """Record a completed call."""
        facts = read_facts(reply.body)
        call = CallRecord(
            key=key,
            status=reply.status,
            prompt_tokens=facts.prompt_tokens,
            uncached_tokens=facts.prompt_tokens - facts.cached_tokens,
            completion_tokens=facts.completion_tokens,
            seconds=round(reply.seconds, 3),
            finish_reason=facts.finish_reason,
            native_calls=facts.native_calls,
            replayed=replayed,
        )
        with self._lock:
            run.add(call)

    def forward(
        self, run: MeasuredRun, request: JsonMap, key: str, start_reply: Callable[[int, str], Callable[[bytes], None]]
    ) -> StoredReply:
        """Forward a request to the server, and its reply to the client. The call is recorded also after a failure.

        `start_reply` receives the status and content type, and returns a function that sends each chunk to the client.

        Raises:
            OSError: The client or the server closed its connection.
            HTTPException: The server's response is invalid.
        """
        address = self._upstream()
        if isinstance(address, ProviderFailure):
            raise ConnectionError(address.message)

        parts = urlsplit(address)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=REPLY_TIMEOUT_S)
        connection.connect()
        upstream_socket = connection.sock
        with self._lock:
            self._pending[upstream_socket] = run.number
            is_closed = str(run.number) not in self._runs

        status = 502
        content_type = ""
        body = b""
        start = self._clock()
        try:
            if is_closed:  # while the server was starting
                raise ConnectionError("the run is over")
            data = json.dumps(request, ensure_ascii=False).encode()
            connection.request("POST", parts.path + COMPLETIONS, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status = response.status
            content_type = response.headers.get("Content-Type", "application/json")
            send_chunk = start_reply(status, content_type)
            while chunk := response.read1(65_536):
                body += chunk
                send_chunk(chunk)
        finally:
            connection.close()
            with self._lock:
                del self._pending[upstream_socket]
            seconds = self._clock() - start
            reply = StoredReply(status=status, content_type=content_type, body=body, seconds=seconds)
            self.record_call(run, key, reply, replayed=False)

        if self._cache and status in CACHED_STATUSES and is_complete(body, "event-stream" in content_type):
            self._cache.put(key, request, reply)
        return reply


class _Listener(ThreadingHTTPServer):
    """A server that joins its threads at the end, so that all sockets are closed."""

    daemon_threads = False
    block_on_close = True
    endpoint: MeasuredEndpoint


class _Handler(BaseHTTPRequestHandler):
    """A handler of one request per connection, without keep-alive."""

    protocol_version = "HTTP/1.1"
    timeout = 10
    _has_started = False

    def do_GET(self) -> None:
        """Respond with the list of models."""
        if not self.path.endswith("/v1/models") or self._endpoint.run_of(self.path) is None:
            return self._send_error(404, f"nothing is at {self.path}", "not_found")

        model = {"id": self._endpoint.model, "object": "model", "created": 0, "owned_by": "evaluation"}
        return self._send(200, json.dumps({"object": "list", "data": [model]}))

    def do_POST(self) -> None:
        """Respond to a completion request of a run."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        run = self._endpoint.run_of(self.path)
        if run is None or not self.path.endswith(f"/v1{COMPLETIONS}"):
            return self._send_error(404, f"no task is at work at {self.path}", "not_found")
        try:
            request = cast("JsonMap", json.loads(body))
        except ValueError as error:
            return self._send_error(400, f"the body is not JSON: {error}", "invalid_request_error")

        limit, upstream_request, key, stored = self._endpoint.begin_call(run, request)
        if limit:
            message = f"the task's {limit} is reached: no further call is answered"
            return self._send_error(429, message, "insufficient_quota")

        try:
            if stored is None:
                self._endpoint.forward(run, upstream_request, key, self._start_reply)
            else:
                self._endpoint.record_call(run, key, stored, replayed=True)
                self._start_reply(stored.status, stored.content_type)(stored.body)
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, HTTPException) as error:  # the record shows the closed connection
            if not self._has_started:
                self._send_error(502, f"the model's server failed: {error}", "server_error")
        return None

    @property
    def _endpoint(self) -> MeasuredEndpoint:
        return cast("_Listener", self.server).endpoint

    def _start_reply(self, status: int, content_type: str) -> Callable[[bytes], None]:
        self._send_head(status, {"Content-Type": content_type, "Transfer-Encoding": "chunked"})

        def send_chunk(chunk: bytes) -> None:
            if chunk:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))

        return send_chunk

    def _send_error(self, status: int, message: str, kind: str) -> None:
        error = {"message": message, "type": kind, "code": kind, "param": None}
        self._send(status, json.dumps({"error": error}), {"x-should-retry": "false"})

    def _send(self, status: int, document: str, headers: dict[str, str] | None = None) -> None:
        body = document.encode()
        with suppress(OSError):
            body_headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            self._send_head(status, body_headers | (headers or {}))
            self.wfile.write(body)

    def _send_head(self, status: int, headers: dict[str, str]) -> None:
        self._has_started = True
        self.send_response(status)
        for name, value in ({"Connection": "close"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        """Log nothing, because the progress bar uses the terminal."""
