from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import HumanMessage

from nodes.call_model.budget import APILimits, APIUsageStats
from nodes.call_model.effects import Answer, Booked, Connect, Effect, Reserve, Send, Sent, Stopped, Wait
from nodes.call_model.endpoint import ModelChoice
from nodes.call_model.estimates import Gauge, estimate_tokens
from nodes.call_model.exchange import CallModelState, CallSettings, exchange
from nodes.call_model.ledger import Mending, RunLimits, Spending, exhausted_limit
from nodes.call_model.model import Call
from nodes.call_model.paid_call import CallBudget
from nodes.call_model.prompt import build_prompt
from nodes.call_model.retry import TRANSIENT
from nodes.records import (
    Correction,
    EditForm,
    ModelReply,
    Profile,
    ProviderErrorKind,
    ProviderFailure,
    RawCall,
    StopCause,
    StopReason,
)

TASK = HumanMessage("Fix calc.py")
PROMPT = build_prompt(Profile(), [], [TASK], (), 0.0)
ESTIMATE = estimate_tokens(PROMPT.size, len(PROMPT.messages))
REPLY = ModelReply(text="Hello", input_tokens=70, output_tokens=3)
CONNECT = Connect(model=None, base_url=None)
GAUGE = Gauge(size=PROMPT.size, messages=len(PROMPT.messages), tokens=70)

Result = ModelReply | ProviderFailure


def failed(kind: ProviderErrorKind, retry_after_s: float | None = None) -> ProviderFailure:
    return ProviderFailure(kind=kind, message=f"{kind.value}!", retry_after_s=retry_after_s)


BUSY = failed(ProviderErrorKind.RATE_LIMITED)


def state(**fields: Any) -> CallModelState:
    base = CallModelState(messages=[TASK], profile=Profile(), spending=Spending())
    return cast("CallModelState", {**base, **fields})


def settings_of(seed: int | None = None, temperature: float = 0.0, **budget: Any) -> CallSettings:
    """Settings with these fields of the budget; `model` and `base_url` are its one model's."""
    chosen = ModelChoice(model=budget.pop("model", None), base_url=budget.pop("base_url", None))
    return CallSettings(CallBudget(models=(chosen,), jitter=lambda: 1.0, **budget), temperature, seed)


def play(
    results: Sequence[Result], settings: CallSettings, given: CallModelState, unreachable: ProviderFailure | None = None
) -> tuple[list[Effect], dict[str, Any]]:
    """Run the script against an endpoint that answers with `results`, each after two seconds.

    Of the effects, those that reach the endpoint or the clock are given; nothing is booked.
    """
    script, answers, effects = exchange(given, settings, []), iter(results), list[Effect]()
    answer: Answer = None
    while True:
        try:
            effect = script.send(answer)
        except StopIteration as end:
            return effects, end.value
        answer = None
        if isinstance(effect, Connect | Send | Wait):
            effects.append(effect)
        if isinstance(effect, Connect):
            answer = unreachable
        elif isinstance(effect, Send):
            answer = Sent(result=next(answers), seconds=2.0)
        elif isinstance(effect, Reserve):
            answer = Booked(number=0)


def sending(max_output_tokens: int = 2_048, timeout_s: float = 300.0, seed: int | None = None) -> Send:
    return Send(call=Call(prompt=PROMPT, max_output_tokens=max_output_tokens, timeout_s=timeout_s, seed=seed))


def spent(
    calls: int, tokens_in: int, tokens_out: int, seconds: float, gauge: Gauge | None = None, free: int = 0
) -> Spending:
    """What so many calls come to: `free` ones without tokens, the others without a price.

    `gauge` is what the endpoint counted last, if it did.
    """
    usage = APIUsageStats(calls, tokens_in, tokens_out, calls)
    return Spending(usage=usage, seconds=seconds, unpriced_calls=calls - free, gauge=gauge or Gauge())


