"""One request to a model, with its tries and its fallbacks, as a script of effects; each try is paid.

It is reserved before it is sent and settled after it, whatever came of it: in the state's own counters, and in the
spending book, which a kill cannot make forget. A try whose reservation does not fit is never sent.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from mendgraph.nodes.call_model.effects import (
    Answer,
    Booked,
    Connect,
    Effect,
    Lost,
    Reserve,
    Send,
    Sent,
    Settle,
    Stopped,
    Tell,
    Wait,
)
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Reservation, RunLimits, Spending, charge_lost, measured, reserve, settle
from mendgraph.nodes.call_model.limits import Entry, Used
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prices import Price
from mendgraph.nodes.call_model.prompts.estimates import countable, estimate_input
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.call_model.retry import Tried, in_words, next_model, wait_before_retry
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure, StopCause, StopReason

_PAID_FAILURES: Final = frozenset({ProviderErrorKind.TIMEOUT, ProviderErrorKind.INCOMPLETE_STREAM})
"""Failures after the endpoint had begun to work: their input is charged."""

BYTES_PER_OUTPUT_TOKEN: Final = 3
"""What a reply without usage is charged with."""


def unknown_price(_: str) -> Price | None:
    """No price is known."""
    return None


def no_jitter() -> float:
    """The middle of all waits."""
    return 0.5


@dataclass(frozen=True)
class CallBudget:
    """How requests of a run are made and paid: its limits, its models in order, its patience with them.

    `price_of` gives a model's price by its name, `jitter` a number from 0 to 1.
    """

    limits: RunLimits = field(default_factory=RunLimits)
    models: tuple[ModelChoice, ...] = (ModelChoice(),)
    timeout_s: float = 300.0
    idle_timeout_s: float | None = None
    retries: int = 2
    thread: str = ""
    price_of: Callable[[str], Price | None] = unknown_price
    jitter: Callable[[], float] = no_jitter


@dataclass(frozen=True)
class Request:
    """What is asked. `purpose` is the spending book's word for it; only replies are shown while they come."""

    prompt: Prompt
    seed: int | None = None
    purpose: str = "reply"
    most_output: int | None = None
    wrapping_up: bool = False


@dataclass(frozen=True)
class Paid:
    """What came of a request: the reply, or why there is none; and the counters after all of its tries.

    `overflow` is what the endpoint said of a prompt that is longer than its window; `room` is the most that the reply
    could have, in tokens.
    """

    spending: Spending
    reply: ModelReply | None = None
    stop: StopCause | None = None
    overflow: str = ""
    room: int = 0


@dataclass
class _Tries:
    """The way of one request: which model it is at, which try of that, and how long it has waited in all."""

    spending: Spending
    index: int = 0
    attempt: int = 0
    waited_s: float = 0.0
    connected: bool = False
    failed: list[Tried] = field(default_factory=list)


def paid_call(request: Request, spending: Spending, budget: CallBudget) -> Generator[Effect, Answer, Paid]:
    """Yield the effects of one request until it has a reply or an end."""
    tries = _Tries(spending)
    prompt, limits = request.prompt, budget.limits
    estimated = estimate_input(prompt.size, len(prompt.messages), spending.gauge)
    while True:
        model = budget.models[tries.index]
        price = budget.price_of(model.model or "")
        leave = _reserve(request, tries.spending, limits, estimated, price)
        if isinstance(leave, StopCause):
            return Paid(tries.spending, stop=leave)
        if not tries.connected:
            found = yield Connect(model.model, model.base_url, model.key_variable, model.options)
            if isinstance(found, Stopped):
                return Paid(tries.spending, stop=stopped(found))
            if isinstance(found, ProviderFailure):
                if (end := _moved_on(tries, found, budget)) is None:
                    yield _fallen_back(tries, found, budget)
                    continue
                return Paid(tries.spending, stop=end)
            tries.connected = True
        tries.attempt += 1
        ended = yield from _one_try(request, tries, leave, model, price, budget)
        if ended is not None:
            return ended


def stopped(stop: Stopped) -> StopCause:
    """Why a run ends that somebody has stopped."""
    return StopCause(reason=StopReason.CANCELLED, message=f"The run was stopped {stop.reason}.")


def _reserve(
    request: Request, spending: Spending, limits: RunLimits, estimated: int, price: Price | None
) -> Reservation | StopCause:
    return reserve(spending, limits, estimated, price, most_output=request.most_output, wrapping_up=request.wrapping_up)


