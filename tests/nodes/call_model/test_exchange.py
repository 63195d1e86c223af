from collections.abc import Sequence
from typing import Any, cast

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.exchange import CallModelState, CallSettings, build_prompt
from mendgraph.nodes.call_model.ledger import Mending, RunLimits, Spending
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.prompts.estimates import Gauge, estimate_tokens
from mendgraph.nodes.records import (
    Correction,
    EditForm,
    FinishReason,
    ModelReply,
    Profile,
    Protocol,
    ProviderErrorKind,
    ProviderFailure,
    RawCall,
    StopCause,
    StopReason,
)
from tests.nodes.call_model.recorded_services import Effect, RecordedServices, Wait, merged, visit_to_the_end

TASK = HumanMessage("Fix calc.py")
PROMPT = build_prompt(Profile(), [], [TASK], (), 0.0)
ESTIMATE = estimate_tokens(PROMPT.size, len(PROMPT.messages))
REPLY = ModelReply(text="Hello", input_tokens=70, output_tokens=3)
CONNECT = ModelChoice(model=None, base_url=None)
GAUGE = Gauge(size=PROMPT.size, messages=len(PROMPT.messages), tokens=70)

Result = ModelReply | ProviderFailure


def failed(kind: ProviderErrorKind, retry_after_s: float | None = None) -> ProviderFailure:
    return ProviderFailure(kind=kind, message=f"{kind.value}!", retry_after_s=retry_after_s)


def state(**fields: Any) -> CallModelState:
    base = CallModelState(messages=[TASK], profile=Profile(), spending=Spending())
    return cast("CallModelState", {**base, **fields})


def settings_of(seed: int | None = None, temperature: float = 0.0, **budget: Any) -> CallSettings:
    """Settings with these fields of the budget; `model` and `base_url` are its one model's."""
    chosen = ModelChoice(model=budget.pop("model", None), base_url=budget.pop("base_url", None))
    return CallSettings(CallBudget(models=(chosen,), jitter=lambda: 1.0, **budget), temperature, seed)


def play(
    results: Sequence[Result], settings: CallSettings, given: CallModelState
) -> tuple[list[Effect], dict[str, Any]]:
    """Make the call, sync and async, to an endpoint that answers with `results`, each after two seconds.

    Of the effects, those that reach the endpoint or the clock are given; nothing is booked.
    """
    services, updates = visit_to_the_end(lambda: Unbooked(results), given, settings)
    effects: list[Effect] = [each for each in services.effects if isinstance(each, ModelChoice | Call | Wait)]
    return effects, merged(updates)


class Unbooked(RecordedServices):
    """Services without a book."""

    def reserve(self, *_: object) -> int:
        return 0


def sending(max_output_tokens: int = 2_048, timeout_s: float = 300.0, seed: int | None = None) -> Call:
    return Call(prompt=PROMPT, max_output_tokens=max_output_tokens, timeout_s=timeout_s, seed=seed)


def used_up(
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


def test_reply_is_paid_and_counts_a_step() -> None:
    settings = settings_of(seed=7, timeout_s=60.0, model="m", base_url="http://h")
    effects, update = play([REPLY], settings, state(step=4))
    assert effects == [ModelChoice(model="m", base_url="http://h"), sending(timeout_s=60.0, seed=7)]
    assert update == {"reply": REPLY, "spending": used_up(1, 70, 3, 2.0, GAUGE), "step": 5}


@pytest.mark.parametrize(("opened", "asked", "tries"), [(0, 2, 2), (1, 3, 3), (2, 0, 2), (0, 0, 0)])
def test_corrections_that_are_settled_count_as_tries_of_the_turn(opened: int, asked: int, tries: int) -> None:
    given = state(
        corrections=[Correction(reply="x", prompt="y")] * opened,
        spending=Spending(mending=Mending(asked_again=asked)),
        profile=Profile(edit_form=EditForm.BLOCKS),
    )
    reply = REPLY.model_copy(update={"input_tokens": 700})
    [_, call], update = play([reply], settings_of(seed=10), given)
    assert isinstance(call, Call)
    assert call.prompt == build_prompt(given["profile"], [], [TASK], given["corrections"], 0.0, asked)
    assert (call.prompt.failed_tries, call.seed) == (tries, 10 + tries)
    gauge = Gauge(size=call.prompt.size, messages=len(call.prompt.messages), tokens=700)
    assert update["spending"] == used_up(1, 700, 3, 2.0, gauge).model_copy(
        update={"mending": Mending(asked_again=asked)}
    )


@pytest.mark.parametrize("steps_down", [False, True], ids=["in blocks from the first", "stepped down"])
def test_after_four_tries_a_model_is_not_asked_in_blocks_again(steps_down: bool) -> None:
    """One that has stepped down has failed in another form, and has not been asked in this one yet."""
    given = state(
        corrections=[Correction(reply="x", prompt="Send it again.")],
        spending=Spending(mending=Mending(asked_again=4)),
        profile=Profile(edit_form=EditForm.BLOCKS, steps_down=steps_down),
    )
    effects, update = play([REPLY], settings_of(), given)
    assert len(effects) == 2 * steps_down
    assert update.get("stop") == (
        None
        if steps_down
        else StopCause(
            reason=StopReason.EDITS_FAILED,
            message="No reply could be used after 4 tries.",
            diagnostics=("Send it again.",),
        )
    )


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"api": APILimits(max_calls_per_session=0)}, StopReason.MAX_CALLS_PER_SESSION),
        ({"api": APILimits(max_input_tokens_per_session=ESTIMATE - 1)}, StopReason.MAX_INPUT_TOKENS),
        ({"api": APILimits(max_output_tokens_per_session=15)}, StopReason.MAX_OUTPUT_TOKENS),
    ],
)
def test_call_that_does_not_fit_is_not_even_connected(limits: dict[str, Any], reason: StopReason) -> None:
    effects, update = play([], settings_of(limits=RunLimits(**limits)), state())
    assert effects == []
    assert (update["reply"], update["spending"], update["stop"].reason) == (None, Spending(), reason)
    assert "step" not in update


