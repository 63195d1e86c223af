"""The one endpoint of an evaluation: the embedded model behind a loopback proxy that counts and limits each task's run.

Each run has a base URL of its own (`/run/<number>/v1`). A reply passes through unchanged as it comes, streamed or not;
what it says of itself is written down (`reply_facts`). The limits are the same for every harness (`measured_run`): the
call beyond them is answered with HTTP 429, said to be permanent.

With a reply cache a request that was answered before gets the stored bytes at once, and the seconds and tokens that
were measured the first time are counted again. That makes ablations cheap and repeated runs comparable; a run that is
to be measured anew is made without it (`--no-cache`), and one that is half replayed finds a server that has computed
less of its prompts before. The server is started when a reply has to be computed, and anew for each harness and label.
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
KEPT_STATUSES = frozenset({200, 400})
"""Statuses that the same request would get again; 400 is a prompt beyond the window."""


class EmbeddedServer:
    """The embedded model's server, started when somebody asks for its address."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._slot = ServerSlot(lambda: why_unavailable() or start_local_server(weights_path()))
        self._running: LocalServer | None = None

    def __call__(self) -> str | ProviderFailure:
        """Its base URL, `/v1` included; blocks while it starts. Safe in threads."""
        server = self._slot.get()
        if isinstance(server, ProviderFailure):
            return server
        self._running = server
        return server.base_url

    def stop(self) -> None:
        """End it; who asks next gets a new one, which has computed nothing yet."""
        if self._running is not None:
            self._running.stop()
            self._running = None


