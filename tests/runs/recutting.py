"""The recorded replies of all cassettes, the ways in which a wire may bring them, and what is made of them then.

A reply goes the whole way from its bytes to the verdict of `parse`: through the SDK's reader, LangChain's chat model
and ours, as in a run, but without a socket and without a request.
"""

import asyncio
import atexit
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import httpx2
import yaml
from openai import AsyncOpenAI, AsyncStream

from mendgraph.graph.langchain.chat_model import _Clock, _Reading
from mendgraph.graph.langchain.chat_models import EndpointModel, endpoint_model
from mendgraph.graph.langchain.replies import ReplyAssembly
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.parse.node import parse
from mendgraph.nodes.parse.reading import Reader
from mendgraph.nodes.records import CallError, JsonMap, ModelReply, ProviderFailure, Reading, ToolCall
from tests.cassettes import LIBRARY
from tests.nodes.parse.readings import BLOCKS, NATIVE, NATIVE_BLOCKS, TEXT

Result = ModelReply | ProviderFailure
Documents = tuple[JsonMap, ...]

READERS: Final[dict[str, Reader]] = {"text": TEXT, "native": NATIVE, "blocks": BLOCKS, "both": NATIVE_BLOCKS}
DONE: Final = "[DONE]"
STEP: Final = 3
CALL: Final = Call(prompt=Prompt(messages=({"role": "user", "content": "Hi"},)), max_output_tokens=9, timeout_s=60.0)
_SEPARATOR: Final = b"\n\n"
_REQUEST: Final = httpx2.Request("POST", "http://llm.test/v1/chat/completions")
_UNCOUNTED: Final = {
    "seconds": 0.0,
    **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens"), 0),
}


class Recorded(NamedTuple):
    """One streamed answer as the endpoint sent it, under the name of the first cassette that holds it."""

    name: str
    body: bytes

    @property
    def documents(self) -> Documents:
        """Its events but for the one that says it is done."""
        events = (event.removeprefix(b"data: ") for event in self.body.split(_SEPARATOR) if event.strip())
        return tuple(json.loads(event) for event in events if event != DONE.encode())


@cache
def recorded_replies() -> tuple[Recorded, ...]:
    """Every different streamed reply of the cassettes, in the order of their names."""
    found: dict[bytes, str] = {}
    for path in sorted(LIBRARY.rglob("*.yaml")):
        name = path.relative_to(LIBRARY).with_suffix("").as_posix()
        interactions = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["interactions"]
        for at, interaction in enumerate(interactions):
            body = str(interaction["response"]["body"]["string"])
            if body.startswith("data: "):
                found.setdefault(body.encode(), f"{name} {at}")
    return tuple(Recorded(name, body) for body, name in found.items())


def streamed(documents: Iterable[JsonMap]) -> bytes:
    """The documents as server-sent events."""
    data = [*(json.dumps(document, ensure_ascii=False) for document in documents), DONE]
    return "".join(f"data: {each}\n\n" for each in data).encode()


# --- From the bytes to a reply


class _Line(httpx2.AsyncByteStream):
    """A body that comes in these parts; the connection may then break. `taken` hears when a part has been read."""

    def __init__(self, parts: Iterable[bytes], *, dropped: bool, taken: Callable[[], None]) -> None:
        self._parts, self._dropped, self._taken = parts, dropped, taken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
            self._taken()
        if self._dropped:
            raise httpx2.RemoteProtocolError("peer closed connection")


@dataclass
class _Completions:
    """What stands in for the SDK's side of a request: its answer is this body."""

    client: AsyncOpenAI
    line: _Line

    async def create(self, **_: object) -> AsyncStream[object]:
        response = httpx2.Response(200, stream=self.line, request=_REQUEST)
        return AsyncStream[object](cast_to=object, response=response, client=self.client)


@cache
def _loop() -> asyncio.Runner:
    """One event loop for all calls, as a chat model belongs to one."""
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


@cache
def _model() -> EndpointModel:
    model = endpoint_model(Endpoint(model="m", base_url="http://llm.test/v1"), PLAIN)
    assert isinstance(model, EndpointModel)
    return model


def _heard(parts: Iterable[bytes], *, dropped: bool = False, taken: Callable[[], None] = lambda: None) -> None:
    """Let the model hear this body at its next request in this event loop."""
    chat = _model().chat()
    chat.async_client = _Completions(chat.root_async_client, _Line(parts, dropped=dropped, taken=taken))


def _reading() -> _Reading:
    return _Reading(_model()._request(CALL), CALL, _Clock(60.0, None), lambda _: None)


def reader_of(parts: Sequence[bytes], *, dropped: bool = False) -> tuple[ReplyAssembly, Exception | None]:
    """What was put together of all these parts, and why the reading ended early if it did."""

    async def read() -> tuple[ReplyAssembly, Exception | None]:
        _heard(parts, dropped=dropped)
        reading = _reading()
        error = await reading.ended()
        return reading.assembly, error

    return _loop().run(read())


def growing(body: bytes) -> list[ModelReply | None]:
    """What has come of a body after each of its bytes, each a part of its own; and in the end, with its cost."""
    came: list[ModelReply | None] = []

    async def read() -> None:
        _heard((body[at : at + 1] for at in range(len(body))), taken=lambda: came.append(reading.assembly.reply(0.0)))
        reading = _reading()
        assert await reading.ended() is None
        came[len(body) - 1 :] = [reading.assembly.reply(0.0)]

    _loop().run(read())
    return came


