"""A model call as a script of effects: connect, send, wait. The script decides, `node.py` performs.

It is a generator, so that the sync and the async node run the very same decisions, and a test can play the endpoint
without one. Each try reserves before it is sent and settles after it, whatever came of it.
"""

from collections.abc import Generator, Sequence
from typing import Any

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from nodes.call_model.ledger import RunLimits, Spending, estimate_tokens, reserve, settle
from nodes.call_model.model import Call
from nodes.call_model.prompt import build_prompt
from nodes.call_model.retry import wait_before_retry
from nodes.records import (
    Correction,
    ModelReply,
    Profile,
    ProviderErrorKind,
    ProviderFailure,
    Record,
    StopCause,
    StopReason,
    ToolSpec,
)


class CallModelState(TypedDict, total=False):
    """What the node reads."""

    messages: list[AnyMessage]
    profile: Profile
    corrections: list[Correction]
    spending: Spending
    preload: ModelReply | None
    step: int


class CallSettings(Record):
    """How calls of this run are made: its limits, and the patience with the endpoint."""

    limits: RunLimits = RunLimits()
    temperature: float = 0.0
    seed: int | None = None
    timeout_s: float = 300.0
    retries: int = 2
    model: str | None = None
    base_url: str | None = None


class Connect(Record):
    """Effect: find the endpoint. Answered by None, or by the failure to find one."""

    model: str | None
    base_url: str | None


class Send(Record):
    """Effect: send this call. Answered by what came back, and the seconds it took."""

    call: Call


class Wait(Record):
    """Effect: wait this long before the next try; `reason` is why the last one failed. Answered by None."""

    seconds: float
    reason: str = ""


class Sent(Record):
    """The answer to `Send`."""

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


Effect = Connect | Send | Wait
Answer = Sent | Stopped | ProviderFailure | None
Update = dict[str, Any]

MOST_SEEDS = 2**31
"""Seeds are smaller than this in every endpoint that takes one."""

_PAID_FAILURES = frozenset({ProviderErrorKind.TIMEOUT, ProviderErrorKind.INCOMPLETE_STREAM})
"""Failures after the endpoint had begun to work: their input is charged."""


def exchange(
    state: CallModelState, settings: CallSettings, specs: Sequence[ToolSpec]
) -> Generator[Effect, Answer, Update]:
    """Yield the effects of one model call with its retries; return the update of the state.

    A preloaded reply costs nothing. A call that does not fit into the budget is never sent: the update then names
    the limit in `stop`, as it names the endpoint's failure when the last try failed, or who stopped the run.
    """
    step = {"step": state.get("step", 0) + 1}
    if preload := state.get("preload"):
        return {"reply": preload, "preload": None, **step}
    corrections = state.get("corrections") or ()
    asked = state["spending"].mending.asked_again
    prompt = build_prompt(state["profile"], specs, state["messages"], corrections, settings.temperature, asked)
    estimated = estimate_tokens(prompt.characters(), len(prompt.messages))
    spending = state["spending"]
    connected, attempt = False, 0
    while True:
        attempt += 1
        leave = reserve(spending, settings.limits, estimated)
        if isinstance(leave, StopCause):
            return {"reply": None, "spending": spending, "stop": leave}
        if not connected:
            found = yield Connect(model=settings.model, base_url=settings.base_url)
            if isinstance(found, Stopped):
                return stopped(found, spending)
            if isinstance(found, ProviderFailure):
                return {"reply": None, "stop": _cause(found, 0)}
            connected = True
        timeout = settings.timeout_s if leave.max_seconds is None else min(settings.timeout_s, leave.max_seconds)
        seed = None if settings.seed is None else (settings.seed + prompt.failed_tries) % MOST_SEEDS
        call = Call(prompt=prompt, max_output_tokens=leave.max_output_tokens, timeout_s=timeout, seed=seed)
        sent = yield Send(call=call)
        if isinstance(sent, Stopped):
            return stopped(sent, spending, estimated)
        assert isinstance(sent, Sent)  # noqa: S101 - the driver's side of the protocol
        spending = _settled(spending, sent, estimated)
        if isinstance(sent.result, ModelReply):
            return {"reply": sent.result, "spending": spending, **step}
        wait = wait_before_retry(sent.result, attempt, settings.retries, _seconds_left(spending, settings.limits))
        if wait is None:
            stop = _out_of_time(sent.result, spending, settings.limits) or _cause(sent.result, attempt)
            return {"reply": None, "spending": spending, "stop": stop}
        if isinstance(leave := reserve(spending, settings.limits, estimated), StopCause):
            return {"reply": None, "spending": spending, "stop": leave}
        ended = yield Wait(seconds=wait, reason=sent.result.message)
        if isinstance(ended, Stopped):
            return stopped(ended, spending)
        spending = spending.model_copy(update={"seconds": spending.seconds + wait})


def stopped(stop: Stopped, spending: Spending, estimated: int = 0) -> Update:
    """The update that ends the run as it was asked. A dropped call is charged like one that broke off."""
    if stop.sent:
        spending = settle(spending, estimated, estimate_tokens(stop.received_characters, 0), stop.seconds)
    cause = StopCause(reason=StopReason.CANCELLED, message=f"The run was stopped {stop.reason}.")
    return {"reply": None, "spending": spending, "stop": cause}


def _settled(spending: Spending, sent: Sent, estimated: int) -> Spending:
    """Charge one try. An endpoint that reports no usage is charged the estimate: no number never means no cost."""
    result = sent.result
    if isinstance(result, ProviderFailure):
        output = estimate_tokens(result.received_characters, 0)
        return settle(spending, estimated if result.kind in _PAID_FAILURES else 0, output, sent.seconds)
    characters = len(result.text) + len(result.refusal) + sum(len(call.arguments) for call in result.calls)
    output = result.output_tokens if result.output_tokens > 0 else estimate_tokens(characters, 0)
    return settle(spending, result.input_tokens if result.input_tokens > 0 else estimated, output, sent.seconds)


def _seconds_left(spending: Spending, limits: RunLimits) -> float | None:
    return None if limits.max_seconds is None else limits.max_seconds - spending.seconds


def _out_of_time(failure: ProviderFailure, spending: Spending, limits: RunLimits) -> StopCause | None:
    """The turn's own limit, where that and not the endpoint's patience ended the wait for a reply."""
    left = _seconds_left(spending, limits)
    if failure.kind is not ProviderErrorKind.TIMEOUT or left is None or left > 0:
        return None
    message = f"Limit 'max_seconds' exceeded: {round(spending.seconds, 6)}/{limits.max_seconds}"
    return StopCause(reason=StopReason.WALL_CLOCK, message=message)


def _cause(failure: ProviderFailure, attempts: int) -> StopCause:
    overflow = failure.kind is ProviderErrorKind.CONTEXT_OVERFLOW
    tries = f" ({attempts} tries)" if attempts > 1 else ""
    return StopCause(
        reason=StopReason.CONTEXT_OVERFLOW if overflow else StopReason.PROVIDER_FAILED,
        message=failure.message,
        diagnostics=(f"provider error: {failure.kind.value}{tries}",),
    )
