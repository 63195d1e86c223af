"""A scripted provider on loopback: what all families share, which is everything but wire format and rules.

    with FAMILIES["anthropic"]([use(("read_file", '{"path": "a"}')), say("Done.")]) as server:
        model = ChatAnthropic(base_url=server.url, api_key=server.key, model=server.model)

By history (the default) a request with n assistant turns gets reply n, so a resumed run that asks again gets the same
again; by position, request n gets it.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Literal, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.doubles.listener import ConnectionHandler, Listener
from tests.providers.script import Refusal, Reply, Request, State, Turn
from tests.providers.wire import JsonMap, RefusedError, dumps, strings


@dataclass(frozen=True)
class Answer:
    """What goes back: a document, or the events of a stream."""

    status: int
    document: bytes = b""
    events: list[bytes] | None = None


class ProviderServer(ABC):
    """One family. `requests` are those that were answered, `refusals` the others."""

    family: ClassVar[str]
    key: ClassVar[str]
    model: ClassVar[str]
    root: ClassVar[str] = "/v1"
    """The path of `url`, as the family's LangChain class wants it."""
    stream_type: ClassVar[str] = "text/event-stream; charset=utf-8"

    def __init__(self, script: Iterable[Reply] = (), *, play: Literal["history", "position"] = "history") -> None:
        self.script = list(script)
        self.play = play
        self.requests: list[Request] = []
        self.refusals: list[Refusal] = []
        self.secrets_of_state: list[str] = []
        self._turn = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_port}{self.root}"

    def __enter__(self) -> Self:
        self._listener = Listener(_Connection, self)
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._listener.stop()

    def answer(self, request: Request | None, raw: bytes) -> Answer:
        """Judge a request and say what goes back; `request` is None where its body is not a JSON object."""
        with self._turn:
            if request is None:
                return self._refused(
                    Request("", {}, {}, {}), 400, self.error(400, "the body is not JSON"), raw.decode()
                )
            try:
                return self._reply(request)
            except RefusedError as error:
                return self._refused(request, error.status, error.body, error.why)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                return self._refused(request, 400, self.error(400, f"malformed request: {error!r}"), "malformed")

    def hand_out(self, *secrets: str) -> None:
        self.secrets_of_state.extend(secret for secret in secrets if secret not in self.secrets_of_state)

    def returned(self, request: Request) -> list[str]:
        texts = list(strings(request.body))
        return [secret for secret in self.secrets_of_state if any(self.same(secret, text) for text in texts)]

    def same(self, secret: str, value: str) -> bool:
        return secret == value

    def wants_stream(self, request: Request) -> bool:
        return request.body.get("stream") is True

    @abstractmethod
    def check(self, request: Request) -> None:
        """Raise RefusedError if the request breaks a rule."""

    @abstractmethod
    def answered(self, body: JsonMap) -> int:
        """How many assistant turns the request holds."""

    @abstractmethod
    def usage(self, request: Request, reply: Reply, state: State) -> JsonMap:
        """What the request is billed, in the provider's words."""

    @abstractmethod
    def document(self, turn: Turn) -> JsonMap:
        """The reply in one piece."""

    @abstractmethod
    def events(self, turn: Turn) -> list[bytes]:
        """The reply as a stream."""

    @abstractmethod
    def error(self, status: int, message: str) -> JsonMap:
        """An error of no particular kind, in the provider's shape."""

    def _reply(self, request: Request) -> Answer:
        self.check(request)
        number = self.answered(request.body) if self.play == "history" else len(self.requests)
        if number >= len(self.script):
            text = f"the script is exhausted: reply {number} is asked for, {len(self.script)} are scripted"
            raise RefusedError(400, self.error(400, text), "script exhausted")
        state = State(self.family, number)
        reply = self.script[number]
        turn = Turn(reply, state, request, self.usage(request, reply, state))
        stream = self.wants_stream(request)
        events = self.events(turn) if stream else None
        document = b"" if stream else dumps(self.document(turn)).encode()
        self.requests.append(request)
        return Answer(200, document, events)

    def _refused(self, request: Request, status: int, body: JsonMap | str, why: str) -> Answer:
        self.refusals.append(Refusal(status, body, why, request))
        document = body if isinstance(body, str) else dumps(body)
        return Answer(status, document.encode())


class _Connection(ConnectionHandler):
    """A connection of a client."""

    def do_POST(self) -> None:  # noqa: N802 - http.server calls it
        raw = self.read_body()
        provider = cast("ProviderServer", cast("Listener", self.server).endpoint)
        answer = provider.answer(self._read_request(raw), raw)
        try:
            if answer.events is None:
                self.send_document(answer.status, answer.document)
            else:
                self._stream(answer, answer.events, provider)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client went away

    def _read_request(self, raw: bytes) -> Request | None:
        try:
            body = json.loads(raw)
        except ValueError:
            return None
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        return Request(unquote(parts.path), query, self.request_headers, body) if type(body) is dict else None

    def _stream(self, answer: Answer, events: list[bytes], provider: ProviderServer) -> None:
        self.start_answer(answer.status, {"Content-Type": provider.stream_type, "Transfer-Encoding": "chunked"})
        for event in events:
            self.send_chunk(event)
        self.send_chunk(b"")