def _one_try(
    request: Request, tries: _Tries, leave: Reservation, model: ModelChoice, price: Price | None, budget: CallBudget
) -> Generator[Effect, Answer, Paid | None]:
    """Send the request once; None where there is to be another try, for which it has been waited then."""
    entry = Entry(
        thread=budget.thread,
        model=model.model or "",
        purpose=request.purpose,
        input_tokens=leave.input_tokens,
        output_tokens=leave.max_output_tokens,
        cost_usd=leave.cost_usd,
    )
    booked = yield Reserve(entry=entry, after=tries.spending.booked)
    if isinstance(booked, Stopped):
        return Paid(tries.spending, stop=stopped(booked))
    if isinstance(booked, StopCause):
        return Paid(tries.spending, stop=booked)
    if isinstance(booked, Lost):  # with a process that was killed, or after the checkpoint that is gone on from
        tries.spending, tries.attempt = charge_lost(tries.spending, booked.used, booked.number), tries.attempt - 1
        return None
    number = booked.number if isinstance(booked, Booked) else 0
    timeout = budget.timeout_s if leave.max_seconds is None else min(budget.timeout_s, leave.max_seconds)
    call = Call(
        prompt=request.prompt,
        max_output_tokens=leave.max_output_tokens,
        timeout_s=timeout,
        idle_timeout_s=budget.idle_timeout_s,
        seed=request.seed,
        quiet=request.purpose != "reply",
    )
    sent = yield Send(call=call)
    assert isinstance(sent, Sent | Stopped)  # noqa: S101 - the driver's side of the protocol
    before = tries.spending
    tries.spending = _charged(before, sent, request.prompt, leave, budget, price)
    if number:
        tries.spending = tries.spending.model_copy(update={"booked": max(number, before.booked)})
    used = _used(before, tries.spending)
    yield Settle(number=number, used=used)
    told = used.model_dump(exclude={"calls"})
    yield Tell(name="model.usage", payload={"purpose": request.purpose, "model": _name(sent, model), **told})
    if isinstance(sent, Stopped):
        return Paid(tries.spending, stop=stopped(sent))
    if isinstance(sent.result, ModelReply):
        if sent.result.adapted:
            yield Tell(
                name="model.adapted", payload={"model": _name(sent, model), "without": list(sent.result.adapted)}
            )
        return Paid(tries.spending, sent.result, room=call.max_output_tokens)
    return (yield from _after_failure(sent.result, request, tries, leave, price, budget))


def _after_failure(
    failure: ProviderFailure,
    request: Request,
    tries: _Tries,
    leave: Reservation,
    price: Price | None,
    budget: CallBudget,
) -> Generator[Effect, Answer, Paid | None]:
    """Wait for the next try of this model, go on to the next model, or end."""
    left = _seconds_left(tries.spending, budget.limits)
    wait = wait_before_retry(
        failure,
        tries.attempt,
        budget.retries,
        left,
        waited_s=tries.waited_s,
        jitter=budget.jitter(),
        is_last=tries.index + 1 == len(budget.models),
    )
    if wait is None:
        end = _out_of_time(failure, tries.spending, budget.limits) or _moved_on(tries, failure, budget)
        overflow = failure.message if failure.kind is ProviderErrorKind.CONTEXT_OVERFLOW else ""
        if end is None:
            yield _fallen_back(tries, failure, budget)
            return None
        return Paid(tries.spending, stop=end, overflow=overflow)
    again = _reserve(request, tries.spending, budget.limits, leave.input_tokens, price)
    if isinstance(again, StopCause):
        return Paid(tries.spending, stop=again)
    ended = yield Wait(seconds=wait, reason=failure.message)
    if isinstance(ended, Stopped):
        return Paid(tries.spending, stop=stopped(ended))
    tries.waited_s += wait
    tries.spending = tries.spending.model_copy(update={"seconds": tries.spending.seconds + wait})
    return None


def _moved_on(tries: _Tries, failure: ProviderFailure, budget: CallBudget) -> StopCause | None:
    """None where the next model is to be asked; otherwise how the request ends."""
    model = budget.models[tries.index]
    tries.failed.append(Tried(name=model.name, kind=failure.kind, tries=max(tries.attempt, 1)))
    following = next_model(failure, tries.index, len(budget.models))
    if following is None:
        return _cause(failure, tries)
    tries.index, tries.attempt, tries.connected = following, 0, False
    return None