def gave_up(kind: ProviderErrorKind, tries: str = "") -> StopCause:
    overflow = kind is ProviderErrorKind.CONTEXT_OVERFLOW
    return StopCause(
        reason=StopReason.CONTEXT_OVERFLOW if overflow else StopReason.PROVIDER_FAILED,
        message=f"{kind.value}!",
        diagnostics=(f"provider error: {kind.value}{tries}",),
    )


def test_a_reply_is_paid_and_counts_a_step() -> None:
    settings = settings_of(seed=7, timeout_s=60.0, model="m", base_url="http://h")
    effects, update = play([REPLY], settings, state(step=4))
    assert effects == [Connect(model="m", base_url="http://h"), sending(timeout_s=60.0, seed=7)]
    assert update == {"reply": REPLY, "spending": spent(1, 70, 3, 2.0, GAUGE), "step": 5}


@pytest.mark.parametrize(("seed", "sent"), [(None, None), (0, 2), (7, 9), (2**31 - 1, 1)])
def test_each_try_in_block_form_has_a_seed_of_its_own(seed: int | None, sent: int | None) -> None:
    corrections = [Correction(reply="x", prompt="y")] * 2
    settings, given = settings_of(seed=seed), state(corrections=corrections)
    [_, call], _ = play([REPLY], settings, given | {"profile": Profile(edit_form=EditForm.BLOCKS)})
    assert isinstance(call, Send)
    assert (call.call.prompt.failed_tries, call.call.seed) == (2, sent)
    [_, call], _ = play([REPLY], settings, given)
    assert isinstance(call, Send)
    assert (call.call.prompt.failed_tries, call.call.seed) == (0, seed)


@pytest.mark.parametrize(("opened", "asked", "tries"), [(0, 2, 2), (1, 3, 3), (2, 0, 2), (0, 0, 0)])
def test_corrections_that_are_settled_count_as_tries_of_the_turn(opened: int, asked: int, tries: int) -> None:
    given = state(
        corrections=[Correction(reply="x", prompt="y")] * opened,
        spending=Spending(mending=Mending(asked_again=asked)),
        profile=Profile(edit_form=EditForm.BLOCKS),
    )
    [_, call], update = play([REPLY], settings_of(seed=10), given)
    assert isinstance(call, Send)
    assert call.call.prompt == build_prompt(given["profile"], [], [TASK], given["corrections"], 0.0, asked)
    assert (call.call.prompt.failed_tries, call.call.seed) == (tries, 10 + tries)
    gauge = Gauge(size=call.call.prompt.size, messages=len(call.call.prompt.messages), tokens=70)
    assert update["spending"] == spent(1, 70, 3, 2.0, gauge).model_copy(update={"mending": Mending(asked_again=asked)})


def test_a_preloaded_reply_costs_nothing() -> None:
    ready = ModelReply(text="tool: x", preloaded=True)
    assert play([], settings_of(), state(preload=ready)) == ([], {"reply": ready, "preload": None, "step": 1})


def test_corrections_and_temperature_reach_the_prompt() -> None:
    correction = Correction(reply="tool: x", prompt="Fix it.")
    effects, _ = play([REPLY], settings_of(temperature=0.4), state(corrections=[correction]))
    assert isinstance(effects[1], Send)
    assert effects[1].call.prompt == build_prompt(Profile(), [], [TASK], [correction], 0.4)