class MeasuredEndpoint:
    """The proxy, as a context manager that may be entered once. `upstream` gives the server's base URL."""

    def __init__(
        self,
        upstream: Callable[[], str | ProviderFailure],
        model: str,
        weights_sha256: str = "",
        cache: ReplyCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self._upstream, self._weights, self._cache, self._clock = upstream, weights_sha256, cache, clock
        self._numbers = itertools.count(1)
        self._runs: dict[str, MeasuredRun] = {}
        self._waiting: dict[socket, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Listen on a free port of loopback."""
        self._http = _Listener(("127.0.0.1", 0), _Handler)
        self._http.endpoint = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Drop what is under way and join all threads."""
        for number in list(self._runs):
            self.close_run(self._runs[number])
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def open_run(self, limits: Limits, *, greedy: bool) -> tuple[MeasuredRun, str]:
        """Begin a task's run; the second value is the base URL that its harness is given."""
        run = MeasuredRun(next(self._numbers), limits, greedy, self._clock)
        self._runs[str(run.number)] = run
        return run, f"http://127.0.0.1:{self._http.server_port}/run/{run.number}/v1"

    def close_run(self, run: MeasuredRun) -> None:
        """End a run: its calls get no answer any more, and the server is not left computing for nobody."""
        with self._lock:
            self._runs.pop(str(run.number), None)
            pending = [line for line, number in self._waiting.items() if number == run.number]
        for line in pending:
            with suppress(OSError):
                line.shutdown(SHUT_RDWR)

    def run_of(self, path: str) -> MeasuredRun | None:
        """The run whose address this request came to."""
        parts = path.split("/", 3)
        return self._runs.get(parts[2]) if len(parts) == 4 and parts[1] == "run" else None

    def begin(self, run: MeasuredRun, request: JsonMap) -> tuple[str, JsonMap, str, StoredReply | None]:
        """Leave for one call: the limit that forbids it or "", the request to send, its key, and a stored reply."""
        with self._lock:
            refused = run.admit()
            sent = run.limited(request)
            key = request_key(sent, self._weights, run.occurrence(json.dumps(sent, sort_keys=True)))
        return refused, sent, key, self._cache.get(key) if self._cache and not refused else None

    def settle(self, run: MeasuredRun, key: str, reply: StoredReply, *, replayed: bool) -> None:
        """Write down what a call came to."""
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
            run.settle(call)

    def ask(
        self, run: MeasuredRun, request: JsonMap, key: str, pass_on: Callable[[int, str], Callable[[bytes], None]]
    ) -> StoredReply:
        """Have a reply computed. `pass_on` is told its status and type and gives what takes its bytes as they come.

        Raises OSError or HTTPException where one of both sides went away; the call is written down all the same.
        """
        address = self._upstream()
        if isinstance(address, ProviderFailure):
            raise ConnectionError(address.message)
        parts = urlsplit(address)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=REPLY_TIMEOUT_S)
        connection.connect()
        line = connection.sock
        with self._lock:
            self._waiting[line] = run.number
            closed = str(run.number) not in self._runs
        status, content_type, body, began = 502, "", b"", self._clock()
        try:
            if closed:  # while the server was starting
                raise ConnectionError("the run is over")
            data = json.dumps(request, ensure_ascii=False).encode()
            connection.request("POST", parts.path + COMPLETIONS, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, content_type = response.status, response.headers.get("Content-Type", "application/json")
            take = pass_on(status, content_type)
            while piece := response.read1(65_536):
                body += piece
                take(piece)
        finally:
            connection.close()
            with self._lock:
                del self._waiting[line]
            seconds = self._clock() - began
            reply = StoredReply(status=status, content_type=content_type, body=body, seconds=seconds)
            self.settle(run, key, reply, replayed=False)
        if self._cache and status in KEPT_STATUSES and is_complete(body, "event-stream" in content_type):
            self._cache.put(key, request, reply)
        return reply


class _Listener(ThreadingHTTPServer):
    """Joins its threads at the end, so that no socket outlives it."""

    daemon_threads = False
    block_on_close = True
    endpoint: MeasuredEndpoint


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request: nothing lingers in a keep-alive."""

    protocol_version = "HTTP/1.1"
    timeout = 10
    _answering = False

    def do_GET(self) -> None:
        """Name the model."""
        if not self.path.endswith("/v1/models") or self._endpoint.run_of(self.path) is None:
            return self._say(404, f"nothing is at {self.path}", "not_found")
        model = {"id": self._endpoint.model, "object": "model", "created": 0, "owned_by": "evaluation"}
        return self._send(200, json.dumps({"object": "list", "data": [model]}))

    def do_POST(self) -> None:
        """Answer one completion request of a run."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        run = self._endpoint.run_of(self.path)
        if run is None or not self.path.endswith(f"/v1{COMPLETIONS}"):
            return self._say(404, f"no task is at work at {self.path}", "not_found")
        try:
            request = cast("JsonMap", json.loads(body))
        except ValueError as error:
            return self._say(400, f"the body is not JSON: {error}", "invalid_request_error")
        refused, sent, key, stored = self._endpoint.begin(run, request)
        if refused:
            return self._say(429, f"the task's {refused} is reached: no further call is answered", "insufficient_quota")
        try:
            if stored is None:
                self._endpoint.ask(run, sent, key, self._pass_on)
            else:
                self._endpoint.settle(run, key, stored, replayed=True)
                self._pass_on(stored.status, stored.content_type)(stored.body)
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, HTTPException) as error:  # one of both sides went away, which the record shows
            if not self._answering:
                self._say(502, f"the model's server failed: {error}", "server_error")
        return None

    @property
    def _endpoint(self) -> MeasuredEndpoint:
        return cast("_Listener", self.server).endpoint

    def _pass_on(self, status: int, content_type: str) -> Callable[[bytes], None]:
        self._start(status, {"Content-Type": content_type, "Transfer-Encoding": "chunked"})

        def take(piece: bytes) -> None:
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

        return take

    def _say(self, status: int, message: str, kind: str) -> None:
        error = {"message": message, "type": kind, "code": kind, "param": None}
        self._send(status, json.dumps({"error": error}), {"x-should-retry": "false"})

    def _send(self, status: int, document: str, headers: dict[str, str] | None = None) -> None:
        body = document.encode()
        with suppress(OSError):
            lengths = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            self._start(status, lengths | (headers or {}))
            self.wfile.write(body)

    def _start(self, status: int, headers: dict[str, str]) -> None:
        self._answering = True
        self.send_response(status)
        for name, value in ({"Connection": "close"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        """Say nothing: the progress bar has the terminal."""
