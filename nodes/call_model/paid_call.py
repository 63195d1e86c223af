"""One request to a model, with its tries and its fallbacks; each try is paid.

It is reserved before it is sent and settled after it, whatever came of it: in the state's own counters, and in the
spending book, which a kill cannot make forget. A try whose reservation does not fit is never sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from mendgraph.nodes.call_model import ledger, model as effects
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.model import Model
from mendgraph.nodes.call_model.prompts.estimates import countable, estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.services import CallServices
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


def send_paid(request: Request, spending: ledger.Spending, budget: CallBudget, services: CallServices) -> Paid:
    """Send a request until it has a reply or an end, with its tries and its fallbacks."""
    call = PaidCall(request, spending, budget, services)
    while call.fits():
        if not call.connect(call.model or services.connect(call.choice)):
            continue
        if not call.enter(services.reserve(call.entry, call.spending.booked)):
            continue
        wait = call.settle(services.send(call.model, call.next_try()))
        if wait is not None:
            services.wait(wait.seconds, wait.reason)
            call.add_wait(wait.seconds)
    return call.paid


async def asend_paid(request: Request, spending: ledger.Spending, budget: CallBudget, services: CallServices) -> Paid:
    """Do the same in the running event loop."""
    call = PaidCall(request, spending, budget, services)
    while call.fits():
        if not call.connect(call.model or await services.aconnect(call.choice)):
            continue
        if not call.enter(await services.areserve(call.entry, call.spending.booked)):
            continue
        wait = call.settle(await services.asend(call.model, call.next_try()))
        if wait is not None:
            await services.await_(wait.seconds, wait.reason)
            call.add_wait(wait.seconds)
    return call.paid


def stopped(reason: str) -> StopCause:
    """Why a run ends that somebody has stopped."""
    return StopCause(reason=StopReason.CANCELLED, message=f"The run was stopped {reason}.")


class Wait(NamedTuple):
    """How long to wait before the next try of a model, and why its last one failed."""

    seconds: float
    reason: str


class PaidCall:
    """One request under way: the counters so far, which model it is at, and which try of that.

    `paid` is what came of it, once `fits` says that no try follows.
    """

    def __init__(self, request: Request, spending: ledger.Spending, budget: CallBudget, services: CallServices) -> None:
        self.request, self.spending, self.budget, self._services = request, spending, budget, services
        self._estimated = estimate_input(request.prompt.size, len(request.prompt.messages), spending.gauge)
        self._retries = budget.retries if request.purpose == "reply" else 0
        self._index, self._attempt, self._waited_s, self._number = 0, 0, 0.0, 0
        self._failed: list[str] = []
        self._model: Model | None = None
        self._leave: ledger.Reservation
        self._paid: Paid | None = None

    @property
    def choice(self) -> ModelChoice:
        """The model whose turn it is."""
        return self.budget.models[self._index]

    @property
    def model(self) -> Any:
        """The model that is connected, None where none is yet."""
        return self._model

    @property
    def paid(self) -> Paid:
        """What came of the request."""
        assert self._paid is not None  # noqa: S101 - whoever sends asks `fits` first
        return self._paid

    @property
    def entry(self) -> ledger.Entry:
        """What the spending book is to reserve for the next try."""
        leave = self._leave
        return ledger.Entry(
            thread=self.budget.thread,
            model=self.choice.model or "",
            purpose=self.request.purpose,
            input_tokens=leave.input_tokens,
            output_tokens=leave.max_output_tokens,
            cost_usd=leave.cost_usd,
        )

    @property
    def _is_last(self) -> bool:
        return self._index + 1 == len(self.budget.models)

    @property
    def _price(self) -> ledger.Price | None:
        return self.budget.price_of(self.choice.model or "")

    @property
    def _seconds_left(self) -> float | None:
        limit = self.budget.limits.max_seconds
        return None if limit is None else limit - self.spending.seconds

    def fits(self) -> bool:
        """Whether there is to be another try, which fits into the budget."""
        if self._paid is not None or self._is_stopped():
            return False
        leave = self._reserved()
        if isinstance(leave, StopCause):
            self._end(leave)
            return False
        self._leave = leave
        return True

    def connect(self, model: Model | ProviderFailure | None) -> bool:
        """Take the model, or the failure to find its endpoint; None where a stop came first."""
        if self._is_stopped():
            return False
        if isinstance(model, ProviderFailure):
            self._next_model(model)
            return False
        self._model = model
        return True

    def enter(self, booked: int | effects.Lost | StopCause) -> bool:
        """Take what the spending book says to the reservation."""
        if isinstance(booked, StopCause):
            self._end(booked)
            return False
        if isinstance(booked, effects.Lost):  # with a killed process, or after the checkpoint that is gone on from
            self.spending = ledger.charge_lost(self.spending, booked.used, booked.number)
            return False
        self._number = booked
        return True

    def next_try(self) -> effects.Call:
        """The call that is reserved."""
        self._attempt += 1
        budget, request, leave = self.budget, self.request, self._leave
        return effects.Call(
            prompt=request.prompt,
            max_output_tokens=leave.max_output_tokens,
            timeout_s=budget.timeout_s if leave.max_seconds is None else min(budget.timeout_s, leave.max_seconds),
            idle_timeout_s=budget.idle_timeout_s,
            seed=request.seed,
            quiet=request.purpose != "reply",
        )

    def settle(self, sent: effects.Sent | effects.Stopped) -> Wait | None:
        """Charge the try with what it has used, and decide what follows: its wait is to be waited for."""
        self._charge(sent)
        if isinstance(sent, effects.Stopped):
            self._end(stopped(sent.reason))
            return None
        if isinstance(sent.result, ModelReply):
            self._paid = Paid(self.spending, sent.result, room=self._leave.max_output_tokens)
            return None
        return self._after_failure(sent.result)

    def add_wait(self, seconds: float) -> None:
        """Charge a wait that is over."""
        if self._is_stopped():
            return
        self._waited_s += seconds
        self.spending = self.spending.model_copy(update={"seconds": self.spending.seconds + seconds})

    def _is_stopped(self) -> bool:
        reason = self._services.stop.reason
        if reason:
            self._end(stopped(reason))
        return bool(reason)

    def _end(self, stop: StopCause, overflow: str = "") -> None:
        self._paid = Paid(self.spending, stop=stop, overflow=overflow)

    def _reserved(self) -> ledger.Reservation | StopCause:
        most = self.request.most_output
        return ledger.reserve(self.spending, self.budget.limits, self._estimated, self._price, most_output=most)

    def _charge(self, sent: effects.Sent | effects.Stopped) -> None:
        reply = sent.result if isinstance(sent, effects.Sent) and isinstance(sent.result, ModelReply) else None
        used = self._used(sent, self._leave)
        if reply is not None and reply.input_tokens > 0 and not reply.without_tools:
            prompt = self.request.prompt
            self.spending = ledger.measured(self.spending, prompt.size, len(prompt.messages), reply.input_tokens)
        self.spending = ledger.charge(self.spending, used)
        if self._number:
            self.spending = self.spending.model_copy(update={"booked": max(self._number, self.spending.booked)})
        self._services.settle(self._number, used)
        name = (reply.model if reply else "") or self.choice.name
        report = {"purpose": self.request.purpose, "model": name, **used.model_dump(exclude={"calls"})}
        self._services.on_tell("model.usage", report)
        if reply is not None and reply.adapted:
            self._services.on_tell("model.adapted", {"model": name, "without": list(reply.adapted)})

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
            return ledger.priced(counted, self._price)
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
        return ledger.priced(counted, self._price or self.budget.price_of(result.model))

    def _after_failure(self, failure: ProviderFailure) -> Wait | None:
        """Wait for the next try of this model, go on to the next model, or end."""
        seconds = self._wait_for(failure)
        if seconds is None:
            if (end := self._out_of_time(failure)) is not None:
                self._end(end)
            else:
                self._next_model(failure)
            return None
        again = self._reserved()
        if isinstance(again, StopCause):
            self._end(again)
            return None
        return None if self._is_stopped() else Wait(seconds, failure.message)

    def _wait_for(self, failure: ProviderFailure) -> float | None:
        """Seconds to wait before the next try of this model, or None when there should be none.

        The endpoint's own wish (Retry-After) is honoured up to `LONGEST_WAIT_S`; a longer one is not waited for.
        Otherwise the wait doubles from `FIRST_WAIT_S`, half of it fixed and half of it random. An open circuit is not
        waited for where there is a next model.
        Source of the jitter: Brooker, "Exponential Backoff And Jitter", equal jitter.
        """
        wished, left = failure.retry_after_s, self._seconds_left
        is_open = not failure.sent and not self._is_last
        if failure.kind not in effects.TRANSIENT or self._attempt > self._retries or is_open:
            return None
        if wished is not None and wished > LONGEST_WAIT_S:
            return None
        doubled = min(FIRST_WAIT_S * 2.0 ** min(self._attempt - 1, 16), LONGEST_WAIT_S)
        # In this order, NaN becomes 0.
        wait = doubled / 2 * (1.0 + self.budget.jitter()) if wished is None else max(0.0, wished)
        if self._waited_s + wait > MOST_WAITED_S or (left is not None and wait >= left):
            return None
        return wait

    def _next_model(self, failure: ProviderFailure) -> None:
        tries, name = self._attempt, self.choice.name
        times = f" ({tries} tries)" if tries > 1 else ""
        self._failed.append(f"{name}: {failure.kind.value.replace('_', ' ')}{times}")
        # What the endpoint calls wrong, and a prompt that is too long, go to no other model.
        if failure.kind not in effects.TRANSIENT | UNUSABLE or self._is_last:
            is_overflow = failure.kind is ProviderErrorKind.CONTEXT_OVERFLOW
            alone = f"provider error: {failure.kind.value}{times}"
            stop = StopCause(
                reason=StopReason.CONTEXT_OVERFLOW if is_overflow else StopReason.PROVIDER_FAILED,
                message=failure.message,
                diagnostics=("; ".join(self._failed) if len(self._failed) > 1 else alone,),
            )
            self._end(stop, failure.message if is_overflow else "")
            return
        self._index, self._attempt, self._model = self._index + 1, 0, None
        payload = {"model": name, "following": self.choice.name, "reason": failure.message}
        self._services.on_tell("model.fallback", payload)

    def _out_of_time(self, failure: ProviderFailure) -> StopCause | None:
        """The turn's own limit, where that and not the endpoint's patience ended the wait for a reply."""
        left = self._seconds_left
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