def reply_of(*parts: bytes, dropped: bool = False) -> Result:
    """What a call comes to whose body comes in these parts; `dropped` says that the connection breaks then."""
    return replies_of([parts], dropped=dropped)[0]


def replies_of(bodies: Iterable[Sequence[bytes]], *, dropped: bool = False) -> list[Result]:
    """The same for many calls."""

    async def asked() -> list[Result]:
        found = []
        for parts in bodies:
            _heard(parts, dropped=dropped)
            found.append(timeless(await _model().acomplete(CALL, lambda _: None)))
        return found

    return _loop().run(asked())


def timeless(result: Result) -> Result:
    """The same reply, whatever time it took and whatever limit it had."""
    bare = {"seconds": 0.0, "allowed_tokens": 0}
    return result.model_copy(update=bare) if isinstance(result, ModelReply) else result


# --- From a reply to a verdict


class Verdict(NamedTuple):
    """All that `parse` says of a reply, for each kind of reader: what becomes of the run depends on nothing else."""

    text: JsonMap
    native: JsonMap
    blocks: JsonMap
    both: JsonMap


@cache
def _verdict(told: str) -> Verdict:
    reply = ModelReply.model_validate_json(told)
    return Verdict(*(parse({"reply": reply, "step": STEP}, reader) for reader in READERS.values()))


def uncounted(reply: ModelReply) -> ModelReply:
    """The reply without its time and cost, which no verdict looks at."""
    return reply.model_copy(update=_UNCOUNTED)


def verdict(result: Result) -> Verdict | ProviderFailure:
    """What the machine makes of the result of a call."""
    return result if isinstance(result, ProviderFailure) else _verdict(uncounted(result).model_dump_json())


def deeds(update: JsonMap) -> list[tuple[str, str]]:
    """What a verdict would have the machine do: each call's tool and canonical arguments, in order."""
    calls = [item for item in update["items"] if isinstance(item, ToolCall)]
    return [(call.tool, json.dumps(call.arguments, sort_keys=True)) for call in calls]


def is_refused(update: JsonMap) -> bool:
    """Whether nothing runs, and each reason is a typed error."""
    if update["reading"] is not Reading.MALFORMED:
        return False
    return bool(update["errors"]) and all(isinstance(item, CallError) for item in update["items"])


# --- What endpoints do to a reply


def call_parts(document: JsonMap) -> list[dict[str, Any]]:
    """The parts of calls in one event."""
    choices = document.get("choices") or [{}]
    return list((choices[0].get("delta") or {}).get("tool_calls") or ())


def with_parts(document: JsonMap, parts: Sequence[JsonMap]) -> JsonMap:
    """The same event with other parts of calls."""
    choice = document["choices"][0]
    return {**document, "choices": [{**choice, "delta": {**choice["delta"], "tool_calls": list(parts)}}]}


def without_fields(documents: Documents, *names: str) -> Documents:
    """The reply of an endpoint that leaves these fields of a call's parts away."""
    return tuple(
        with_parts(each, [{key: value for key, value in part.items() if key not in names} for part in parts])
        if (parts := call_parts(each))
        else each
        for each in documents
    )


def with_field(documents: Documents, name: str, value: object) -> Documents:
    """The reply of an endpoint that says the same in this field of each part of a call that has it."""
    return tuple(
        with_parts(each, [{**part, name: value} if name in part else part for part in parts])
        if (parts := call_parts(each))
        else each
        for each in documents
    )


def retold(documents: Documents, size: int) -> Documents:
    """The same reply whose texts and arguments come in pieces of `size` UTF-16 units, as some endpoints count them."""
    return tuple(piece for document in documents for piece in _pieces(document, size))


def _pieces(document: JsonMap, size: int) -> list[JsonMap]:
    choices = document.get("choices") or [{}]
    text = (choices[0].get("delta") or {}).get("content")
    if text:
        choice = choices[0]
        delta = choice["delta"]
        return [{**document, "choices": [{**choice, "delta": {**delta, "content": each}}]} for each in _cut(text, size)]
    parts = call_parts(document)
    if len(parts) != 1 or not parts[0].get("function", {}).get("arguments"):
        return [document]
    [part] = parts
    first, *others = _cut(part["function"]["arguments"], size)
    begun = with_parts(document, [{**part, "function": {**part["function"], "arguments": first}}])
    place = {key: part[key] for key in ("index",) if key in part}
    return [begun, *(with_parts(document, [{**place, "function": {"arguments": each}}]) for each in others)]


def _cut(text: str, size: int) -> list[str]:
    """The text in pieces; a character beyond 16 bits may be halved."""
    units = text.encode("utf-16-le", "surrogatepass")
    ends = range(0, len(units), 2 * size)
    return [units[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in ends]


def repeated(documents: Documents, name: str) -> Documents:
    """The reply of an endpoint that says the id or the name of a call in each of its parts."""
    said: dict[int, str] = {}
    told: list[JsonMap] = []
    for document in documents:
        parts = call_parts(document)
        for at, part in enumerate(parts):
            holder = part if name == "id" else part["function"]
            said.setdefault(part["index"], holder.get(name, ""))
            again = {name: said[part["index"]]}
            parts[at] = {**part, **again} if name == "id" else {**part, "function": {**part["function"], **again}}
        told.append(with_parts(document, parts) if parts else document)
    return tuple(told)
