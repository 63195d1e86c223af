"""One request to a model, with its tries and its fallbacks, as a script of effects; each try is paid.

It is reserved before it is sent and settled after it, whatever came of it: in the state's own counters, and in the
spending book, which a kill cannot make forget. A try whose reservation does not fit is never sent.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from mendgraph.nodes.call_model import ledger, model as effects
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.prompts.estimates import countable, estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure, StopCause, StopReason

_PAID_FAILURES: Final = frozenset({ProviderErrorKind.TIMEOUT, ProviderErrorKind.INCOMPLETE_STREAM})
"""Failures after the endpoint had begun to work: their input is charged."""

BYTES_PER_OUTPUT_TOKEN: Final = 3  # what a reply without usage is charged with


@dataclass(frozen=True)
class CallBudget:
    """How requests of a run are made and paid: its limits, its models in order, its patience with them.

    `price_of` gives a model's price by its name, `jitter` a number from 0 to 1.
    """

    limits: ledger.RunLimits = field(default_factory=ledger.RunLimits)
    models: tuple[ModelChoice, ...] = (ModelChoice(),)
    timeout_s: float = 300.0
    idle_timeout_s: float | None = None
    retries: int = 2
    thread: str = ""
    price_of: Callable[[str], ledger.Price | None] = lambda _: None
    jitter: Callable[[], float] = lambda: 0.5


@dataclass(frozen=True)
class Request:
    """What is asked. `purpose` is the spending book's word for it; only replies are shown while they come."""

    prompt: Prompt
    seed: int | None = None
    purpose: str = "reply"
    most_output: int | None = None


@dataclass(frozen=True)
class Paid:
    """What came of a request: the reply, or why there is none; and the counters after all of its tries.

    `overflow` is what the endpoint said of a prompt that is longer than its window; `room` is the most that the reply
    could have, in tokens.
    """

    spending: ledger.Spending
    reply: ModelReply | None = None
    stop: StopCause | None = None
    overflow: str = ""
    room: int = 0


def paid_call(
    request: Request, spending: ledger.Spending, budget: CallBudget
) -> Generator[effects.Effect, effects.Answer, Paid]:
    """Yield the effects of one request until it has a reply or an end."""
    return (yield from _PaidCall(request, spending, budget).made())


def stopped(stop: effects.Stopped) -> StopCause:
    """Why a run ends that somebody has stopped."""
    return StopCause(reason=StopReason.CANCELLED, message=f"The run was stopped {stop.reason}.")