@pytest.mark.parametrize(
    ("reply", "tokens_in", "tokens_out"),
    [
        (ModelReply(text="x" * 30), ESTIMATE, 10),
        (ModelReply(calls=(RawCall(call_id="", tool="f", arguments="x" * 30),)), ESTIMATE, 10),
        (ModelReply(refusal="x" * 30), ESTIMATE, 10),
        (ModelReply(text="x" * 30, input_tokens=-5, output_tokens=-5), ESTIMATE, 10),
        (ModelReply(text="x" * 30, input_tokens=1, output_tokens=1), 1, 1),
    ],
)
def test_a_reply_without_usage_is_charged_the_estimate(reply: ModelReply, tokens_in: int, tokens_out: int) -> None:
    _, update = play([reply], settings_of(), state())
    gauge = GAUGE.model_copy(update={"tokens": 1}) if reply.input_tokens > 0 else None
    assert update["spending"] == spent(1, tokens_in, tokens_out, 2.0, gauge)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"api": APILimits(max_calls_per_session=0)}, StopReason.MAX_CALLS_PER_SESSION),
        ({"api": APILimits(max_input_tokens_per_session=ESTIMATE - 1)}, StopReason.MAX_INPUT_TOKENS),
        ({"api": APILimits(max_output_tokens_per_session=15)}, StopReason.MAX_OUTPUT_TOKENS),
    ],
)
def test_a_call_that_does_not_fit_is_not_even_connected(limits: dict[str, Any], reason: StopReason) -> None:
    effects, update = play([], settings_of(limits=RunLimits(**limits)), state())
    assert effects == []
    assert (update["reply"], update["spending"], update["stop"].reason) == (None, Spending(), reason)
    assert "step" not in update


def test_a_prompt_that_fits_exactly_is_sent() -> None:
    limits = RunLimits(api=APILimits(max_input_tokens_per_session=ESTIMATE, max_output_tokens_per_session=100))
    effects, _ = play([REPLY], settings_of(limits=limits), state())
    assert effects == [CONNECT, sending(100)]


def test_without_an_endpoint_nothing_is_sent() -> None:
    nowhere = failed(ProviderErrorKind.MODEL_UNAVAILABLE)
    effects, update = play([], settings_of(), state(), unreachable=nowhere)
    assert effects == [CONNECT]
    stop = gave_up(ProviderErrorKind.MODEL_UNAVAILABLE)
    assert update == {"reply": None, "spending": Spending(), "stop": stop}


class Ends:
    """Answers effects with `results`, until the effect of this number (from 0), which a stop ends."""

    def __init__(self, stop_at: int, stopped: Stopped, results: Sequence[Result]) -> None:
        self.effects: list[Effect] = []
        self.stop_at, self.stopped, self.results = stop_at, stopped, iter(results)

    def play(self, given: CallModelState | None = None, settings: CallSettings | None = None) -> dict[str, Any]:
        script = exchange(given or state(step=4), settings or settings_of(), [])
        answer: Sent | Stopped | None = None
        while True:
            try:
                effect = script.send(answer)
            except StopIteration as end:
                return dict(end.value)
            answer = None
            if not isinstance(effect, Connect | Send | Wait):
                continue
            self.effects.append(effect)
            answer = Sent(result=next(self.results), seconds=2.0) if isinstance(effect, Send) else None
            if len(self.effects) > self.stop_at:
                answer = self.stopped


UNSENT = Stopped(reason="by Ctrl-C")
DROPPED = Stopped(reason="by Ctrl-C", sent=True, seconds=1.5, received_characters=30)


@pytest.mark.parametrize(
    ("stop_at", "stopped", "spending"),
    [
        (0, UNSENT, Spending()),
        (1, UNSENT, Spending()),
        (1, DROPPED, spent(1, ESTIMATE, 10, 1.5)),
        (2, UNSENT, spent(1, 0, 0, 2.0, free=1)),
        (3, DROPPED, spent(2, ESTIMATE, 10, 4.0, free=1)),
    ],
    ids=["connecting", "before sending", "in flight", "waiting", "the second try"],
)
def test_a_stop_ends_any_effect_and_what_was_sent_is_paid(stop_at: int, stopped: Stopped, spending: Spending) -> None:
    endpoint = Ends(stop_at, stopped, [BUSY, REPLY])
    cause = StopCause(reason=StopReason.CANCELLED, message="The run was stopped by Ctrl-C.")
    assert endpoint.play() == {"reply": None, "spending": spending, "stop": cause}
    assert endpoint.effects == [CONNECT, sending(), waiting(0.5), sending()][: stop_at + 1]


