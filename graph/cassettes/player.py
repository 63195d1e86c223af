"""Replay of a cassette: each exchange answers once, and a request that was not recorded is reported as a difference."""

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from threading import Lock
from typing import Any, Final

from mendgraph.graph.cassettes.cassette_file import CassetteFile, Exchange, scrubbed
from mendgraph.nodes.records import JsonMap

_ROOTS: Final = re.compile("^(?:/v1)+(?=/)")
"""Clients differ in whether they add `/v1` to an address."""

_LONGEST_EXCERPT: Final = 80
"""Characters of a conversation's last message in messages."""


class Player:
    """Answers requests from a cassette; `misses` describes the requests that it could not answer."""

    def __init__(self, cassette: CassetteFile, name: str, *, version: str = "") -> None:
        """`name` is the cassette's name in messages, `version` that of the running mendgraph, "" if unknown."""
        self.cassette = cassette
        self.misses: list[str] = []
        self._name = name
        self._version = version
        self._bodies = [canonical(scrubbed(exchange.request)) for exchange in cassette.exchanges]
        self._played = [False] * len(cassette.exchanges)
        self._lock = Lock()

    def take(self, method: str, path: str, body: bytes) -> Exchange | str:
        """Return the first matching exchange that was not played, or the miss; a query in `path` is ignored."""
        path = path.partition("?")[0]
        body = scrubbed(body)
        wanted = canonical(body)

        with self._lock:
            for index, exchange in enumerate(self.cassette.exchanges):
                if not self._played[index] and self._bodies[index] == wanted and _is_same(exchange, method, path):
                    self._played[index] = True
                    return exchange

            miss = self._miss(method, path, body)
            if miss not in self.misses:  # a client may retry
                self.misses.append(miss)

            return miss

    @property
    def played(self) -> int:
        """The number of exchanges that were played."""
        return sum(self._played)

    @property
    def unplayed(self) -> list[str]:
        """The exchanges that were not played, one line each."""
        lines = []
        for index, exchange in enumerate(self.cassette.exchanges):
            if not self._played[index]:
                end = _conversation_end(exchange.request)
                lines.append(f"number {index + 1} of {len(self._played)}: {exchange.method} {exchange.path}{end}")

        return lines

    def _miss(self, method: str, path: str, body: bytes) -> str:
        request = f"{method} {path} was not recorded in {self._name}"
        nearest: tuple[int, list[str]] | None = None

        for index, exchange in enumerate(self.cassette.exchanges):
            if self._played[index]:
                continue

            lines = [f"{exchange.method} {exchange.path} was recorded, {method} {path} is sent"]
            if _is_same(exchange, method, path):
                lines = difference(exchange.request, body)
            if nearest is None or len(lines) < len(nearest[1]):
                nearest = (index, lines)

        if nearest is None:
            played = f"all of its {len(self._played)} exchanges have been played{_conversation_end(body)}"
            return f"{request}: {played}.{self._likely_cause()}"

        index, lines = nearest
        which = "The exchange" if self._played.count(False) == 1 else "The nearest exchange"
        listing = "".join(f"\n  {line}" for line in lines)
        place = f"{which} that is left is number {index + 1} of {len(self._played)}"
        return f"{request}. {place}:{listing}{self._likely_cause()}"

    def _likely_cause(self) -> str:
        cause = "a changed prompt, tool, setting, file or version of the agent asks for something else"
        recorded = self.cassette.settings.get("mendgraph", "")
        if recorded and self._version and recorded != self._version:
            cause = f"it was recorded with mendgraph {recorded}, and this is {self._version}, whose prompts may differ"

        return f"\nWhat usually causes this: {cause}. If it is meant, record again with `pytest --mendgraph-record`."


def _is_same(exchange: Exchange, method: str, path: str) -> bool:
    """Return whether method and path are those of the exchange."""
    return exchange.method == method and _ROOTS.sub("", exchange.path) == _ROOTS.sub("", path)


# --- Request bodies

CONVERSATIONS: Final = ("messages", "contents", "input")
"""The keys of a request's messages: `contents` for Gemini, `input` for OpenAI's Responses API."""