@pytest.mark.parametrize(
    ("kind", "max_seconds", "is_clock"),
    [
        (ProviderErrorKind.TIMEOUT, 2.0, True),
        (ProviderErrorKind.TIMEOUT, 2.5, False),
        (ProviderErrorKind.CONNECTION, 2.0, False),
    ],
)
def test_timeout_at_the_end_of_the_turn_is_the_turns(
    kind: ProviderErrorKind, max_seconds: float, is_clock: bool
) -> None:
    effects, update = play([failed(kind)], settings_of(limits=RunLimits(max_seconds=max_seconds)), state())
    clock = StopCause(reason=StopReason.WALL_CLOCK, message="Limit 'max_seconds' exceeded: 2.0/2.0")
    assert effects == [CONNECT, sending(timeout_s=max_seconds)]
    assert update["stop"] == (clock if is_clock else gave_up(kind))


THOUGHT = ModelReply(reasoning="Hm. " * 9, finish_reason=FinishReason.LENGTH, input_tokens=70, output_tokens=2_048)
TAGGED = THOUGHT.model_copy(update={"reasoning": "", "text": "<think>Hm."})
COUNTED = THOUGHT.model_copy(update={"reasoning": "", "reasoning_tokens": 2_048})


def roomy(session: int, per_call: int | None = 2_048) -> CallSettings:
    api = APILimits(max_output_tokens_per_session=session)
    return settings_of(limits=RunLimits(api=api, max_output_tokens_per_call=per_call))


def asked_for(effects: list[Effect]) -> list[int]:
    return [effect.max_output_tokens for effect in effects if isinstance(effect, Call)]


@pytest.mark.parametrize("thought", [THOUGHT, TAGGED, COUNTED], ids=["reasoning", "in the text", "only counted"])
def test_model_that_thinks_longer_than_the_budget_lets_it_ends_the_run(thought: ModelReply) -> None:
    effects, update = play([thought], roomy(20_000), state())
    assert (len(asked_for(effects)), update["reply"]) == (1, None)
    assert update["stop"].reason is StopReason.MAX_OUTPUT_TOKENS
    assert update["stop"].message.startswith("The model's thoughts took all 2,048 output tokens")
    assert update["spending"].usage.total_output_tokens == 2_048


def test_limit_of_the_chat_model_itself_is_named_and_no_second_call_is_paid() -> None:
    thought = THOUGHT.model_copy(update={"allowed_tokens": 1_024})
    effects, update = play([thought], roomy(20_000), state())
    assert asked_for(effects) == [2_048]
    assert "all 1,024 output tokens of its reply, which is the limit of the chat model" in update["stop"].message


@pytest.mark.parametrize(
    "reply",
    [
        THOUGHT.model_copy(update={"text": "So:"}),
        THOUGHT.model_copy(update={"finish_reason": FinishReason.STOP}),
        THOUGHT.model_copy(update={"reasoning": ""}),
        THOUGHT.model_copy(update={"calls": (RawCall(call_id="x", tool="f", arguments="{"),)}),
    ],
    ids=["text", "it ended by itself", "no thoughts", "calls"],
)
def test_what_is_more_than_thoughts_is_the_reply(reply: ModelReply) -> None:
    effects, update = play([reply], roomy(20_000), state())
    assert (len(asked_for(effects)), update["reply"]) == (1, reply)


def test_model_without_native_tools_is_talked_to_in_text_from_then_on() -> None:
    given = state(profile=Profile(protocol=Protocol.NATIVE))
    assert play([REPLY.model_copy(update={"without_tools": True})], settings_of(), given)[1]["profile"] == Profile()
    assert "profile" not in play([REPLY], settings_of(), given)[1]
