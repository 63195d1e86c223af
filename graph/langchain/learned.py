"""What a model at an endpoint does not take: learned from its first refusal, and remembered for the process.

Nobody says beforehand what every endpoint refuses: a temperature, stop words, the name of the token limit, native
tools, streaming. A refusal that names what was sent costs nothing, so the call is made again at once without it.
"""

import re
from collections.abc import Callable, Collection
from threading import Lock
from typing import Final

from mendgraph.graph.langchain.failures import NOT_RECORDED, Refusal

TOOLS, STREAM, LIMIT = "tools", "stream", "max_tokens"
"""Names of what a request carries that is more than a parameter: see `Learned`."""

OLD_LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
"""What OpenAI-compatible endpoints call the most tokens of a reply; each takes at least one of the two."""

LIMIT_NAMES: Final = (OLD_LIMIT, NEW_LIMIT, "max_output_tokens", "maxOutputTokens")
"""What any provider's refusal may call it."""

LEAST_LIMIT: Final = 16
MOST_ENTRIES: Final = 1_000
"""Models at endpoints that a process remembers."""

_NO_TOOLS: Final = re.compile(
    r"does(?: not|n't) support (?:native )?(?:tools?|function)|support tool use|tools? (?:use |calling )?(?:is|are) not"
    r" (?:supported|available)|--enable-auto-tool-choice|tools param requires"
    r"|function calling is not (?:enabled|supported)",
    re.IGNORECASE,
)
_NO_STREAM: Final = re.compile(
    r"must be verified to stream|does(?: not|n't) support stream|stream(?:ing)? is not (?:supported|available)",
    re.IGNORECASE,
)
_REFUSED: Final = re.compile(
    r"unsupported|not supported|not support|unknown|unrecognized|unexpected|extra (?:inputs|fields)|not permitted"
    r"|deprecated|not allowed|invalid parameter|use '?max_",
    re.IGNORECASE,
)
"""Words that say of a limit's name, and not of its value, that it is refused."""

_NUMBER: Final = re.compile(r"\d[\d,_]{0,11}")


class Learned:
    """What one model at one endpoint has shown. Safe in threads: what was learned is never taken back."""

    def __init__(self, limit_name: str = NEW_LIMIT, *, tools: bool = True, streams: bool = True) -> None:
        """Nothing is known yet: everything is tried. `limit_name` is what an OpenAI-compatible endpoint likely takes.

        `tools` is False for a chat model without native tools, `streams` for one that cannot be streamed.
        """
        self.dropped: frozenset[str] = frozenset()
        self.tools, self.streams = tools, streams
        self.limit_name, self._limit_names = limit_name, {limit_name}
        self.most_output: int | None = None

    def limited(self, tokens: int) -> int:
        """The most tokens of a reply that may be asked for, of those that are wanted."""
        return tokens if self.most_output is None else min(tokens, self.most_output)

    def learn(self, refusal: Refusal, sent: Collection[str], limit: int) -> str:
        """What to leave out of the next request, "" where this refusal is about something else.

        `sent` are the names of what the request carried that may be left out, `limit` the most tokens that it allowed.
        """
        if NOT_RECORDED in refusal.codes:
            return ""
        name = self._named(refusal, sent, limit)
        if name == TOOLS:
            self.tools = False
        elif name == STREAM:
            self.streams = False
        elif name and name != LIMIT:
            self.dropped |= {name}
        return name

    def _named(self, refusal: Refusal, sent: Collection[str], limit: int) -> str:
        said = refusal.message
        if TOOLS in sent and (refusal.parameter == TOOLS or _NO_TOOLS.search(said)) and refusal.status is not None:
            return TOOLS
        if not refusal.is_of_the_request:
            return ""
        if STREAM in sent and (refusal.parameter == STREAM or _NO_STREAM.search(said)):
            return STREAM
        parameter = refusal.parameter.partition(".")[0]
        if named := next((name for name in sent if name == parameter != LIMIT), ""):
            return named
        if any(name == parameter or _mentions(said, name) for name in LIMIT_NAMES):
            return self._of_the_limit(said, limit)
        return next((name for name in sent if name not in {TOOLS, STREAM} and _mentions(said, name)), "")

    def _of_the_limit(self, said: str, limit: int) -> str:
        """Its name is refused, so the other one is tried; or its value, so the largest number below it is taken."""
        if _REFUSED.search(said):
            other = NEW_LIMIT if self.limit_name == OLD_LIMIT else OLD_LIMIT
            if other in self._limit_names:
                return ""
            self._limit_names.add(other)
            self.limit_name = other
            return LIMIT
        numbers = (int(re.sub(r"\D", "", found)) for found in _NUMBER.findall(said))
        allowed = max((number for number in numbers if LEAST_LIMIT <= number < self.limited(limit)), default=None)
        if allowed is None:
            return ""
        self.most_output = allowed
        return LIMIT


def _mentions(text: str, name: str) -> bool:
    """Whether a text speaks of the parameter of this name; a common word counts where it is marked as a name."""
    word = re.escape(name)
    if "_" in name or name == "temperature":
        return re.search(rf"(?<![\w.]){word}(?!\w)", text) is not None
    return re.search(rf"['\"`]{word}['\"`]|:\s*{word}\b|^{word}:", text) is not None


class Lessons:
    """What a process has learned, by provider, endpoint and model."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._known: dict[tuple[str, str, str], Learned] = {}
        self._lock = Lock()

    def of(self, provider: str, endpoint: str, model: str, make: Callable[[], Learned] = Learned) -> Learned:
        """What is known of this model there; `make` is asked where that is nothing."""
        with self._lock:
            if len(self._known) >= MOST_ENTRIES:
                self._known.clear()
            return self._known.setdefault((provider, endpoint, model), make())

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self._known.clear()


LESSONS: Final = Lessons()
"""Those of this process."""
