"""One attempt of a model call with its reservation and charge, and what follows: a retry, the next model, or an end.

An attempt is reserved before it is sent and settled afterwards, in the state's counters and in the spending book,
which survives a crash. An attempt whose reservation does not fit is never sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mendgraph.nodes.call_model import ledger, model as effects
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.model import Model
from mendgraph.nodes.call_model.pending_call import FIRST_TRY, PendingCall
from mendgraph.nodes.call_model.prices import Price
from mendgraph.nodes.call_model.prompts.estimates import countable, estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.services import CallServices
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure, StopCause, StopReason

_PAID_FAILURES: Final = frozenset({ProviderErrorKind.TIMEOUT, ProviderErrorKind.INCOMPLETE_STREAM})
"""Failures after the endpoint had begun to work, so that their input is charged."""

BYTES_PER_OUTPUT_TOKEN: Final = 3  # for replies without reported usage


@dataclass(frozen=True)
class CallBudget:
    """The limits, models, timeouts and retries of a run's calls.

    `price_of` returns a model's price by name, `jitter` a number from 0 to 1.
    """

    limits: ledger.RunLimits = field(default_factory=ledger.RunLimits)
    models: tuple[ModelChoice, ...] = (ModelChoice(),)
    timeout_s: float = 300.0
    idle_timeout_s: float | None = None
    retries: int = 2
    thread: str = ""
    price_of: Callable[[str], Price | None] = lambda _: None
    jitter: Callable[[], float] = lambda: 0.5


@dataclass(frozen=True)
class Request:
    """A request. `purpose` is recorded in the spending book; only replies are streamed."""

    prompt: Prompt
    seed: int | None = None
    purpose: str = "reply"
    most_output: int | None = None


def stopped(reason: str) -> StopCause:
    """Return the stop cause of a run that somebody has stopped."""
    return StopCause(reason=StopReason.CANCELLED, message=f"The run was stopped {reason}.")


class PaidCall:
    """One attempt of a request. It ends with a `reply`, a `stop`, or a `pending` call; `spending` are the counters."""

    def __init__(
        self,
        request: Request,
        spending: ledger.Spending,
        budget: CallBudget,
        services: CallServices,
        before: PendingCall = FIRST_TRY,
    ) -> None:
        """`before` is the pending call before this attempt."""
        self.request = request
        self.spending = spending
        self._budget = budget
        self._services = services
        self._before = before
        self._attempt = before.attempt
        self._number = 0
        self.estimated_tokens = estimate_input(request.prompt.size, len(request.prompt.messages), spending.gauge)
        self._reservation: ledger.Reservation
        self.model: Model
        self.reply: ModelReply | None = None
        self.stop: StopCause | None = None
        self.pending: PendingCall | None = None

    @property
    def choice(self) -> ModelChoice:
        """The model to call."""
        return self._budget.models[self._before.model]

    @property
    def entry(self) -> ledger.Entry:
        """The reservation for the spending book."""
        reservation = self._reservation
        return ledger.Entry(
            thread=self._budget.thread,
            model=self.choice.model or "",
            purpose=self.request.purpose,
            input_tokens=reservation.input_tokens,
            output_tokens=reservation.max_output_tokens,
            cost_usd=reservation.cost_usd,
        )

    @property
    def _is_last(self) -> bool:
        return self._before.model + 1 == len(self._budget.models)

    @property
    def _price(self) -> Price | None:
        return self._budget.price_of(self.choice.model or "")

    @property
    def _seconds_left(self) -> float | None:
        limit = self._budget.limits.max_seconds
        if limit is None:
            return None
        return limit - self.spending.seconds

    def fits(self) -> bool:
        """Return whether the attempt fits into the budget; otherwise `stop` is set."""
        limits = self._budget.limits
        most = self.request.most_output
        reservation = ledger.reserve(self.spending, limits, self.estimated_tokens, self._price, most_output=most)

        if isinstance(reservation, StopCause):
            self.stop = reservation
        else:
            self._reservation = reservation

        return self.stop is None

    def connect(self, model: Model | ProviderFailure | None) -> bool:
        """Set the model and return True, or handle the failure to connect; None means that a stop came first."""
        if self._services.stop.reason:
            self.stop = stopped(self._services.stop.reason)
            return False

        if isinstance(model, ProviderFailure):
            self._next_model(model)
            return False

        assert model is not None  # noqa: S101 - it is None only after a stop
        self.model = model
        return True

    def reserve(self) -> bool:
        """Enter the reservation into the spending book, and return whether the attempt may be sent."""
        while not self._is_decided(self._services.reserve(self.entry, self.spending.booked)):
            pass

        return self.stop is None

    async def areserve(self) -> bool:
        """Do the same in the running event loop."""
        while not self._is_decided(await self._services.areserve(self.entry, self.spending.booked)):
            pass

        return self.stop is None

    def _is_decided(self, booked: int | effects.UnsettledUsage | StopCause) -> bool:
        """Apply the book's answer; return False to ask again after adding calls that a crashed process left."""
        if isinstance(booked, effects.UnsettledUsage):
            self.spending = ledger.charge_lost(self.spending, booked.used, booked.number)
            return not self.fits()

        if isinstance(booked, StopCause):
            self.stop = booked
        else:
            self._number = booked

        return True

    @property
    def call(self) -> effects.Call:
        """The call with its reserved limits."""
        budget = self._budget
        request = self.request
        reservation = self._reservation
        timeout_s = budget.timeout_s
        if reservation.max_seconds is not None:
            timeout_s = min(timeout_s, reservation.max_seconds)

        return effects.Call(
            prompt=request.prompt,
            max_output_tokens=reservation.max_output_tokens,
            timeout_s=timeout_s,
            idle_timeout_s=budget.idle_timeout_s,
            seed=request.seed,
            quiet=request.purpose != "reply",
        )

    def settle(self, sent: effects.CompletedCall | effects.StoppedCall) -> None:
        """Charge the attempt, and decide what follows."""
        self._attempt += 1
        self._charge(sent)

        if isinstance(sent, effects.StoppedCall):
            self.stop = stopped(sent.reason)
        elif isinstance(sent.result, ModelReply):
            self.reply = sent.result
        else:
            self._after_failure(sent.result)

    def _charge(self, sent: effects.CompletedCall | effects.StoppedCall) -> None:
        """Charge the usage to the counters and the book, and report it."""
        result = sent.result if isinstance(sent, effects.CompletedCall) else sent
        reply = result if isinstance(result, ModelReply) else None
        name = self.choice.name

        if isinstance(result, ModelReply):
            usage = self._usage_of_reply(result, sent.seconds)
            name = result.model or name
        else:
            usage = self._usage_of_failure(result, sent.seconds)

        if reply is not None and reply.input_tokens > 0 and not reply.without_tools:
            prompt = self.request.prompt
            self.spending = ledger.measured(self.spending, prompt.size, len(prompt.messages), reply.input_tokens)

        self.spending = ledger.charge(self.spending, usage)
        if self._number:
            self.spending = self.spending.model_copy(update={"booked": max(self._number, self.spending.booked)})

        self._services.settle(self._number, usage)
        report = {"purpose": self.request.purpose, "model": name, **usage.model_dump(exclude={"calls"})}
        self._services.on_event("model.usage", report)

        if reply is not None and reply.adapted:
            self._services.on_event("model.adapted", {"model": name, "without": list(reply.adapted)})

    def _usage_of_failure(self, result: ProviderFailure | effects.StoppedCall, seconds: float) -> ledger.Used:
        """Return the usage of an attempt without a reply: received output, and input if the endpoint had begun."""
        if isinstance(result, ProviderFailure):
            is_charged = result.kind in _PAID_FAILURES
        else:
            is_charged = result.sent

        usage = ledger.Used(
            calls=int(result.sent),
            input_tokens=self._reservation.input_tokens if is_charged else 0,
            output_tokens=_tokens(result.received_characters),
            seconds=seconds,
        )
        return ledger.priced(usage, self._price)

    def _usage_of_reply(self, reply: ModelReply, seconds: float) -> ledger.Used:
        """Return the usage of a reply: as reported if that is plausible, else as estimated."""
        input_tokens = self._reservation.input_tokens
        reported = countable(reply.input_tokens)
        if reported:
            input_tokens = self.request.prompt.believable_tokens(reported)

        characters = len(reply.text) + len(reply.refusal) + len(reply.reasoning)
        characters += sum(len(call.arguments) for call in reply.calls)
        usage = ledger.Used(
            calls=1,
            input_tokens=input_tokens,
            output_tokens=countable(reply.output_tokens) or _tokens(characters),
            cached_tokens=reply.cached_tokens,
            reasoning_tokens=reply.reasoning_tokens,
            cache_write_tokens=reply.cache_write_tokens,
            seconds=seconds,
        )
        return ledger.priced(usage, self._price or self._budget.price_of(reply.model))

    def _after_failure(self, failure: ProviderFailure) -> None:
        """Wait for the next attempt, continue with the next model, or stop."""
        seconds = self._wait_for(failure)
        if seconds is None:
            self.stop = self._out_of_time(failure)
            if self.stop is None:
                self._next_model(failure)

            return

        if self.fits():
            waited_s = self._before.waited_s + seconds
            wait = {"wait_s": seconds, "reason": failure.message, "waited_s": waited_s}
            self.pending = self._before.model_copy(update={"edge": "retry", "attempt": self._attempt, **wait})

    def _wait_for(self, failure: ProviderFailure) -> float | None:
        """Return the seconds to wait before the next attempt, or None for no further attempt.

        The endpoint's Retry-After is honoured up to `LONGEST_WAIT_S`. Otherwise the wait doubles from `FIRST_WAIT_S`,
        half of it fixed and half random. With a next model, an open circuit is not waited for.
        Source of the jitter: Brooker, "Exponential Backoff And Jitter", equal jitter.
        """
        wished = failure.retry_after_s
        seconds_left = self._seconds_left
        is_open = not failure.sent and not self._is_last

        if self.request.purpose == "reply":
            retries = self._budget.retries
        else:
            retries = 0

        if failure.kind not in effects.TRANSIENT or self._attempt > retries or is_open:
            return None
        if wished is not None and wished > LONGEST_WAIT_S:
            return None

        doubled = min(FIRST_WAIT_S * 2.0 ** min(self._attempt - 1, 16), LONGEST_WAIT_S)

        # In this order, NaN becomes 0.
        if wished is None:
            wait = doubled / 2 * (1.0 + self._budget.jitter())
        else:
            wait = max(0.0, wished)

        if self._before.waited_s + wait > MOST_WAITED_S or (seconds_left is not None and wait >= seconds_left):
            return None

        return wait

    def _next_model(self, failure: ProviderFailure) -> None:
        tries = self._attempt
        name = self.choice.name
        times = f" ({tries} tries)" if tries > 1 else ""
        failures = (*self._before.failures, f"{name}: {failure.kind.value.replace('_', ' ')}{times}")

        # A request that the endpoint refuses, or that is too long, is not sent to another model.
        if failure.kind not in effects.TRANSIENT | UNUSABLE or self._is_last:
            is_overflow = failure.kind is ProviderErrorKind.CONTEXT_OVERFLOW
            alone = f"provider error: {failure.kind.value}{times}"
            self.stop = StopCause(
                reason=StopReason.CONTEXT_OVERFLOW if is_overflow else StopReason.PROVIDER_FAILED,
                message=failure.message,
                diagnostics=("; ".join(failures) if len(failures) > 1 else alone,),
            )

            return

        model = self._before.model + 1
        now = {"edge": "next model", "model": model, "attempt": 0, "wait_s": 0.0, "reason": "", "failures": failures}
        self.pending = self._before.model_copy(update=now)
        following = self._budget.models[model].name
        self._services.on_event("model.fallback", {"model": name, "following": following, "reason": failure.message})

    def _out_of_time(self, failure: ProviderFailure) -> StopCause | None:
        """Return the stop cause if the turn's time limit ended the wait for a reply."""
        seconds_left = self._seconds_left
        if failure.kind is not ProviderErrorKind.TIMEOUT or seconds_left is None or seconds_left > 0:
            return None

        maximum = self._budget.limits.max_seconds or 0.0
        return ledger.passed_limit(StopReason.WALL_CLOCK, "max_seconds", self.spending.seconds, maximum)


UNUSABLE: Final = frozenset({ProviderErrorKind.AUTHENTICATION, ProviderErrorKind.MODEL_UNAVAILABLE})
"""Permanent failures of this model or its key, not of the request: another model may answer."""

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
MOST_WAITED_S: Final = 60.0  # for all waits of one call


def _tokens(characters: int) -> int:
    return -(-characters // BYTES_PER_OUTPUT_TOKEN)