def waiting(seconds: float, reason: str = BUSY.message) -> Wait:
    return Wait(seconds=seconds, reason=reason)


def test_each_try_is_paid_and_waited_for() -> None:
    results: list[Result] = [BUSY, failed(ProviderErrorKind.TIMEOUT, retry_after_s=4.0), REPLY]
    effects, update = play(results, settings_of(), state())
    assert effects == [CONNECT, sending(), waiting(0.5), sending(), waiting(4.0, "timeout!"), sending()]
    assert update == {"reply": REPLY, "spending": spent(3, ESTIMATE + 70, 3, 10.5, GAUGE, free=1), "step": 1}


@pytest.mark.parametrize("kind", sorted({*ProviderErrorKind} - {ProviderErrorKind.CONTEXT_OVERFLOW}))
def test_only_transient_failures_are_tried_again(kind: ProviderErrorKind) -> None:
    effects, update = play([failed(kind)] * 3, settings_of(), state())
    tries = 3 if kind in TRANSIENT else 1
    paid = kind in (ProviderErrorKind.TIMEOUT, ProviderErrorKind.INCOMPLETE_STREAM)
    waited = 1.5 if tries == 3 else 0.0
    assert sum(isinstance(effect, Send) for effect in effects) == tries
    assert update == {
        "reply": None,
        "spending": spent(tries, tries * ESTIMATE if paid else 0, 0, 2.0 * tries + waited, free=0 if paid else tries),
        "stop": gave_up(kind, f" ({tries} tries)" if tries > 1 else ""),
    }


def test_a_request_that_can_be_made_no_smaller_is_not_sent_twice() -> None:
    effects, update = play([failed(ProviderErrorKind.CONTEXT_OVERFLOW)], settings_of(), state())
    assert effects == [CONNECT, sending()]
    assert (update["stop"].reason, update["stop"].diagnostics) == (StopReason.CONTEXT_OVERFLOW, ("context_overflow!",))
    assert "nothing more can be left out" in update["stop"].message


def test_a_wish_that_is_too_long_ends_the_run() -> None:
    effects, update = play([failed(ProviderErrorKind.RATE_LIMITED, 31.0)], settings_of(), state())
    assert effects == [CONNECT, sending()]
    assert update["stop"] == gave_up(ProviderErrorKind.RATE_LIMITED)


def test_no_try_is_made_or_waited_for_beyond_the_calls_of_a_turn() -> None:
    settings = settings_of(limits=RunLimits(api=APILimits(max_calls_per_turn=2)), retries=5)
    effects, update = play([BUSY, BUSY], settings, state())
    assert effects == [CONNECT, sending(), waiting(0.5), sending()]
    message = "Limit 'max_calls_per_turn' exceeded: 2/2"
    stop = StopCause(reason=StopReason.MAX_CALLS_PER_TURN, message=message)
    assert update == {"reply": None, "spending": spent(2, 0, 0, 4.5, free=2), "stop": stop}


def test_the_clock_bounds_each_try_and_each_wait() -> None:
    settings = settings_of(limits=RunLimits(max_seconds=5.0), retries=5, timeout_s=4.0)
    effects, update = play([BUSY, BUSY], settings, state())
    assert effects == [CONNECT, sending(timeout_s=4.0), waiting(0.5), sending(timeout_s=2.5)]
    assert (update["stop"], update["spending"].seconds) == (gave_up(ProviderErrorKind.RATE_LIMITED, " (2 tries)"), 4.5)


