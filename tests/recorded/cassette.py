"""Recorded conversations with the embedded model, in files that are small and read like the conversation.

A cassette of our users (docs/cassettes.md) holds each request and each reply as it was sent. Here a request holds the
messages that it adds to the request before it, or to one of the openings in `openings.yaml`, and a reply holds its text
and the lengths of the pieces in which it was streamed. Ids and times are left out, so that a recording of the same
replies is the same file. A replay is as strict as that of our users: `read` builds their form again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange
from mendgraph.graph.cassettes.player import Player
from mendgraph.graph.cassettes.recorder import recorded, replayed
from mendgraph.nodes.records import JsonMap
from tests import network

LIBRARY: Final = Path(__file__).parent.parent.parent / "cassettes"
OPENINGS: Final = "openings"
MODEL: Final = "qwen2.5-coder-1.5b"
PATH: Final = "/v1/chat/completions"

HEADER: Final = f"# What {MODEL} was asked and said. tests/recorded replays it, `make record` writes it.\n"
_OTHER_CLIENTS: Final = ("httplib", "requests", "boto3", "urllib3", "httplib2", "tornado", "aiohttp", "httpx")
"""The HTTP clients that need not be intercepted: the run's own client uses httpx2."""

_STREAM: Final = {"content-type": "text/event-stream"}
_VOLATILE: Final = frozenset({"id", "created", "system_fingerprint", "timings"})
"""The fields of a chunk that differ between recordings of the same reply."""


def cassette_path(name: str) -> Path:
    """The file of a run's cassette."""
    return LIBRARY / f"{name}.yaml"


# --- Replay and record


@contextmanager
def replay(name: str) -> Iterator[str]:
    """Answer from the cassette, and give the base URL that does so.

    Fails with a readable difference where a request was not recorded, and where a recorded one was not sent. Meanwhile
    this process reaches no host.
    """
    player = Player(read(name), f"cassettes/{name}.yaml")
    with network.no_network(), replayed(player, skip=_OTHER_CLIENTS) as tape:
        yield tape.base_url
    if player.misses:
        raise AssertionError(player.misses[0])
    if player.unplayed:
        raise AssertionError("\n  ".join([f"cassettes/{name}.yaml: these requests were not sent:", *player.unplayed]))


@contextmanager
def record(name: str, base_url: str, request: str) -> Iterator[str]:
    """Write what the endpoint says into the cassette. `request` is the person's first one."""
    with recorded(base_url, skip=_OTHER_CLIENTS) as tape:
        yield tape.base_url
    write(name, tape.exchanges, request)


def read(name: str) -> CassetteFile:
    """A cassette as our users would have it."""
    openings = read_openings()
    exchanges: list[Exchange] = []
    before: JsonMap = {"messages": []}
    for entry in _load(name):
        before = _request_body(entry["request"], before, openings)
        status, headers, response = _response(entry["reply"])
        exchange = Exchange(
            method="POST",
            path=PATH,
            request=json.dumps(before, ensure_ascii=False).encode(),
            status=status,
            headers=headers,
            response=response,
        )
        exchanges.append(exchange)
    return CassetteFile(recorded_from="local model", exchanges=tuple(exchanges))


def read_openings() -> dict[str, JsonMap]:
    """The requests that cassettes begin with, without the person's message."""
    openings: dict[str, JsonMap] = {}
    for name, opening in (_load(OPENINGS) or {}).items():
        messages = [_message(entry) for entry in opening["messages"]]
        openings[name] = {**opening["set"], "messages": messages}
    return openings


def write(name: str, exchanges: Sequence[Exchange], request: str) -> None:
    """Write a cassette, and the opening of its first request where it is a new one."""
    bodies = [json.loads(exchange.request) for exchange in exchanges]
    openings = _with_opening_of(name, bodies[0], request, read_openings())
    entries = []
    before: JsonMap = {"messages": []}
    for exchange, body in zip(exchanges, bodies, strict=True):
        assert (exchange.method, exchange.path) == ("POST", PATH)
        entries.append({"request": _request_entry(body, before, openings), "reply": _reply_entry(exchange)})
        before = body
    _dump(name, entries)
    _dump(OPENINGS, {key: _opening_entry(opening) for key, opening in openings.items()})


# --- Requests


def _with_opening_of(name: str, body: JsonMap, request: str, openings: dict[str, JsonMap]) -> dict[str, JsonMap]:
    """The openings with that of this request: what stands before the person's message.

    That is the message with the person's words, or the last one where the machine has put them in other words.
    """
    messages = body["messages"]
    places = [place for place, message in enumerate(messages) if request in str(message.get("content"))]
    count = min(places, default=len(messages) - 1)
    if any(
        _common(opening["messages"], messages) == count == len(opening["messages"]) for opening in openings.values()
    ):
        return openings
    return {**openings, name: {**body, "messages": messages[:count]}}


def _opening_entry(opening: JsonMap) -> JsonMap:
    return {
        "set": {key: value for key, value in opening.items() if key != "messages"},
        "messages": [_message_entry(message) for message in opening["messages"]],
    }


