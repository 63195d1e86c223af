"""How much of a run's requests an endpoint's prompt cache could reuse. Pure."""

from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass
class PrefixRecord:
    """The requests of one run: how many bytes of tools and messages they have, and how many of these repeat.

    A request's prompt are its tools and then its messages, as endpoints put them. What can be cached of it are the
    bytes up to the first message that differs from the request before; nothing where the tools differ.
    """

    requests: int = 0
    total: int = 0
    cacheable: int = 0
    breaks: int = 0
    first: int = 0
    _tools: bytes = b""
    _messages: list[bytes] = field(default_factory=list)

    def add(self, body: bytes) -> None:
        """The next request of the run."""
        request: dict[str, Any] = orjson.loads(body)
        tools = orjson.dumps(request.get("tools", []))
        messages = [orjson.dumps(each) for each in request["messages"]]
        same = _common(self._messages, messages) if tools == self._tools else -1
        if self.requests and same < len(self._messages):
            self.breaks += 1
        if self.requests and same >= 0:
            self.cacheable += len(tools) + sum(map(len, messages[:same]))
        self.first = self.first or len(body)
        self.total += len(tools) + sum(map(len, messages))
        self.requests += 1
        self._tools, self._messages = tools, messages

    @property
    def percent(self) -> float:
        """The cacheable share of all bytes."""
        return 100 * self.cacheable / self.total if self.total else 0.0


def _common(before: list[bytes], after: list[bytes]) -> int:
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(before), len(after)))
