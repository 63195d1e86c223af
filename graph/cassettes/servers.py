"""Endpoints on loopback for another process: one plays a cassette, one records, one recites a stored run.

    with ReplayServer(cassette) as server:
        subprocess.run(["mendgraph", "--base-url", server.base_url, ...])
    assert (server.misses, server.unplayed) == ([], 0)

Strict as a replay in process: each exchange answers once, and a request that was not recorded is refused with the
difference as its message.
"""

import json
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self, cast

import httpx2

from mendgraph.graph.cassettes.cassette_file import RESPONSE_HEADERS, CassetteFile, Exchange, only_headers, scrubbed
from mendgraph.graph.cassettes.player import ROOT, Player
from mendgraph.graph.langchain.failures import NOT_RECORDED
from mendgraph.nodes.execute_tools.secrets.redact import known_values
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply

MISSED: Final = 422
"""The status of a request that was not recorded: no client takes it for a failure that passes, as 409 or 5xx."""

POLL_S: Final = 0.02
"""How soon a server notices that it is to end, in seconds."""


class LoopbackServer:
    """A server on 127.0.0.1, at a free port, as a context manager; `base_url` is the endpoint to give to the client.

    Entered once: at the end it waits for the requests that it has begun to answer.
    """

    def __init__(self, handler: type["Answering"]) -> None:
        """Take a free port; nobody is answered before the server is entered.

        Raises:
            OSError: the port cannot be taken.
        """
        self._http = _Listener(("127.0.0.1", 0), handler)
        self._http.owner = self
        self._thread = Thread(target=self._http.serve_forever, args=(POLL_S,), daemon=True)

    @property
    def base_url(self) -> str:
        """The address of the endpoint, `/v1` included."""
        return f"http://127.0.0.1:{self.port}{ROOT}"

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return self._http.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class ReplayServer(LoopbackServer):
    """Answers from a cassette, or goes on with a `Player` that has answered before."""

    def __init__(self, cassette: CassetteFile | Player) -> None:
        if isinstance(cassette, Player):
            self.player = cassette
        else:
            self.player = Player(cassette, "the cassette")

        super().__init__(_Replaying)

    @property
    def misses(self) -> list[str]:
        """The requests that were not recorded, with their differences."""
        return self.player.misses

    @property
    def unplayed(self) -> int:
        """How many exchanges nobody has asked for."""
        return len(self.player.unplayed)


class Answering(BaseHTTPRequestHandler):
    """One connection, which is closed after its request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written apart
    timeout = 30

    def do_GET(self) -> None:
        """Answer a question without a body."""
        self._guarded(b"")

    def do_POST(self) -> None:
        """Answer a question with a body; one in chunks is refused, which no client of a model sends."""
        length = self.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit():
            self.refuse(411, "a request has to say the length of its body")
            return

        self._guarded(self.rfile.read(int(length)))

    def _guarded(self, body: bytes) -> None:
        """Answer a program, and no page in a browser, which could play the cassette or spend the endpoint's key."""
        port = self.owner.port
        by_page = {"origin", "sec-fetch-site"} & {name.lower() for name in self.headers}
        if by_page or self.headers.get_all("host") not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
            self.refuse(403, f"web pages may not use this server: ask {self.owner.base_url} from a program")
            return

        try:
            self.answer(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client went away, which is its right

    @abstractmethod
    def answer(self, body: bytes) -> None:
        """Answer the request with this body."""

    @property
    def owner(self) -> Any:
        """The server that this connection belongs to."""
        return cast("_Listener", self.server).owner

    def refuse(self, status: int, message: str) -> None:
        """Refuse in the words of OpenAI's errors, and ask not to be tried again."""
        self.send(status, *refusal(message))

    def send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send a whole answer."""
        self.start(status, headers | {"content-length": str(len(body))})
        self.wfile.write(body)

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the head of an answer."""
        self.close_connection = True
        self.send_response(status)
        for name, value in {**headers, "connection": "close"}.items():
            self.send_header(name, value)

        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        """Say nothing: a test's output is its own."""


def refusal(message: str) -> tuple[dict[str, str], bytes]:
    """The headers and the body that say what was not recorded."""
    error = {"message": message, "type": "cassette", "code": NOT_RECORDED, "param": None}
    headers = {"content-type": "application/json", "x-should-retry": "false"}
    return headers, json.dumps({"error": error}).encode()


class _Replaying(Answering):
    def answer(self, body: bytes) -> None:
        """Play the exchange that was recorded for this request."""
        exchange = self.owner.player.take(self.command, self.path, body)
        if isinstance(exchange, str):
            self.refuse(MISSED, exchange)
        else:
            self.send(exchange.status, exchange.headers, exchange.response)


class _Listener(ThreadingHTTPServer):
    """Joins its threads at the end, so that no socket outlives the test."""

    daemon_threads = False
    block_on_close = True
    owner: LoopbackServer


UPSTREAM_FAILED = 502
KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
"""In which Anthropic, Azure and Google look for a key; the others have it as a bearer."""

_OF_THE_LINE = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "cookie"})
"""Headers that are not handed on: they speak of the connection, or of somebody else."""