def _fallen_back(tries: _Tries, failure: ProviderFailure, budget: CallBudget) -> Tell:
    """Which model could not answer, why, and which one is asked from here on."""
    model, following = tries.failed[-1].name, budget.models[tries.index].name
    return Tell(name="model.fallback", payload={"model": model, "following": following, "reason": failure.message})


def _charged(
    spending: Spending,
    sent: Sent | Stopped,
    prompt: Prompt,
    leave: Reservation,
    budget: CallBudget,
    price: Price | None,
) -> Spending:
    """The counters after one try. Where no usage is told, the estimate is charged: no number never means no cost.

    A dropped call is charged like one that broke off.
    """
    if isinstance(sent, Stopped):
        if not sent.sent:
            return spending
        return settle(spending, leave.input_tokens, _tokens(sent.received_characters), sent.seconds, price=price)
    result = sent.result
    if isinstance(result, ProviderFailure):
        charged = leave.input_tokens if result.kind in _PAID_FAILURES else 0
        received = _tokens(result.received_characters)
        return settle(spending, charged, received, sent.seconds, int(result.sent), price=price)
    characters = len(result.text) + len(result.refusal) + len(result.reasoning)
    characters += sum(len(call.arguments) for call in result.calls)
    if result.input_tokens > 0 and not result.without_tools:
        spending = measured(spending, prompt.size, len(prompt.messages), result.input_tokens)
    return settle(
        spending,
        countable(result.input_tokens) or leave.input_tokens,
        countable(result.output_tokens) or _tokens(characters),
        sent.seconds,
        cached_tokens=result.cached_tokens,
        reasoning_tokens=result.reasoning_tokens,
        cache_write_tokens=result.cache_write_tokens,
        price=price or budget.price_of(result.model),
    )


def _used(before: Spending, after: Spending) -> Used:
    """What one try came to, as the book keeps it."""
    spent, had = after.usage, before.usage
    return Used(
        calls=spent.total_calls - had.total_calls,
        input_tokens=spent.total_input_tokens - had.total_input_tokens,
        output_tokens=spent.total_output_tokens - had.total_output_tokens,
        cached_tokens=after.cached_tokens - before.cached_tokens,
        reasoning_tokens=after.reasoning_tokens - before.reasoning_tokens,
        cache_write_tokens=after.cache_write_tokens - before.cache_write_tokens,
        cost_usd=None if after.unpriced_calls > before.unpriced_calls else after.cost_usd - before.cost_usd,
        seconds=after.seconds - before.seconds,
    )


def _name(sent: Sent | Stopped, model: ModelChoice) -> str:
    """The model as the endpoint calls it, where it has answered."""
    answered = sent.result.model if isinstance(sent, Sent) and isinstance(sent.result, ModelReply) else ""
    return answered or model.name


def _tokens(characters: int) -> int:
    return -(-characters // BYTES_PER_OUTPUT_TOKEN)


def _seconds_left(spending: Spending, limits: RunLimits) -> float | None:
    return None if limits.max_seconds is None else limits.max_seconds - spending.seconds


def _out_of_time(failure: ProviderFailure, spending: Spending, limits: RunLimits) -> StopCause | None:
    """The turn's own limit, where that and not the endpoint's patience ended the wait for a reply."""
    left = _seconds_left(spending, limits)
    if failure.kind is not ProviderErrorKind.TIMEOUT or left is None or left > 0:
        return None
    message = f"Limit 'max_seconds' exceeded: {round(spending.seconds, 6)}/{limits.max_seconds}"
    return StopCause(reason=StopReason.WALL_CLOCK, message=message)


def _cause(failure: ProviderFailure, tries: _Tries) -> StopCause:
    overflow = failure.kind is ProviderErrorKind.CONTEXT_OVERFLOW
    times = f" ({tries.attempt} tries)" if tries.attempt > 1 else ""
    told = in_words(tries.failed) if len(tries.failed) > 1 else f"provider error: {failure.kind.value}{times}"
    return StopCause(
        reason=StopReason.CONTEXT_OVERFLOW if overflow else StopReason.PROVIDER_FAILED,
        message=failure.message,
        diagnostics=(told,),
    )