class _PaidCall:
    """One request under way: the counters so far, which model it is at, and which try of that."""

    def __init__(self, request: Request, spending: ledger.Spending, budget: CallBudget) -> None:
        self.request, self.spending, self.budget = request, spending, budget
        self.estimated = estimate_input(request.prompt.size, len(request.prompt.messages), spending.gauge)
        self.index, self.attempt, self.waited_s = 0, 0, 0.0
        self.failed: list[str] = []

    @property
    def model(self) -> ModelChoice:
        return self.budget.models[self.index]

    @property
    def is_last(self) -> bool:
        return self.index + 1 == len(self.budget.models)

    @property
    def price(self) -> ledger.Price | None:
        return self.budget.price_of(self.model.model or "")

    @property
    def seconds_left(self) -> float | None:
        limit = self.budget.limits.max_seconds
        return None if limit is None else limit - self.spending.seconds

    def made(self) -> Generator[effects.Effect, effects.Answer, Paid]:
        connected: ModelChoice | None = None
        while True:
            leave = self._reserved()
            if isinstance(leave, StopCause):
                return self._ended(leave)
            model = self.model
            if connected is not model:
                found = yield model
                if isinstance(found, effects.Stopped):
                    return self._ended(stopped(found))
                if isinstance(found, ProviderFailure):
                    if (end := (yield from self._next_model(found))) is not None:
                        return self._ended(end)
                    continue
                connected = model
            if (paid := (yield from self._one_try(leave))) is not None:
                return paid

    def _ended(self, stop: StopCause) -> Paid:
        return Paid(self.spending, stop=stop)

    def _reserved(self) -> ledger.Reservation | StopCause:
        most = self.request.most_output
        return ledger.reserve(self.spending, self.budget.limits, self.estimated, self.price, most_output=most)

    def _one_try(self, leave: ledger.Reservation) -> Generator[effects.Effect, effects.Answer, Paid | None]:
        """Send the request once; None where there is to be another try, for which it has been waited then."""
        entry = ledger.Entry(
            thread=self.budget.thread,
            model=self.model.model or "",
            purpose=self.request.purpose,
            input_tokens=leave.input_tokens,
            output_tokens=leave.max_output_tokens,
            cost_usd=leave.cost_usd,
        )
        booked = yield effects.Reserve(entry=entry, after=self.spending.booked)
        if isinstance(booked, effects.Stopped):
            return self._ended(stopped(booked))
        if isinstance(booked, StopCause):
            return self._ended(booked)
        if isinstance(booked, effects.Lost):  # with a killed process, or after the checkpoint that is gone on from
            self.spending = ledger.charge_lost(self.spending, booked.used, booked.number)
            return None
        self.attempt += 1
        budget, request = self.budget, self.request
        call = effects.Call(
            prompt=request.prompt,
            max_output_tokens=leave.max_output_tokens,
            timeout_s=budget.timeout_s if leave.max_seconds is None else min(budget.timeout_s, leave.max_seconds),
            idle_timeout_s=budget.idle_timeout_s,
            seed=request.seed,
            quiet=request.purpose != "reply",
        )
        sent = yield call
        assert isinstance(sent, effects.Sent | effects.Stopped)  # noqa: S101 - the driver's side of the protocol
        yield from self._settled(sent, leave, booked if isinstance(booked, int) else 0)
        if isinstance(sent, effects.Stopped):
            return self._ended(stopped(sent))
        if isinstance(sent.result, ModelReply):
            return Paid(self.spending, sent.result, room=call.max_output_tokens)
        return (yield from self._after_failure(sent.result))

    def _settled(
        self, sent: effects.Sent | effects.Stopped, leave: ledger.Reservation, number: int
    ) -> Generator[effects.Effect, effects.Answer, None]:
        reply = sent.result if isinstance(sent, effects.Sent) and isinstance(sent.result, ModelReply) else None
        used = self._used(sent, leave)
        if reply is not None and reply.input_tokens > 0 and not reply.without_tools:
            prompt = self.request.prompt
            self.spending = ledger.measured(self.spending, prompt.size, len(prompt.messages), reply.input_tokens)
        self.spending = ledger.charge(self.spending, used)
        if number:
            self.spending = self.spending.model_copy(update={"booked": max(number, self.spending.booked)})
        yield effects.Settle(number=number, used=used)
        name = (reply.model if reply else "") or self.model.name
        report = {"purpose": self.request.purpose, "model": name, **used.model_dump(exclude={"calls"})}
        yield effects.Emit(name="model.usage", payload=report)
        if reply is not None and reply.adapted:
            yield effects.Emit(name="model.adapted", payload={"model": name, "without": list(reply.adapted)})

    def _used(self, sent: effects.Sent | effects.Stopped, leave: ledger.Reservation) -> ledger.Used:
        result = sent if isinstance(sent, effects.Stopped) else sent.result
        if not isinstance(result, ModelReply):
            is_charged = result.kind in _PAID_FAILURES if isinstance(result, ProviderFailure) else result.sent
            counted = ledger.Used(
                calls=int(result.sent),
                input_tokens=leave.input_tokens if is_charged else 0,
                output_tokens=_tokens(result.received_characters),
                seconds=sent.seconds,
            )
            return ledger.priced(counted, self.price)
        reported = countable(result.input_tokens)
        characters = len(result.text) + len(result.refusal) + len(result.reasoning)
        characters += sum(len(call.arguments) for call in result.calls)
        counted = ledger.Used(
            calls=1,
            input_tokens=self.request.prompt.believable_tokens(reported) if reported else leave.input_tokens,
            output_tokens=countable(result.output_tokens) or _tokens(characters),
            cached_tokens=result.cached_tokens,
            reasoning_tokens=result.reasoning_tokens,
            cache_write_tokens=result.cache_write_tokens,
            seconds=sent.seconds,
        )
        return ledger.priced(counted, self.price or self.budget.price_of(result.model))

    def _after_failure(self, failure: ProviderFailure) -> Generator[effects.Effect, effects.Answer, Paid | None]:
        """Wait for the next try of this model, go on to the next model, or end."""
        wait = self._wait_for(failure)
        if wait is None:
            end = self._out_of_time(failure) or (yield from self._next_model(failure))
            overflow = failure.message if failure.kind is ProviderErrorKind.CONTEXT_OVERFLOW else ""
            return None if end is None else Paid(self.spending, stop=end, overflow=overflow)
        again = self._reserved()
        if isinstance(again, StopCause):
            return self._ended(again)
        ended = yield effects.Wait(seconds=wait, reason=failure.message)
        if isinstance(ended, effects.Stopped):
            return self._ended(stopped(ended))
        self.waited_s += wait
        self.spending = self.spending.model_copy(update={"seconds": self.spending.seconds + wait})
        return None

    def _wait_for(self, failure: ProviderFailure) -> float | None:
        """Seconds to wait before the next try of this model, or None when there should be none.

        The endpoint's own wish (Retry-After) is honoured up to `LONGEST_WAIT_S`; a longer one is not waited for.
        Otherwise the wait doubles from `FIRST_WAIT_S`, half of it fixed and half of it random. An open circuit is not
        waited for where there is a next model.
        Source of the jitter: Brooker, "Exponential Backoff And Jitter", equal jitter.
        """
        wished, left = failure.retry_after_s, self.seconds_left
        is_open = not failure.sent and not self.is_last
        if failure.kind not in effects.TRANSIENT or self.attempt > self.budget.retries or is_open:
            return None
        if wished is not None and wished > LONGEST_WAIT_S:
            return None
        doubled = min(FIRST_WAIT_S * 2.0 ** min(self.attempt - 1, 16), LONGEST_WAIT_S)
        # In this order, NaN becomes 0.
        wait = doubled / 2 * (1.0 + self.budget.jitter()) if wished is None else max(0.0, wished)
        if self.waited_s + wait > MOST_WAITED_S or (left is not None and wait >= left):
            return None
        return wait

    def _next_model(self, failure: ProviderFailure) -> Generator[effects.Effect, effects.Answer, StopCause | None]:
        tries, name = self.attempt, self.model.name
        times = f" ({tries} tries)" if tries > 1 else ""
        self.failed.append(f"{name}: {failure.kind.value.replace('_', ' ')}{times}")
        # What the endpoint calls wrong, and a prompt that is too long, go to no other model.
        if failure.kind not in effects.TRANSIENT | UNUSABLE or self.is_last:
            overflow = failure.kind is ProviderErrorKind.CONTEXT_OVERFLOW
            alone = f"provider error: {failure.kind.value}{times}"
            return StopCause(
                reason=StopReason.CONTEXT_OVERFLOW if overflow else StopReason.PROVIDER_FAILED,
                message=failure.message,
                diagnostics=("; ".join(self.failed) if len(self.failed) > 1 else alone,),
            )
        self.index, self.attempt = self.index + 1, 0
        payload = {"model": name, "following": self.model.name, "reason": failure.message}
        yield effects.Emit(name="model.fallback", payload=payload)
        return None

    def _out_of_time(self, failure: ProviderFailure) -> StopCause | None:
        """The turn's own limit, where that and not the endpoint's patience ended the wait for a reply."""
        left = self.seconds_left
        if failure.kind is not ProviderErrorKind.TIMEOUT or left is None or left > 0:
            return None
        seconds, limit = round(self.spending.seconds, 6), self.budget.limits.max_seconds
        return StopCause(reason=StopReason.WALL_CLOCK, message=f"Limit 'max_seconds' exceeded: {seconds}/{limit}")


UNUSABLE: Final = frozenset({ProviderErrorKind.AUTHENTICATION, ProviderErrorKind.MODEL_UNAVAILABLE})
"""Permanent failures that are about this model or its key, not about what was sent: another model may well answer."""

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
MOST_WAITED_S: Final = 60.0  # all waits of one call, over all of its tries and models


def _tokens(characters: int) -> int:
    return -(-characters // BYTES_PER_OUTPUT_TOKEN)
