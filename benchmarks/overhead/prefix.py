"""The share of a run's requests that an endpoint's prompt cache could reuse. Pure."""

from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass
class PrefixRecord:
    """The byte counts of the tools and messages of one run: `total`, and `cacheable` by an endpoint.

    The prompt of a request has its tools first and then its messages. Cacheable are the bytes up to the first message
    that differs from the previous request; nothing if the tools differ.
    """

    requests: int = 0
    total: int = 0
    cacheable: int = 0
    breaks: int = 0
    first: int = 0
    _tools: bytes = b""
    _messages: list[bytes] = field(default_factory=list)

    def add(self, body: bytes) -> None:
        """Add the next request of the run."""
        request: dict[str, Any] = orjson.loads(body)
        tools = orjson.dumps(request.get("tools", []))
        messages = [orjson.dumps(message) for message in request["messages"]]

        if self.requests == 0:
            self.first = len(body)
        elif tools != self._tools:
            self.breaks += 1
        else:
            prefix = _common_prefix(self._messages, messages)
            self.cacheable += len(tools) + sum(map(len, messages[:prefix]))
            self.breaks += prefix < len(self._messages)

        self.total += len(tools) + sum(map(len, messages))
        self.requests += 1
        self._tools = tools
        self._messages = messages

    @property
    def percent(self) -> float:
        """The cacheable share of all bytes."""
        if not self.total:
            return 0.0
        return 100 * self.cacheable / self.total


def _common_prefix(before: list[bytes], after: list[bytes]) -> int:
    """Return the number of equal messages at the beginning of two requests."""
    count = 0
    for previous, current in zip(before, after, strict=False):
        if previous != current:
            break
        count += 1
    return count
