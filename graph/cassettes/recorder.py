"""Interception of the model requests of this process by vcrpy, to record them or to replay a cassette."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from mendgraph.graph.cassettes.cassette_file import (
    HOST,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    Exchange,
    scrubbed,
    select_headers,
)
from mendgraph.graph.cassettes.player import CONVERSATIONS, parsed
from mendgraph.nodes.execute_tools.secrets.keys import is_secret_key
from mendgraph.nodes.execute_tools.secrets.redact import is_findable_key
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import JsonMap

Scrub = Callable[[bytes], bytes]

ROOT: Final = "/v1"
REPLAY_URL: Final = f"{HOST}{ROOT}"
"""The endpoint of a replay in this process; the host does not exist."""


class CassetteMissError(BaseException):
    """A request that was not recorded.

    It is no `Exception`: the anthropic SDK would retry for seconds and report a failed connection, and a retry policy,
    a fallback or a tolerant agent would hide it.
    """


class Answers(Protocol):
    """Answers the requests of a replay."""

    def take(self, method: str, path: str, body: bytes) -> Exchange | str:
        """Return the reply to a request, or why there is none."""


class Tape:
    """The intercepted requests of this process: those to `base_url`, and those that ask a model of any other host.

    `forwarded_url` is a server of ours whose requests are not intercepted, as it answers them itself. `host` is the
    host that a recording has last asked.
    """

    def __init__(self, base_url: str, scrub: Scrub = scrubbed) -> None:
        self.base_url = base_url
        self.forwarded_url = ""
        self.host = ""
        self._scrub = scrub
        self._cassette: Any = None

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The recorded exchanges, oldest first."""
        return tuple(self._exchange(request, response) for request, response in self._cassette.data)

    def intercept(self, request: Any) -> Any:
        """Return vcrpy's request if it is intercepted, else None."""
        if _is_at(request.uri, self.forwarded_url):
            return None
        if not _is_at(request.uri, self.base_url) and not _asks_model(request):
            return None

        self.host = urlsplit(request.uri).hostname or ""
        return request

    @contextmanager
    def inserted(self, mode: str, skip: Sequence[str]) -> Iterator[Any]:
        """Let vcrpy intercept this process's clients; `skip` are its names of clients that are left alone.

        Raises:
            ImportError: vcrpy is missing; the message names the extra.
        """
        try:
            import vcr
        except ModuleNotFoundError as error:
            raise ImportError(f"a cassette in process needs {how_to_add('cassettes')} ({error})") from error

        recorder = vcr.VCR(
            record_mode=vcr.record_mode.RecordMode(mode),
            before_record_request=self.intercept,
            decode_compressed_response=True,
            skip_patchers=tuple(skip),
        )
        recorder.register_persister(_MemoryPersister)
        with recorder.use_cassette("cassette") as self._cassette:
            yield self._cassette

    def _exchange(self, request: Any, response: JsonMap) -> Exchange:
        """Return vcrpy's request and response without host, query, secrets and identifying headers."""
        keys = _keys_of(request)
        return Exchange(
            method=request.method.upper(),  # google-genai on aiohttp writes it in lower case
            path=recorded_path(request.uri, self.base_url),
            request=scrubbed(self._scrub(_body_of(request)), keys),
            request_headers=select_headers(request.headers, REQUEST_HEADERS),
            status=response["status"]["code"],
            headers=select_headers(response["headers"], RESPONSE_HEADERS),
            response=scrubbed(self._scrub(response["body"].get("string") or b""), keys),
        )


@contextmanager
def recorded(base_url: str = "", *, scrub: Scrub = scrubbed, skip: Sequence[str] = ()) -> Iterator[Tape]:
    """Let clients reach their model, and record both sides.

    `base_url` ends before `/chat/completions`; the tape's may be set later, when the endpoint is known.
    """
    tape = Tape(base_url, scrub)
    with tape.inserted("all", skip):
        yield tape


@contextmanager
def replayed(player: Answers, *, skip: Sequence[str] = ()) -> Iterator[Tape]:
    """Answer from the player; a request that it does not answer raises `CassetteMissError` in the client."""
    tape = Tape(REPLAY_URL)

    def can_play(request: Any) -> bool:
        if tape.intercept(request) is None:
            return False

        if not hasattr(request, "exchange"):  # vcrpy asks twice for some clients
            exchange = player.take(request.method.upper(), request.path, _body_of(request))
            if isinstance(exchange, str):
                raise CassetteMissError(exchange)

            request.exchange = exchange

        return True

    with tape.inserted("none", skip) as cassette:
        cassette.can_play_response_for = can_play
        cassette.play_response = _play
        yield tape


def _play(request: Any) -> JsonMap:
    exchange: Exchange = request.exchange
    return {
        "status": {"code": exchange.status, "message": ""},
        "headers": {name: [value] for name, value in exchange.headers.items()},
        "body": {"string": exchange.response},
    }


class _MemoryPersister:
    """Reads and writes no file for vcrpy: cassette files are ours."""

    @staticmethod
    def load_cassette(*_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
        """Return an empty cassette."""
        return [], []

    @staticmethod
    def save_cassette(*_: Any, **__: Any) -> None:
        """Do nothing."""


def recorded_path(uri: str, base_url: str) -> str:
    """Return the path that a cassette stores: for the endpoint, `/v1` replaces the path of its `base_url`."""
    path = urlsplit(uri).path
    root = urlsplit(base_url).path.rstrip("/")
    if root and path.startswith(f"{root}/") and _is_at(uri, base_url):
        return ROOT + path.removeprefix(root)

    return path


def _is_at(uri: str, base_url: str) -> bool:
    return _origin(uri) == _origin(base_url)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _asks_model(request: Any) -> bool:
    """Return whether a request holds a conversation, or names a model and an input or file for it."""
    body = None
    if request.method.upper() == "POST":
        body = parsed(_body_of(request))

    if not isinstance(body, dict):
        return False
    if any(isinstance(body.get(key), list) for key in CONVERSATIONS):
        return True

    return "model" in body and not body.keys().isdisjoint({"input", "file"})


def _body_of(request: Any) -> bytes:
    """Return the body of vcrpy's request; aiohttp passes JSON unencoded, and a body in parts is not read."""
    body = request.body
    if isinstance(body, dict):
        return json.dumps(body).encode()
    if isinstance(body, bytes):
        return body

    return b""


def _keys_of(request: Any) -> list[str]:
    """Return the keys in headers and query: an endpoint may repeat them in its reply."""
    named = [*request.headers.items(), *parse_qsl(urlsplit(request.uri).query)]
    values = [str(value).rpartition(" ")[2] for name, value in named if name == "key" or is_secret_key(name.lower())]
    return [value for value in values if is_findable_key(value)]
