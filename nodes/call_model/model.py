"""The seam between the decisions about a model call and whatever makes it: one call in, one reply or failure out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

from pydantic import ConfigDict

from mendgraph.nodes.call_model.ledger import Used
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.provider_state import without_secrets
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure, RawCall, Record


class Stream(Protocol):
    """Text that comes in pieces, freed of secrets that span them."""

    def feed(self, piece: str) -> str:
        """What may be shown now."""

    def close(self) -> str:
        """The rest."""


class CallDropped(BaseException):
    """Raised by a sync call that is abandoned as somebody wants the run to stop. No handler of errors may catch it."""


class Call(Record):
    """One call to be sent: its prompt and what it may use. `timeout_s` bounds the whole reply.

    `idle_timeout_s` bounds the silence between two parts of it, from the first on: until then a small model on a small
    machine reads its prompt without a word, and only the whole counts. The reply to a `quiet` call is none of the
    conversation's. `scrub` begins a text that others than the machine hear; None where nothing is to be taken out. A
    sync call ends early where `stop` says so.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    prompt: Prompt
    max_output_tokens: int
    timeout_s: float
    idle_timeout_s: float | None = None
    seed: int | None = None
    quiet: bool = False
    scrub: Callable[[], Stream] | None = None
    stop: StopRequest | None = None


@dataclass(frozen=True)
class Lost:
    """What calls of the thread have cost that its counters do not hold, and the number of the last of them."""

    used: Used
    number: int


class Sent(Record):
    """What came back of a call, and the seconds it took."""

    result: ModelReply | ProviderFailure
    seconds: float


class Stopped(Record):
    """A call that a stop has ended, or kept from beginning; `reason` says who requested it.

    Where it was `sent`, it took `seconds`, and `received_characters` of its reply had come.
    """

    reason: str
    sent: bool = False
    seconds: float = 0.0
    received_characters: int = 0


Update = dict[str, Any]
"""The channels of the state that change."""


class Model(Protocol):
    """A model that answers calls. Users give LangChain's chat models; `mendgraph.graph.langchain` makes one of each."""

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try; text is passed on as it comes. Failures come back as values.

        Raises:
            CallDropped: the stop that the call names came before its reply.
        """

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try in the running event loop; whoever cancels it drops it."""


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

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try, if the circuit allows it."""
        if refusal := self._refusal():
            return refusal

        with self._guarded(on_text) as (on_piece, settle):
            heard = call.model_copy(update={"scrub": self.stream})  # the same on every other way out: callbacks
            return settle(self.model.complete(heard, on_piece))

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one try in the running event loop."""
        if refusal := self._refusal():
            return refusal

        with self._guarded(on_text) as (on_piece, settle):
            heard = call.model_copy(update={"scrub": self.stream})
            return settle(await self.model.acomplete(heard, on_piece))

    def _refusal(self) -> ProviderFailure | None:
        wait = self.breaker.admit()
        if not wait:
            return None

        message = f"The endpoint failed too often in a row, so it is left alone for {ceil(wait)} s."
        kind = ProviderErrorKind.CONNECTION  # the retries and their limits do the rest
        return ProviderFailure(kind=kind, message=message, retry_after_s=wait, sent=False)

    @contextmanager
    def _guarded(
        self, on_text: Callable[[str], None]
    ) -> Iterator[tuple[Callable[[str], None], Callable[[ModelReply | ProviderFailure], ModelReply | ProviderFailure]]]:
        """For one try: what takes its text, and what takes its result and gives it without secrets."""
        stream = self.stream()
        report = self.breaker.abandoned

        def settle(result: ModelReply | ProviderFailure) -> ModelReply | ProviderFailure:
            nonlocal report

            if isinstance(result, ModelReply):
                report = self.breaker.succeeded
            elif result.kind in _OUTAGES:
                report = self.breaker.failed

            return self._scrubbed(result)

        try:
            yield lambda piece: _pass_text(on_text, stream.feed(piece)), settle
        finally:
            report()
            _pass_text(on_text, stream.close())  # also of a reply that is cut off

    def _scrubbed(self, result: ModelReply | ProviderFailure) -> ModelReply | ProviderFailure:
        if isinstance(result, ProviderFailure):
            return result.model_copy(update={"message": self._text(result.message)})

        calls = tuple(self._scrubbed_call(call, number) for number, call in enumerate(result.calls, start=1))
        words = {name: self._text(getattr(result, name)) for name in ("text", "refusal", "reasoning", "model")}
        provider = without_secrets(result.provider, self._text)

        return result.model_copy(update={**words, "calls": calls, "provider": provider})

    def _scrubbed_call(self, call: RawCall, number: int) -> RawCall:
        """A name or an id that holds a secret is replaced whole: endpoints take only letters and digits in them."""
        call_id = storable(call.call_id)
        tool = storable(call.tool)

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