TIMEOUT_S = 600.0
"""Longest silence of the endpoint, in seconds: the client's own limit is to come first."""


class ForwardingServer(LoopbackServer):
    """Hands requests on to the endpoint `base_url` with its key, where a tape of this process hears them."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.upstream = base_url.rstrip("/")
        self.api_key = api_key
        super().__init__(_Forwarding)


class _Forwarding(Answering):
    def answer(self, body: bytes) -> None:
        """Ask the endpoint, and give its answer when it is whole."""
        server: ForwardingServer = self.owner
        if not self.path.startswith(f"{ROOT}/"):
            self.refuse(404, f"{self.path} is not below {ROOT}")
            return

        url = server.upstream + self.path.removeprefix(ROOT)
        headers = only_headers(dict(self.headers), {name.lower() for name in self.headers} - _OF_THE_LINE)
        keys = {name: server.api_key for name in KEY_HEADERS if name in headers}
        headers |= keys or {"authorization": f"Bearer {server.api_key}"}

        try:
            with httpx2.Client(timeout=TIMEOUT_S, trust_env="127.0.0.1" not in url) as client:
                reply = client.request(self.command, url, content=body, headers=headers)
        except httpx2.HTTPError as error:
            self.refuse(UPSTREAM_FAILED, f"{server.upstream} cannot be asked: {error}")
        else:
            self.send(reply.status_code, only_headers(reply.headers, RESPONSE_HEADERS), reply.content)


# --- What a model said, as its endpoint says it


class Reciter(LoopbackServer):
    """An endpoint that says again what was said in a run; `exchanges` are what a recording of that holds."""

    def __init__(self, model: str, replies: Sequence[ModelReply]) -> None:
        """`model` is the name in the replies that tell none."""
        self.exchanges: list[Exchange] = []
        self._model = model
        self._left = deque(replies)
        super().__init__(_Reciting)

    def recite(self, path: str, body: bytes) -> Exchange | None:
        """The next exchange; None where the run had no further reply."""
        if not self._left:
            return None

        reply_document = streamed_reply(self._left.popleft(), self._model, len(self.exchanges) + 1)
        secrets = known_values(os.environ)
        headers = {"content-type": "text/event-stream"}
        self.exchanges.append(
            Exchange(
                method="POST",
                path=path,
                request=scrubbed(body, secrets),
                status=200,
                headers=headers,
                response=scrubbed(reply_document, secrets),
            )
        )

        return self.exchanges[-1]


class _Reciting(Answering):
    def answer(self, body: bytes) -> None:
        """Say what comes next."""
        reply = self.owner.recite(self.path, body)
        if reply is None:
            self.refuse(MISSED, "The run had no further reply.")
        else:
            self.send(reply.status, reply.headers, reply.response)


def streamed_reply(reply: ModelReply, model: str, number: int) -> bytes:
    """The reply as a stream of events; `number` counts the exchanges from 1."""
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1_700_000_000}
    complete = ({**head, "model": reply.model or model, **document} for document in _documents(reply))
    events = [f"data: {json.dumps(document, ensure_ascii=False)}\n\n" for document in complete]

    return "".join([*events, "data: [DONE]\n\n"]).encode()


def _documents(reply: ModelReply) -> Iterator[JsonMap]:
    yield _choice({"role": "assistant", "content": ""})
    for key, text in (("reasoning_content", reply.reasoning), ("content", reply.text), ("refusal", reply.refusal)):
        if text:
            yield _choice({key: text})

    for index, call in enumerate(reply.calls):
        function = {"name": call.tool, "arguments": call.arguments}
        yield _choice({"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": function}]})

    finish_reason = reply.finish_reason
    if finish_reason is FinishReason.REFUSAL:
        finish_reason = FinishReason.STOP

    yield _choice({}, finish_reason.value)

    if reply.input_tokens or reply.output_tokens:
        usage: JsonMap = {
            "prompt_tokens": reply.input_tokens,
            "completion_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }
        details = {"cached_tokens": reply.cached_tokens, "cache_write_tokens": reply.cache_write_tokens}

        if nonzero := {name: count for name, count in details.items() if count}:
            usage["prompt_tokens_details"] = nonzero

        if reply.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": reply.reasoning_tokens}

        yield {"choices": [], "usage": usage}


def _choice(delta: JsonMap, finish: str | None = None) -> JsonMap:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
