"""What LangChain's callbacks hear of a reply: the events as we understand them, freed of secrets.

Each event is built anew of what the reply takes from it. So nothing is heard that was not looked through, and nothing
that LangChain reads otherwise can end a run only because somebody listens.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from typing import Any

from nodes.call_model.model import Stream
from nodes.call_model.reply_events import said_and_thought
from nodes.records import JsonMap

Scrub = Callable[[], Stream]


def told(together: Generator[list[JsonMap]], scrub: Scrub | None) -> Generator[list[JsonMap]]:
    """The events as callbacks may see them; the rest of what was held back comes last, also where a reply breaks off.

    Raises:
        Exception: whatever the events raise.
    """
    telling = _Telling(scrub or _Plain)
    with closing(together) as coming:
        try:
            for events in coming:
                yield [telling.event(event) for event in events]
        except Exception:
            yield telling.rest()
            raise
    yield telling.rest()


async def atold(together: AsyncGenerator[list[JsonMap]], scrub: Scrub | None) -> AsyncGenerator[list[JsonMap]]:
    """Do the same in an event loop."""
    telling = _Telling(scrub or _Plain)
    async with aclosing(together) as coming:
        try:
            async for events in coming:
                yield [telling.event(event) for event in events]
        except Exception:
            yield telling.rest()
            raise
    yield telling.rest()


class _Plain:
    """The stream of a text that nothing is taken from."""

    def feed(self, piece: str) -> str:
        return piece

    def close(self) -> str:
        return ""


class _Telling:
    """One reply: each of its texts, and the arguments of each of its calls, is a stream of its own."""

    def __init__(self, scrub: Scrub) -> None:
        self._scrub = scrub
        self._texts: dict[str, Stream] = {}
        self._arguments: dict[int, Stream] = {}

    def event(self, event: JsonMap) -> JsonMap:
        names = ("model", "system_fingerprint", "service_tier")
        heard: JsonMap = {name: self._whole(event.get(name)) for name in names}
        heard |= {"usage": event.get("usage"), "choices": []}
        if choices := event.get("choices"):
            delta = choices[0].get("delta") or {}
            reason = self._whole(choices[0].get("finish_reason"))
            heard["choices"] = [{"index": 0, "delta": self._delta(delta), "finish_reason": reason}]
        return heard

    def rest(self) -> list[JsonMap]:
        """One last event with all that was held back; none where nothing was."""
        delta: JsonMap = {name: text for name, stream in self._texts.items() if (text := stream.close())}
        calls = [
            {"index": index, "function": {"arguments": text}}
            for index, stream in self._arguments.items()
            if (text := stream.close())
        ]
        if calls:
            delta["tool_calls"] = calls
        return [{"choices": [{"index": 0, "delta": delta}]}] if delta else []

    def _delta(self, delta: JsonMap) -> JsonMap:
        said, thought = said_and_thought(delta)
        texts = {"content": said, "reasoning_content": thought, "refusal": str(delta.get("refusal") or "")}
        heard: JsonMap = {name: self._fed(name, text) for name, text in texts.items()}
        if calls := delta.get("tool_calls"):
            heard["tool_calls"] = [self._call_part(part) for part in calls]
        return heard

    def _call_part(self, part: JsonMap) -> JsonMap:
        given, function = part.get("index"), part.get("function", {})
        index = given if isinstance(given, int) else 0
        stream = self._arguments.setdefault(index, self._scrub())
        function = {
            "name": self._whole(function.get("name")),
            "arguments": stream.feed(function.get("arguments") or ""),
        }
        return {"index": index, "id": self._whole(part.get("id")), "function": function}

    def _fed(self, name: str, text: str) -> str:
        return self._texts.setdefault(name, self._scrub()).feed(text) if text else ""

    def _whole(self, value: Any) -> str | None:
        """A text that comes in one piece."""
        if not isinstance(value, str):
            return None
        stream = self._scrub()
        return stream.feed(value) + stream.close()
