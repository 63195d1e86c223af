"""Whole conversations with a model, recorded once and replayed for ever after: the product's way, for our own suite.

    def test_bug_is_repaired(tmp_path):
        with cassette("repair/one_file", live=scripted(Say("..."), Say("..."))) as tape:
            outcome = run(base_url=tape.base_url, ...)

Replaying is the rule: nothing is reached, not even loopback, each recorded exchange must be asked for exactly once,
and a request that was not recorded fails the test. With `MENDGRAPH_RECORD=1` the same test speaks to its `live`
endpoint instead and writes the cassette, if the block ends well. `make record` does so for all of them.

The plugin of `graph.cassettes` names a cassette after its test; ours are named after what happens in them.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from mendgraph.graph.cassettes.cassette_file import CassetteFile, parse, read_text, scrubbed, write
from mendgraph.graph.cassettes.player import Player, Tape, recorded, replayed
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests import network
from tests.doubles.scripted_server import Reply, ScriptedServer

__all__ = ["LIBRARY", "Endpoint", "Live", "Origin", "Tape", "cassette", "cassette_path", "scripted"]

LIBRARY = Path(__file__).parent.parent / "cassettes"
OTHER_CLIENTS = ("httplib", "requests", "boto3", "urllib3", "httplib2", "tornado", "aiohttp", "httpx")
"""The HTTP clients that need not be caught: our client and the openai SDK speak through httpx2 alone."""


def read(path: str, name: str = "") -> CassetteFile | ToolError:
    """The cassette at `path`, which errors call `name`."""
    text = read_text(path, name)
    return text if isinstance(text, ToolError) else parse(text, name or path)


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
    with _recorded(name, path, live) if network.is_recording() else _replayed(name, path, live) as tape:
        yield tape


@contextmanager
def _replayed(name: str, path: Path, live: Live | None) -> Iterator[Tape]:
    found = read(str(path))
    if isinstance(found, ToolError):
        missing = f"there is no cassette {name}: run this test with MENDGRAPH_RECORD=1 to record it"
        raise AssertionError(missing if found.code is ToolErrorCode.NOT_FOUND else found.message)  # noqa: TRY004 - a test's
    if live is not None and found.recorded_from != live.origin:
        raise AssertionError(
            f"cassette {name} was recorded from the {found.recorded_from}, the test says {live.origin}"
        )
    player = Player(found, f"cassette {name}")
    with network.nobody(), replayed(player, skip=OTHER_CLIENTS) as tape:
        try:
            yield tape
        except Exception as error:
            for miss in player.misses:
                if miss not in str(error):
                    error.add_note(miss)
            raise
    if player.misses:
        raise AssertionError(player.misses[0])
    if player.unplayed:
        asked = f"{player.played} of {len(found.exchanges)} exchanges were asked for"
        raise AssertionError("\n  ".join([f"cassette {name}: {asked}; nobody asked for:", *player.unplayed]))


@contextmanager
def _recorded(name: str, path: Path, live: Live | None) -> Iterator[Tape]:
    if live is None:
        raise AssertionError(f"cassette {name} names no endpoint to record from: pass `live`")
    with live.open() as endpoint, recorded(endpoint.base_url, scrub=_scrubbed, skip=OTHER_CLIENTS) as tape:
        yield tape
    if not tape.exchanges:
        raise AssertionError(f"cassette {name}: nothing was said to the endpoint")
    failed = write(str(path), CassetteFile(recorded_from=live.origin.value, exchanges=tape.exchanges))
    assert failed is None, failed


def _scrubbed(body: bytes) -> bytes:
    return scrubbed(body)