def _request_entry(body: JsonMap, before: JsonMap, openings: Mapping[str, JsonMap]) -> JsonMap:
    """What a request says beyond the one before it, or beyond the longest opening that it has."""
    messages = body["messages"]
    complete = {
        name: opening
        for name, opening in openings.items()
        if _common(opening["messages"], messages) == len(opening["messages"])
    }
    opening = max(complete, key=lambda name: len(complete[name]["messages"]), default="")
    common = _common(before["messages"], messages)
    base = before
    entry: JsonMap = {}
    if opening and len(complete[opening]["messages"]) >= common:
        base = complete[opening]
        common = len(base["messages"])
        entry["opening"] = opening
    elif common < len(before["messages"]):
        entry["keeps"] = common
    if fields := {key: value for key, value in body.items() if key != "messages" and base.get(key) != value}:
        entry["set"] = fields
    if removed := [key for key in base if key not in body]:
        entry["unset"] = removed
    entry["messages"] = [_message_entry(message) for message in messages[common:]]
    return entry


def _request_body(entry: JsonMap, before: JsonMap, openings: Mapping[str, JsonMap]) -> JsonMap:
    base = openings[entry["opening"]] if "opening" in entry else before
    earlier = base["messages"][: entry.get("keeps")]
    body = {**base, **entry.get("set", {}), "messages": [*earlier, *map(_message, entry["messages"])]}
    return {key: value for key, value in body.items() if key not in entry.get("unset", ())}


def _common(before: Sequence[JsonMap], messages: Sequence[JsonMap]) -> int:
    """How many messages two requests begin with in common."""
    count = 0
    for one, other in zip(before, messages, strict=False):
        if one != other:
            break
        count += 1
    return count


def _message_entry(message: JsonMap) -> JsonMap:
    if message.keys() == {"role", "content"} and isinstance(message["content"], str):
        return {message["role"]: message["content"]}
    return message


def _message(entry: JsonMap) -> JsonMap:
    if "role" in entry:
        return entry
    [(role, content)] = entry.items()
    return {"role": role, "content": content}


# --- Replies


def _reply_entry(exchange: Exchange) -> JsonMap:
    """A reply as its text and the lengths of its pieces, or as it was sent where it is no such stream."""
    entry = _stream_entry(exchange.response) if exchange.status == 200 else {}
    if entry and list(map(_lasting, _chunks(entry))) == list(map(_lasting, _chunks_in(exchange.response))):
        return entry
    return {"status": exchange.status, "headers": dict(exchange.headers), "body": exchange.response.decode()}


def _stream_entry(body: bytes) -> JsonMap:
    chunks = _chunks_in(body)
    choices = [chunk["choices"][0] for chunk in chunks if chunk.get("choices")]
    usage: JsonMap = next((chunk["usage"] for chunk in chunks if chunk.get("usage")), {})
    pieces = [choice["delta"]["content"] for choice in choices[1:-1] if isinstance(choice["delta"].get("content"), str)]
    if not choices or not usage:
        return {}
    return {
        "text": "".join(pieces),
        "pieces": " ".join(str(len(piece)) for piece in pieces),
        "finish_reason": choices[-1]["finish_reason"],
        "usage": {name: usage[name] for name in ("prompt_tokens", "completion_tokens")},
    }


def _chunks_in(body: bytes) -> list[JsonMap]:
    """The chunks of a stream, without the comments by which a slow server keeps the connection open."""
    events = [event for event in body.split(b"\n\n") if event.startswith(b"data: ")]
    return [json.loads(event.removeprefix(b"data: ")) for event in events if event != b"data: [DONE]"]


def _lasting(chunk: JsonMap) -> JsonMap:
    """A chunk without what differs between recordings of the same reply."""
    stable = {name: value for name, value in chunk.items() if name not in _VOLATILE}
    if "usage" in chunk:
        stable["usage"] = {name: chunk["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return stable


def _response(entry: JsonMap) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a reply."""
    if "body" in entry:
        return entry["status"], entry["headers"], entry["body"].encode()
    lines = [json.dumps(chunk, ensure_ascii=False, separators=(",", ":")) for chunk in _chunks(entry)]
    return 200, _STREAM, "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def _chunks(entry: JsonMap) -> list[JsonMap]:
    """The chunks of a streamed reply, as llama.cpp's server sends them."""
    deltas: list[JsonMap] = [{"role": "assistant", "content": None}]
    start = 0
    for length in map(int, str(entry["pieces"]).split()):
        deltas.append({"content": entry["text"][start : start + length]})
        start += length
    chunks = [_chunk([{"finish_reason": None, "index": 0, "delta": delta}]) for delta in deltas]
    chunks.append(_chunk([{"finish_reason": entry["finish_reason"], "index": 0, "delta": {}}]))
    usage = {**entry["usage"], "total_tokens": sum(entry["usage"].values())}
    return [*chunks, {**_chunk([]), "usage": usage}]


def _chunk(choices: list[JsonMap]) -> JsonMap:
    named = {"created": 0, "id": "chatcmpl-0", "model": MODEL, "object": "chat.completion.chunk"}
    return {"choices": choices, **named}


# --- Files


def _load(name: str) -> Any:
    path = cassette_path(name)
    if not path.exists():
        if name == OPENINGS:
            return {}
        raise AssertionError(f"cassettes/{name}.yaml does not exist: make record ARGS='-k {name}' records it")
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


def _dump(name: str, document: Any) -> None:
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    cassette_path(name).write_text(HEADER + text, encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and maps of nothing but numbers in one line."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def _represent_map(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.MappingNode:
    numbers = all(isinstance(number, int) for number in value.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=numbers)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(dict, _represent_map)