@pytest.mark.parametrize(
    ("kind", "max_seconds", "is_clock"),
    [
        (ProviderErrorKind.TIMEOUT, 2.0, True),
        (ProviderErrorKind.TIMEOUT, 2.5, False),
        (ProviderErrorKind.CONNECTION, 2.0, False),
    ],
)
def test_a_timeout_at_the_end_of_the_turn_is_the_turns(
    kind: ProviderErrorKind, max_seconds: float, is_clock: bool
) -> None:
    effects, update = play([failed(kind)], settings_of(limits=RunLimits(max_seconds=max_seconds)), state())
    clock = StopCause(reason=StopReason.WALL_CLOCK, message="Limit 'max_seconds' exceeded: 2.0/2.0")
    assert effects == [CONNECT, sending(timeout_s=max_seconds)]
    assert update["stop"] == (clock if is_clock else gave_up(kind))


FAILURES = st.builds(failed, st.sampled_from(ProviderErrorKind), st.none() | st.floats(0, 40))
REPLIES = st.builds(
    ModelReply, text=st.text(max_size=20), input_tokens=st.integers(0, 300), output_tokens=st.integers(0, 30)
)
SETTINGS = st.builds(
    settings_of,
    limits=st.builds(
        RunLimits,
        api=st.builds(APILimits, st.integers(0, 5), st.integers(0, 5), st.integers(0, 2_000), st.integers(0, 200)),
        max_seconds=st.none() | st.floats(0.1, 30),
        max_steps=st.none() | st.integers(1, 3),
    ),
    retries=st.integers(0, 5),
    timeout_s=st.floats(0.5, 20),
)


def endless(results: list[Result]) -> Iterator[Result]:
    yield from results
    while True:
        yield BUSY


@given(st.lists(FAILURES | REPLIES, max_size=6), SETTINGS)
def test_no_course_of_events_passes_the_budget(results: list[Result], settings: CallSettings) -> None:
    source = endless(results)
    asked = [next(source) for _ in range(8)]
    effects, update = play(asked, settings, state())
    sends = [effect for effect in effects if isinstance(effect, Send)]
    budget, limits, usage = settings.budget, settings.budget.limits, update.get("spending", Spending()).usage
    assert len(sends) == usage.total_calls <= min(budget.retries + 1, *limits.api[:2])
    assert (effects[:1] == [CONNECT]) is bool(sends)
    assert effects.count(CONNECT) <= 1
    assert not isinstance(effects[-1] if effects else None, Wait)
    assert (update["reply"] is None) is ("stop" in update) is ("step" not in update)
    refusal = exhausted_limit(Spending(), limits)
    assert refusal is None or (update["stop"], sends) == (refusal, [])
    for failure, _ in zip(asked, sends[1:], strict=False):
        assert isinstance(failure, ProviderFailure)
        assert failure.kind in TRANSIENT
    for send in sends:
        assert 0 < send.call.timeout_s <= budget.timeout_s
        assert send.call.max_output_tokens <= limits.api.max_output_tokens_per_session
    charged = 2.0 * len(sends) + sum(effect.seconds for effect in effects if isinstance(effect, Wait))
    assert update.get("spending", Spending()).seconds == pytest.approx(charged)


def test_an_account_is_what_comes_after_the_thoughts() -> None:
    limits = RunLimits(api=APILimits(99, 3, 99_000, 99_000), wrap_up=True)
    reply = ModelReply(text="<think>\nI must not say that.\n</think>\nOne line is mended.")
    spending = Spending(usage=APIUsageStats(2, 0, 0, 2))
    _, update = play([reply], settings_of(limits=limits), state(spending=spending))
    assert update["stop"].account == "One line is mended."


def test_who_stops_the_account_stops_the_run() -> None:
    limits = RunLimits(api=APILimits(99, 3, 99_000, 99_000), wrap_up=True)
    given = state(spending=Spending(usage=APIUsageStats(2, 0, 0, 2)))
    update = Ends(1, DROPPED, [REPLY]).play(given, settings_of(limits=limits))
    spending = update.pop("spending")
    cause = StopCause(reason=StopReason.CANCELLED, message="The run was stopped by Ctrl-C.")
    assert update == {"reply": None, "stop": cause}
    assert (spending.usage.total_calls, spending.usage.calls_in_current_turn, spending.seconds) == (3, 3, 1.5)
