"""Whole conversations with a model, recorded once and replayed for ever after.

    def test_a_bug_is_repaired(tmp_path):
        with cassette("repair/one_file", live=scripted(Say("..."), Say("..."))) as tape:
            outcome = run(base_url=tape.base_url, ...)

Replaying is the rule: nothing is reached, not even loopback, each recorded exchange must be asked for exactly once,
and a request that was not recorded fails the test. With `MENDGRAPH_RECORD=1` the same test speaks to its `live`
endpoint instead and writes the cassette, if the block ends well. `make record` does so for all of them.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import vcr
from vcr.errors import CannotOverwriteExistingCassetteException

from nodes.records import JsonMap
from tests import network
from tests.cassette_format import BlockYaml, only_headers, recorded_from, same_json, scrubbed
from tests.doubles.scripted_server import Reply, ScriptedServer

LIBRARY = Path(__file__).parent.parent / "cassettes"
REPLAY_URL = "http://llm.test/v1"
REQUEST_HEADERS = frozenset({"content-type", "accept"})
RESPONSE_HEADERS = frozenset({"content-type", "retry-after"})
OTHER_CLIENTS = ("httplib", "requests", "boto3", "urllib3", "httplib2", "tornado", "aiohttp", "httpx")
"""The HTTP clients that vcr need not patch: the openai SDK speaks through httpx2 alone."""


class Origin(StrEnum):
    """Who said what a cassette holds."""

    LOCAL_MODEL = "local model"
    SCRIPTED_SERVER = "scripted server"


class Endpoint(Protocol):
    """Something that answers at `base_url` (`/v1` included)."""

    @property
    def base_url(self) -> str: ...


@dataclass(frozen=True)
class Live:
    """Where a cassette is recorded from; `open` is called only when it is."""

    origin: Origin
    open: Callable[[], AbstractContextManager[Endpoint]]


@dataclass(frozen=True)
class Tape:
    """A cassette in use: `base_url` is the endpoint to give to the client."""

    name: str
    base_url: str
    recording: bool
    _vcr: Any

    @property
    def requests(self) -> list[JsonMap]:
        """The recorded requests' bodies, oldest first."""
        return [json.loads(request.body) for request in self._vcr.requests]


def scripted(*replies: Reply) -> Live:
    """Record from the tests' own server, which says `replies`."""
    return Live(Origin.SCRIPTED_SERVER, lambda: ScriptedServer(replies))


def cassette_path(name: str, library: Path = LIBRARY) -> Path:
    """The file of the cassette `scenario/case`."""
    if not re.fullmatch(r"[a-z0-9_]+/[a-z0-9_]+", name):
        raise ValueError(f"a cassette is named scenario/case in lower case, not {name!r}")
    return library / f"{name}.yaml"


@contextmanager
def cassette(name: str, live: Live | None = None, *, library: Path = LIBRARY) -> Iterator[Tape]:
    """Replay the cassette `scenario/case`, or record it from `live`.

    Replayed, it fails unless each exchange was played, none other was asked for, and the file comes from `live`'s
    origin. Recorded, it is written only if the block ends without an exception.
    """
    path = cassette_path(name, library)
    if network.is_recording():
        with _recorded(name, path, live) as tape:
            yield tape
    else:
        with _replayed(name, path, live) as tape:
            yield tape


@contextmanager
def _replayed(name: str, path: Path, live: Live | None) -> Iterator[Tape]:
    origin = recorded_from(path) if path.is_file() else None
    if origin is None:
        raise AssertionError(f"there is no cassette {name}: run this test with MENDGRAPH_RECORD=1 to record it")
    if live is not None and origin != live.origin:
        raise AssertionError(f"cassette {name} was recorded from the {origin}, the test says {live.origin}")
    with network.nobody(), _recorder(origin).use_cassette(str(path), record_mode="none") as played:
        misses = _watch(played)
        try:
            yield Tape(name, REPLAY_URL, recording=False, _vcr=played)
        except Exception as error:
            for miss in misses:
                error.add_note(f"cassette {name}: {miss}")
            raise
    if misses:
        raise AssertionError(f"cassette {name}: {misses[0]}")
    if not played.all_played:
        raise AssertionError(f"cassette {name}: {played.play_count} of {len(played)} exchanges were asked for")


@contextmanager
def _recorded(name: str, path: Path, live: Live | None) -> Iterator[Tape]:
    if live is None:
        raise AssertionError(f"cassette {name} names no endpoint to record from: pass `live`")
    draft = path.with_suffix(".recording")
    draft.unlink(missing_ok=True)
    with live.open() as endpoint, _recorder(live.origin.value).use_cassette(str(draft), record_mode="all") as taken:
        yield Tape(name, endpoint.base_url, recording=True, _vcr=taken)
    if not len(taken):
        raise AssertionError(f"cassette {name}: nothing was said to the endpoint")
    draft.replace(path)


def _watch(played: Any) -> list[str]:
    """Note the requests that the cassette cannot answer: an agent may well turn the exception into a value."""
    misses: list[str] = []
    can_play = played.can_play_response_for

    def noting(request: Any) -> bool:
        found = bool(can_play(request))
        if not found:
            misses.append(str(CannotOverwriteExistingCassetteException(cassette=played, failed_request=request)))
        return found

    played.can_play_response_for = noting
    return misses


def _recorder(origin: str) -> vcr.VCR:
    recorder = vcr.VCR(
        serializer="block",
        match_on=("method", "path", "same_json"),
        before_record_request=_clean_request,
        before_record_response=_clean_response,
        decode_compressed_response=True,
        record_on_exception=False,
        skip_patchers=OTHER_CLIENTS,
    )
    recorder.register_matcher("same_json", same_json)
    recorder.register_serializer("block", BlockYaml(origin))
    return recorder


def _clean_request(request: Any) -> Any:
    """The request without its host, its secrets and whatever a header might give away."""
    request.uri = f"http://llm.test{request.path}"
    request.headers = only_headers(request.headers, REQUEST_HEADERS)
    request.body = scrubbed(request.body)
    return request


def _clean_response(response: JsonMap) -> JsonMap:
    body = {"string": scrubbed(response["body"]["string"])}
    return response | {"headers": only_headers(response["headers"], RESPONSE_HEADERS), "body": body}
