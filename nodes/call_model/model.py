"""The interface of a model: one call in, one reply or failure out."""

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
    """Streamed text, from which secrets are removed even across pieces."""

    def feed(self, piece: str) -> str:
        """Add a piece, and return the text that may be shown."""

    def close(self) -> str:
        """Return the rest."""


class CallDropped(BaseException):
    """Raised by a sync call that a stop request abandons; not an Exception, so that no handler catches it."""


class Call(Record):
    """A call with its limits. `timeout_s` bounds the whole reply.

    `idle_timeout_s` bounds the time between two parts of the reply, after the first one. A `quiet` call, such as for a
    summary, is not streamed. `scrub` returns a stream that removes secrets from text for callbacks. `stop` ends a sync
    call early.
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
class UnsettledUsage:
    """Usage of calls that a crashed process left, and the number of their last entry."""

    used: Used
    number: int


class CompletedCall(Record):
    """The result of a call, and the seconds it took."""

    result: ModelReply | ProviderFailure
    seconds: float


class StoppedCall(Record):
    """A call that a stop request ended or prevented; `reason` says who requested it.

    If it was `sent`, it took `seconds`, and `received_characters` of its reply were received.
    """

    reason: str
    sent: bool = False
    seconds: float = 0.0
    received_characters: int = 0


Update = dict[str, Any]
"""A partial update of the state."""


class Model(Protocol):
    """A model that answers calls; `mendgraph.graph.langchain` adapts LangChain's chat models."""

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one attempt with streamed text, and return the reply or the failure.

        Raises:
            CallDropped: the call's stop request came before its reply.
        """

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Do the same in the running event loop."""


class Breaker(Protocol):
    """The circuit breaker of one model. Each admitted call reports its end once."""

    def admit(self) -> float:
        """Return 0.0 if a call is admitted, else the seconds until one may be tried."""

    def succeeded(self) -> None:
        """Report a reply."""

    def failed(self) -> None:
        """Report an outage."""

    def abandoned(self) -> None:
        """Report a call that was cut off, or failed for another reason."""


TRANSIENT = frozenset(
    {
        ProviderErrorKind.RATE_LIMITED,
        ProviderErrorKind.TIMEOUT,
        ProviderErrorKind.CONNECTION,
        ProviderErrorKind.SERVER_ERROR,
        ProviderErrorKind.INCOMPLETE_STREAM,
    }
)
"""Failures that may be temporary; after any other the same request would fail again."""

_OUTAGES = TRANSIENT - {ProviderErrorKind.RATE_LIMITED}
"""A rate limit is not an outage."""


@dataclass(frozen=True)
class GuardedModel:
    """A model behind a circuit breaker, whose text has its secrets removed.

    `scrub` removes secrets from a text; `stream` begins a streamed text.
    """

    model: Model
    breaker: Breaker
    scrub: Callable[[str], str]
    stream: Callable[[], Stream]

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one attempt, if the circuit breaker admits it."""
        if refusal := self._refusal():
            return refusal

        with self._guarded(on_text) as (on_piece, settle):
            scrubbed = call.model_copy(update={"scrub": self.stream})  # for callbacks
            return settle(self.model.complete(scrubbed, on_piece))

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Do the same in the running event loop."""
        if refusal := self._refusal():
            return refusal

        with self._guarded(on_text) as (on_piece, settle):
            scrubbed = call.model_copy(update={"scrub": self.stream})
            return settle(await self.model.acomplete(scrubbed, on_piece))

    def _refusal(self) -> ProviderFailure | None:
        wait = self.breaker.admit()
        if not wait:
            return None

        message = f"The endpoint failed too often in a row, so it is not called for {ceil(wait)} s."
        kind = ProviderErrorKind.CONNECTION  # it is retried as such
        return ProviderFailure(kind=kind, message=message, retry_after_s=wait, sent=False)

    @contextmanager
    def _guarded(
        self, on_text: Callable[[str], None]
    ) -> Iterator[tuple[Callable[[str], None], Callable[[ModelReply | ProviderFailure], ModelReply | ProviderFailure]]]:
        """Yield the callback for text, and a function that reports the result and returns it without secrets."""
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
            _pass_text(on_text, stream.close())  # also if the reply is cut off

    def _scrubbed(self, result: ModelReply | ProviderFailure) -> ModelReply | ProviderFailure:
        if isinstance(result, ProviderFailure):
            return result.model_copy(update={"message": self._text(result.message)})

        calls = tuple(self._scrubbed_call(call, number) for number, call in enumerate(result.calls, start=1))
        words = {name: self._text(getattr(result, name)) for name in ("text", "refusal", "reasoning", "model")}
        provider = without_secrets(result.provider, self._text)

        return result.model_copy(update={**words, "calls": calls, "provider": provider})

    def _scrubbed_call(self, call: RawCall, number: int) -> RawCall:
        """Replace a name or id with a secret entirely, as endpoints accept only letters and digits in them."""
        call_id = storable(call.call_id)
        tool = storable(call.tool)

        return RawCall(
            call_id=call_id if self._text(call_id) == call_id else f"redacted_{number}",
            tool=tool if self._text(tool) == tool else "redacted",
            arguments=self.scrub(call.arguments),  # other characters make the call malformed
        )

    def _text(self, text: str) -> str:
        return self.scrub(storable(text))


def _pass_text(on_text: Callable[[str], None], text: str) -> None:
    if text:
        on_text(text)
