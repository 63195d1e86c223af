"""The seam between the decisions about a model call and whatever makes it: one call in, one reply or failure out.

The script of a model call decides, and yields what it asks for: an `Effect`. Whoever performs it sends an `Answer`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Entry, Used
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import without_secrets
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure, RawCall, Record, StopCause


class Stream(Protocol):
    """Text that comes in pieces, freed of secrets that span them."""

    def feed(self, piece: str) -> str:
        """What may be shown now."""

    def close(self) -> str:
        """The rest."""


class Call(Record):
    """One call to be sent: its prompt and what it may use. Answered by `Sent`. `timeout_s` bounds the whole reply.

    `idle_timeout_s` bounds the silence between two parts of it, from the first on: until then a small model on a small
    machine reads its prompt without a word, and only the whole counts. The reply to a `quiet` call is none of the
    conversation's. `scrub` begins a text that others than the machine hear; None where nothing is to be taken out.
    """

    prompt: Prompt
    max_output_tokens: int
    timeout_s: float
    idle_timeout_s: float | None = None
    seed: int | None = None
    quiet: bool = False
    scrub: Callable[[], Stream] | None = None


@dataclass(frozen=True)
class Lost:
    """What calls of the thread have cost that its counters do not hold, and the number of the last of them."""

    used: Used
    number: int


@dataclass(frozen=True)
class Reserve:
    """Enter a reservation into the spending book; the thread's counters hold its entries up to `after`.

    Answered by its number, 0 where nothing is booked; by `Lost`, where there are later ones, and nothing is entered; or
    by what forbids the call.
    """

    entry: Entry
    after: int = 0


@dataclass(frozen=True)
class Settle:
    """Enter what a reserved call has really used. Answered by None."""

    number: int
    used: Used


@dataclass(frozen=True)
class Wait:
    """Wait this long before the next try; `reason` is why the last one failed. Answered by None."""

    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Emit:
    """Emit an event to whoever follows the run. Answered by None."""

    name: str
    payload: JsonMap


class Sent(Record):
    """What came back of a `Call`, and the seconds it took."""

    result: ModelReply | ProviderFailure
    seconds: float


class Stopped(Record):
    """The answer to any effect that a stop has ended, or kept from beginning; `reason` says who asked for it.

    Where a call was `sent`, it took `seconds`, and `received_characters` of its reply had come.
    """

    reason: str
    sent: bool = False
    seconds: float = 0.0
    received_characters: int = 0


Effect = ModelChoice | Reserve | Settle | Call | Wait | Emit
"""What a script asks for. A model is to be connected: answered by None, or by the failure to find its endpoint."""

Answer = Lost | int | Sent | Stopped | StopCause | ProviderFailure | None
Update = dict[str, Any]
"""What a script comes to: the channels of the state that change."""


class Model(Protocol):
    """A model that answers calls. Users give LangChain's chat models; `mendgraph.graph.langchain` makes one of each."""

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try; text is passed on as it comes. Failures come back as values."""


class Breaker(Protocol):
    """A circuit breaker of one provider. Whoever is admitted reports once how it ended."""

    def admit(self) -> float:
        """0.0 where a call may go on, otherwise the seconds until one may be tried."""

    def succeeded(self) -> None:
        """The provider answered."""

    def failed(self) -> None:
        """It failed for a reason of its own."""

    def abandoned(self) -> None:
        """The call was cut off, or the fault was ours."""


TRANSIENT = frozenset(
    {
        ProviderErrorKind.RATE_LIMITED,
        ProviderErrorKind.TIMEOUT,
        ProviderErrorKind.CONNECTION,
        ProviderErrorKind.SERVER_ERROR,
        ProviderErrorKind.INCOMPLETE_STREAM,
    }
)
"""What may pass by itself. Anything else is permanent: the same request would fail in the same way."""

_OUTAGES = TRANSIENT - {ProviderErrorKind.RATE_LIMITED}
"""An endpoint that asks for patience is not down: it is asked again when it says so."""


@dataclass(frozen=True)
class GuardedModel:
    """Does what its model does, unless the circuit is open; then it says when to try again.

    `scrub` frees a text of secrets, `stream` begins one that comes in pieces.
    """

    model: Model
    breaker: Breaker
    scrub: Callable[[str], str]
    stream: Callable[[], Stream]

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try, if the circuit allows it."""
        if wait := self.breaker.admit():
            message = f"The endpoint failed too often in a row, so it is left alone for {ceil(wait)} s."
            kind = ProviderErrorKind.CONNECTION  # the retries and their limits do the rest
            return ProviderFailure(kind=kind, message=message, retry_after_s=wait, sent=False)
        stream, report = self.stream(), self.breaker.abandoned
        # The same on every other way out: LangChain's callbacks.
        heard = call.model_copy(update={"scrub": self.stream})
        try:
            result = await self.model.acomplete(heard, lambda piece: _pass_text(on_text, stream.feed(piece)))
            if isinstance(result, ModelReply):
                report = self.breaker.succeeded
            elif result.kind in _OUTAGES:
                report = self.breaker.failed
        finally:
            report()
            _pass_text(on_text, stream.close())  # also of a reply that is cut off
        return self._scrubbed(result)

    def _scrubbed(self, result: ModelReply | ProviderFailure) -> ModelReply | ProviderFailure:
        if isinstance(result, ProviderFailure):
            return result.model_copy(update={"message": self._text(result.message)})
        calls = tuple(self._scrubbed_call(call, number) for number, call in enumerate(result.calls, start=1))
        words = {name: self._text(getattr(result, name)) for name in ("text", "refusal", "reasoning", "model")}
        provider = without_secrets(result.provider, self._text)
        return result.model_copy(update={**words, "calls": calls, "provider": provider})

    def _scrubbed_call(self, call: RawCall, number: int) -> RawCall:
        """A name or an id that holds a secret is replaced whole: endpoints take only letters and digits in them."""
        call_id, tool = storable(call.call_id), storable(call.tool)
        return RawCall(
            call_id=call_id if self._text(call_id) == call_id else f"redacted_{number}",
            tool=tool if self._text(tool) == tool else "redacted",
            arguments=self.scrub(call.arguments),  # what is no text there is a malformed call
        )

    def _text(self, text: str) -> str:
        return self.scrub(storable(text))


def _pass_text(on_text: Callable[[str], None], text: str) -> None:
    if text:
        on_text(text)