def parsed(body: bytes) -> Any:
    """Return a body as JSON, else as text, else as bytes."""
    if not body:
        return None

    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass

    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def canonical(body: bytes) -> str | bytes:
    """Return a text that is equal for equal JSON; it distinguishes `1`, `1.0` and `True`."""
    value = parsed(body)
    if isinstance(value, str | bytes):
        return body

    return json.dumps(value, sort_keys=True)


def conversation(body: Any) -> list[JsonMap]:
    """Return the messages of a parsed request for any API."""
    if not isinstance(body, dict):
        return []

    for key in CONVERSATIONS:
        messages = body.get(key)
        if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
            return messages

    return []


def _conversation_end(body: bytes) -> str:
    """Return the length of a request's conversation and its last message, or ""."""
    messages = conversation(parsed(body))
    if not messages:
        return ""

    last = messages[-1]
    content = last.get("content") or last.get("parts") or ""
    text = " ".join(str(content).split())[:_LONGEST_EXCERPT]
    return f", {len(messages)} messages, the last by {last.get('role')}: {text!r}"


# --- Differences

MOST_LINES: Final = 12
"""Lines of one difference."""

_CONTEXT: Final = 60
"""Characters shown before and after the first difference of two texts."""

_ABSENT: Final = object()


def difference(recorded: bytes, sent: bytes) -> list[str]:
    """Return a line for each value in which two request bodies differ, at most `MOST_LINES` and one more."""
    lines = list(_differences("", parsed(recorded), parsed(sent)))
    more = len(lines) - MOST_LINES
    if more > 0:
        return [*lines[:MOST_LINES], f"... and {more} more differences"]

    return lines


def _differences(place: str, recorded: Any, sent: Any) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(sent, dict):
        for key in {**recorded, **sent}:
            value = recorded.get(key, _ABSENT)
            yield from _differences(f"{place}.{key}" if place else key, value, sent.get(key, _ABSENT))
    elif isinstance(recorded, list) and isinstance(sent, list):
        for index, (one, other) in enumerate(zip_longest(recorded, sent, fillvalue=_ABSENT)):
            yield from _differences(f"{place}[{index}]{_role(one, other)}", one, other)
    elif isinstance(recorded, str) and isinstance(sent, str):
        if recorded != sent:
            yield _text_difference(place or "the body", recorded, sent)
    elif repr(recorded) != repr(sent):  # 1, 1.0 and True are equal
        yield f"{place or 'the body'}: {_labelled('recorded', recorded)}, {_labelled('sent', sent)}"


def _role(*messages: Any) -> str:
    for message in messages:
        if isinstance(message, dict) and isinstance(message.get("role"), str):
            return f" ({message['role']})"

    return ""


def _text_difference(place: str, recorded: str, sent: str) -> str:
    """Return the first line in which two texts differ."""
    recorded_lines = recorded.split("\n")
    sent_lines = sent.split("\n")
    number = first_difference(recorded_lines, sent_lines)

    if len(recorded_lines) > 1 or len(sent_lines) > 1:
        place = f"{place}, line {number + 1}"
    if number == len(sent_lines):
        return f"{place}: recorded {_short(recorded_lines[number])}, and what was sent ends before it"
    if number == len(recorded_lines):
        return f"{place}: sent {_short(sent_lines[number])}, and what was recorded ends before it"

    one = recorded_lines[number]
    other = sent_lines[number]
    start = first_difference(one, other)
    return f"{place}: recorded {excerpt(one, start)}, sent {excerpt(other, start)}"


def first_difference(one: Any, other: Any) -> int:
    """Return the first index at which two sequences differ."""
    for index, (item, other_item) in enumerate(zip(one, other, strict=False)):
        if item != other_item:
            return index

    return min(len(one), len(other))


def excerpt(text: str, start: int) -> str:
    """Return the part of a text around an index, quoted."""
    begin = max(start - _CONTEXT, 0)
    end = start + _CONTEXT
    before = "..." if begin else ""
    after = "..." if end < len(text) else ""
    return f"{before}{text[begin:end]!r}{after}"


def _labelled(verb: str, value: Any) -> str:
    if value is _ABSENT:
        return f"not {verb}"
    return f"{verb} {_short(value)}"


def _short(value: Any) -> str:
    text = repr(value)
    if not isinstance(value, str | bytes):
        text = json.dumps(value, ensure_ascii=False)

    if len(text) <= 2 * _CONTEXT:
        return text
    return f"{text[: 2 * _CONTEXT]}..."
