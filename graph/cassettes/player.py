"""A cassette that is being played: each exchange answers once, and what was not recorded is told with its difference.

Pure but for its own memory; safe in threads.
"""

import re
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from graph.cassettes.cassette_file import CassetteFile, Exchange, scrubbed
from graph.cassettes.difference import canonical, conversation, difference, parsed, text_of

Scrub = Callable[[bytes], bytes]
LAST_WORDS: Final = 80
"""Characters of the last message that tell a person which request is meant."""

_ROOTS: Final = re.compile("^(?:/v1)+(?=/)")
"""Whether an address is given with `/v1` or without depends on the client: ChatAnthropic puts its own behind it."""


class Player:
    """Answers requests from a cassette. `misses` are the requests that it could not answer, in readable words."""

    def __init__(self, cassette: CassetteFile, name: str, *, version: str = "", scrub: Scrub = scrubbed) -> None:
        """`name` is what messages call the cassette, `version` the mendgraph that plays it ("" where nobody asks)."""
        self.cassette = cassette
        self.misses: list[str] = []
        self._name, self._version, self._scrub = name, version, scrub
        self._bodies = [canonical(exchange.request) for exchange in cassette.exchanges]
        self._played = [False] * len(cassette.exchanges)
        self._lock = Lock()

    def take(self, method: str, path: str, body: bytes) -> Exchange | str:
        """The first exchange that is left and fits, or in words why there is none. A query in `path` is ignored."""
        path, body = path.partition("?")[0], self._scrub(body)
        value = canonical(body)
        with self._lock:
            for index, exchange in enumerate(self.cassette.exchanges):
                fits = _is_place(exchange, method, path) and self._bodies[index] == value
                if fits and not self._played[index]:
                    self._played[index] = True
                    return exchange
            miss = self._miss(method, path, body)
            if miss not in self.misses:  # a client that tries again has nothing new to tell
                self.misses.append(miss)
            return miss

    @property
    def played(self) -> int:
        """How many exchanges were asked for."""
        return sum(self._played)

    @property
    def unplayed(self) -> list[str]:
        """The exchanges that nobody has asked for, each in one line."""
        return [self._line(index) for index, played in enumerate(self._played) if not played]

    def _miss(self, method: str, path: str, body: bytes) -> str:
        left = [index for index, played in enumerate(self._played) if not played]
        first = f"{method} {path} was not recorded in {self._name}"
        if any(p and b == canonical(body) for p, b in zip(self._played, self._bodies, strict=True)):
            first = (
                f"{method} {path} was asked for again, and {self._name} holds its answer as often as it was recorded"
            )
        if not left:
            sent = _told(parsed(body))
            return f"{first}: all of its {len(self._played)} exchanges have been played{sent}.{self._hint()}"
        ways = [self._differs(index, method, path, body) for index in left]
        _, index, lines = min(zip(map(len, ways), left, ways, strict=True))
        shown = "".join(f"\n  {line}" for line in lines)
        which = "The exchange" if len(left) == 1 else "The nearest exchange"
        return f"{first}. {which} that is left is number {index + 1} of {len(self._played)}:{shown}{self._hint()}"

    def _differs(self, index: int, method: str, path: str, body: bytes) -> list[str]:
        exchange = self.cassette.exchanges[index]
        if not _is_place(exchange, method, path):
            return [f"{exchange.method} {exchange.path} was recorded, {method} {path} is sent"]
        return difference(exchange.request, body)

    def _hint(self) -> str:
        recorded = self.cassette.settings.get("mendgraph", "")
        if recorded and self._version and recorded != self._version:
            why = f"it was recorded with mendgraph {recorded}, and this is {self._version}, whose prompts may differ"
        else:
            why = "a changed prompt, tool, setting, file or version of the agent asks for something else"
        return f"\nWhat usually causes this: {why}. If it is meant, record again with `pytest --mendgraph-record`."

    def _line(self, index: int) -> str:
        exchange = self.cassette.exchanges[index]
        told = _told(parsed(exchange.request))
        return f"number {index + 1} of {len(self._played)}: {exchange.method} {exchange.path}{told}"


def _is_place(exchange: Exchange, method: str, path: str) -> bool:
    return exchange.method == method and _ROOTS.sub("", exchange.path) == _ROOTS.sub("", path)


def _told(body: Any) -> str:
    """How long the conversation of a request is, and how it ends; "" for what is none."""
    messages = conversation(body)
    if not messages:
        return ""
    last = messages[-1]
    who, text = last.get("role", last.get("type")), text_of(last)[:LAST_WORDS]
    return f", {len(messages)} messages, the last by {who}: {text!r}"
