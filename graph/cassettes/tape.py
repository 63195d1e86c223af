"""Recording and replaying in the process of the agent: its HTTP client is caught by vcrpy, sync, async or streaming.

vcrpy knows how to catch the clients (httpx, requests, aiohttp and others); what is said is decided here. Only requests
to the endpoint are caught, others go on to the network, from which a replay is cut off by `graph.cassettes.offline`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from graph.cassettes.cassette_file import (
    HOST,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    Exchange,
    only_headers,
    scrubbed,
)
from graph.cassettes.difference import parsed
from graph.cassettes.player import Player, Scrub
from nodes.records import JsonMap

ROOT: Final = "/v1"
REPLAY_URL: Final = f"{HOST}{ROOT}"
"""The endpoint of a replay in process; it exists nowhere."""


class CassetteMissError(Exception):
    """A request that was not recorded."""


class Tape:
    """A conversation in use: `base_url` is the endpoint to give to the client."""

    def __init__(self, base_url: str, exchanges: Callable[[], Sequence[Exchange]], *, recording: bool) -> None:
        """`exchanges` tells what is recorded: all of it in a replay, what was said so far in a recording."""
        self.base_url, self.recording = base_url, recording
        self._exchanges = exchanges

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What is recorded, oldest first."""
        return tuple(self._exchanges())

    @property
    def requests(self) -> list[JsonMap]:
        """The recorded requests' bodies, oldest first; those that are no JSON object are left out."""
        bodies = (parsed(exchange.request) for exchange in self.exchanges)
        return [body for body in bodies if isinstance(body, dict)]


@contextmanager
def replayed(player: Player, *, skip: Sequence[str] = ()) -> Iterator[Tape]:
    """Answer from the player. `skip` are clients, in vcrpy's names, that need not be caught.

    A request that was not recorded raises `CassetteMissError` in the client, and is among the player's misses.
    """
    recorder = _recorder("none", REPLAY_URL, skip)
    with recorder.use_cassette("replay") as played:
        played.can_play_response_for = partial(_can_play, player)
        played.play_response = _play
        yield Tape(REPLAY_URL, lambda: player.cassette.exchanges, recording=False)


@contextmanager
def recorded(base_url: str, *, scrub: Scrub = scrubbed, skip: Sequence[str] = ()) -> Iterator[Tape]:
    """Let the client speak to `base_url`, which ends where `/chat/completions` begins, and write down both sides."""
    with _recorder("all", base_url, skip).use_cassette("recording") as taken:
        yield Tape(base_url, partial(_heard, taken, base_url, scrub), recording=True)


def _heard(taken: Any, base_url: str, scrub: Scrub) -> list[Exchange]:
    return [exchange_of(request, response, base_url, scrub) for request, response in taken.data]


def exchange_of(request: Any, response: JsonMap, base_url: str, scrub: Scrub) -> Exchange:
    """What vcrpy has heard as ours, without the host, the query, secrets and whatever a header might give away."""
    return Exchange(
        method=request.method,
        path=recorded_path(request.path, base_url),
        request=scrub(request.body or b""),
        request_headers=only_headers(request.headers, REQUEST_HEADERS),
        status=response["status"]["code"],
        headers=only_headers(response["headers"], {*RESPONSE_HEADERS, "content-encoding"}),  # where it stays packed
        response=scrub(response["body"]["string"] or b""),
    )


def recorded_path(path: str, base_url: str) -> str:
    """A path at an endpoint as it stands in a cassette: below `/v1`, wherever the endpoint has its own root."""
    root = urlsplit(base_url).path.rstrip("/")
    return ROOT + path.removeprefix(root) if path.startswith(f"{root}/") or not root else path


def _recorder(mode: str, base_url: str, skip: Sequence[str]) -> Any:
    try:
        import vcr
    except ModuleNotFoundError as error:
        raise ImportError(f"a cassette in process needs vcrpy ({error}): pip install 'mendgraph[cassettes]'") from error
    recorder = vcr.VCR(
        record_mode=vcr.record_mode.RecordMode(mode),
        before_record_request=partial(_if_meant_for, _origin(base_url)),
        decode_compressed_response=True,
        skip_patchers=tuple(skip),
    )
    recorder.register_persister(_Nowhere)
    return recorder


class _Nowhere:
    """vcrpy's store: it loads and keeps nothing, as files are read and written elsewhere."""

    @staticmethod
    def load_cassette(*_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
        """Nothing."""
        return [], []

    @staticmethod
    def save_cassette(*_: Any, **__: Any) -> None:
        """Keep nothing."""


def _if_meant_for(origin: tuple[str, str | None, int | None], request: Any) -> Any:
    return request if _origin(request.uri) == origin else None


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _can_play(player: Player, request: Any) -> bool:
    """Whether a request is meant for us; some clients ask twice of the same one, which is one exchange all the same."""
    if _origin(request.uri) != _origin(REPLAY_URL):
        return False
    if not hasattr(request, "answered_by"):
        found = player.take(request.method, request.path, request.body or b"")
        if isinstance(found, str):
            raise CassetteMissError(found)
        request.answered_by = found
    return True


def _play(request: Any) -> JsonMap:
    exchange: Exchange = request.answered_by
    return {
        "status": {"code": exchange.status, "message": ""},
        "headers": {name: [value] for name, value in exchange.headers.items()},
        "body": {"string": exchange.response},
    }
