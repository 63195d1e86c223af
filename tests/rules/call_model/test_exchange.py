from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import HumanMessage

from mendgraph.graph.machine.small_models import block_form
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.call_state import CallModelState, CallSettings
from mendgraph.nodes.call_model.endpoint import ModelChoice
from mendgraph.nodes.call_model.ledger import Mending, RunLimits, Spending
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.paid_call import CallBudget
from mendgraph.nodes.call_model.prompts.estimates import Gauge
from mendgraph.nodes.call_model.turn_prompt import build_block_prompt, build_prompt
from mendgraph.nodes.language.token_estimates import estimate_tokens
from mendgraph.nodes.records import (
    Correction,
    EditForm,
    FinishReason,
    ModelReply,
    Profile,
    Protocol,
    ProviderErrorKind as Kind,
    ProviderFailure,
    RawCall,
    StopCause,
    StopReason,
)
from mendgraph.nodes.small_model.block_form import BlockForm
from tests.row_tables import rows
from tests.rules.call_model.recorded_services import RecordedServices, merged, run_visits
from tests.rules.call_model.spendings import spent

TASK = HumanMessage("Fix calc.py")
PROMPT = build_prompt(Profile(), [], [TASK], (), 0.0)
ESTIMATE = estimate_tokens(PROMPT.size, len(PROMPT.messages))
REPLY = ModelReply(text="Hello", input_tokens=70, output_tokens=3)
GAUGE = Gauge(size=PROMPT.size, messages=len(PROMPT.messages), tokens=70)


def settings(seed: int | None = None, **budget: Any) -> CallSettings:
    """Settings with these fields of the budget; `model` and `base_url` are its model's, `fallback` is the next one."""
    chosen = ModelChoice(model=budget.pop("model", None), base_url=budget.pop("base_url", None))
    others = [ModelChoice(model=budget.pop("fallback"))] if "fallback" in budget else []
    return CallSettings(CallBudget(models=(chosen, *others), jitter=lambda: 1.0, **budget), 0.0, seed)


class Unbooked(RecordedServices):
    """Services without a book."""

    def reserve(self, *_: object) -> int:
        return 0


def play(
    results: Sequence[ModelReply | ProviderFailure], settings: CallSettings, **state: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Make the call, sync and async, to an endpoint that answers with `results`, each after two seconds.

    Returns what reached the endpoint, and the update.
    """
    initial = {"messages": [TASK], "profile": Profile(), "spending": Spending(), **state}
    settings = replace(settings, blocks=block_form(initial["profile"]))
    services, updates = run_visits(lambda: Unbooked(results), cast("CallModelState", initial), settings)
    return [effect for effect in services.effects if isinstance(effect, ModelChoice | Call)], merged(updates)


def test_reply_is_charged_and_counts_a_step() -> None:
    effects, update = play([REPLY], settings(seed=7, timeout_s=60.0, model="m", base_url="http://h"), step=4)
    call = Call(prompt=PROMPT, max_output_tokens=2_048, timeout_s=60.0, seed=7)
    assert effects == [ModelChoice(model="m", base_url="http://h"), call]
    spending = spent(1, 70, 3, seconds=2.0, unpriced_calls=1, gauge=GAUGE)
    assert update == {"reply": REPLY, "spending": spending, "step": 5}


@rows((0, 2, 2), (1, 3, 3), (2, 0, 2), (0, 0, 0))
def test_settled_corrections_count_as_tries_of_the_turn(opened: int, corrected: int, tries: int) -> None:
    corrections, profile = [Correction(reply="x", prompt="y")] * opened, Profile(edit_form=EditForm.BLOCKS)
    before = Spending(mending=Mending(asked_again=corrected))
    reply = REPLY.model_copy(update={"input_tokens": 700})
    [_, call], update = play([reply], settings(seed=10), corrections=corrections, spending=before, profile=profile)
    assert call.prompt == build_block_prompt(BlockForm(profile), profile, [], [TASK], corrections, 0.0, corrected)
    assert (call.prompt.failed_tries, call.seed) == (tries, 10 + tries)
    assert update["spending"].gauge == Gauge(size=call.prompt.size, messages=len(call.prompt.messages), tokens=700)
    assert update["spending"].mending == Mending(asked_again=corrected)


@rows(False, True)
def test_block_form_ends_after_four_tries_unless_stepped_down(steps_down: bool) -> None:
    """A model that has stepped down failed in another edit form, and gets a try in this one."""
    effects, update = play(
        [REPLY],
        settings(),
        corrections=[Correction(reply="x", prompt="Send it again.")],
        spending=Spending(mending=Mending(asked_again=4)),
        profile=Profile(edit_form=EditForm.BLOCKS, steps_down=steps_down),
    )
    message = "No reply could be used after 4 tries."
    stop = StopCause(reason=StopReason.EDITS_FAILED, message=message, diagnostics=("Send it again.",))
    assert len(effects) == 2 * steps_down
    assert update.get("stop") == (None if steps_down else stop)


@rows(
    (APILimits(max_calls_per_session=0), StopReason.MAX_CALLS_PER_SESSION),
    (APILimits(max_input_tokens_per_session=ESTIMATE - 1), StopReason.MAX_INPUT_TOKENS),
    (APILimits(max_output_tokens_per_session=15), StopReason.MAX_OUTPUT_TOKENS),
)
def test_call_over_a_limit_is_not_connected(limits: APILimits, reason: StopReason) -> None:
    effects, update = play([], settings(limits=RunLimits(api=limits)))
    assert (effects, update["reply"], update["spending"]) == ([], None, Spending())
    assert (update["stop"].reason, "step" in update) == (reason, False)


@rows((Kind.TIMEOUT, 2.0, True), (Kind.TIMEOUT, 2.5, False), (Kind.CONNECTION, 2.0, False))
def test_timeout_at_the_turns_deadline_is_a_wall_clock_stop(kind: Kind, max_seconds: float, is_clock: bool) -> None:
    failure = ProviderFailure(kind=kind, message="gone")
    [_, call], update = play([failure], settings(limits=RunLimits(max_seconds=max_seconds)))
    clock = StopCause(
        reason=StopReason.WALL_CLOCK, message="Limit 'max_seconds' exceeded: 2.0/2.0", limit="max_seconds", required=2.0
    )
    diagnostics = (f"provider error: {kind.value}",)
    gave_up = StopCause(reason=StopReason.PROVIDER_FAILED, message="gone", diagnostics=diagnostics)
    assert (call.timeout_s, update["stop"]) == (max_seconds, clock if is_clock else gave_up)


def test_overlong_prompt_that_cannot_shrink_ends_the_run() -> None:
    failure = ProviderFailure(kind=Kind.CONTEXT_OVERFLOW, message="too long")
    effects, update = play([failure], settings(fallback="n"))
    assert [type(effect) for effect in effects] == [ModelChoice, Call]
    assert (update["stop"].reason, update["stop"].diagnostics) == (StopReason.CONTEXT_OVERFLOW, ("too long",))


THOUGHT = ModelReply(reasoning="Hm. " * 9, finish_reason=FinishReason.LENGTH, input_tokens=70, output_tokens=2_048)
ROOMY = RunLimits(api=APILimits(max_output_tokens_per_session=20_000))
OWN_LIMIT = "The model's thoughts took all 1,024 output tokens of its reply, which is the limit of the chat model"


@rows(
    ({}, "The model's thoughts took all 2,048 output tokens"),
    ({"reasoning": "", "text": "<think>Hm."}, "The model's thoughts took all 2,048 output tokens"),
    ({"reasoning": "", "reasoning_tokens": 2_048}, "The model's thoughts took all 2,048 output tokens"),
    ({"allowed_tokens": 1_024}, OWN_LIMIT),
    ({"text": "So:"}, ""),
    ({"finish_reason": FinishReason.STOP}, ""),
    ({"reasoning": ""}, ""),
    ({"calls": (RawCall(call_id="x", tool="f", arguments="{"),)}, ""),
)
def test_reply_that_is_all_reasoning_ends_the_run_without_a_second_call(changed: dict[str, Any], message: str) -> None:
    reply = THOUGHT.model_copy(update=changed)
    effects, update = play([reply], settings(limits=ROOMY))
    assert [call.max_output_tokens for call in effects[1:]] == [2_048]
    assert update["spending"].usage.total_output_tokens == 2_048
    assert update["reply"] == (None if message else reply)
    stop = update.get("stop")
    assert (stop and stop.reason) == (StopReason.MAX_OUTPUT_TOKENS if message else None)
    assert not stop or stop.message.startswith(message)


def test_model_without_native_tools_switches_to_the_text_protocol() -> None:
    native = Profile(protocol=Protocol.NATIVE)
    without = REPLY.model_copy(update={"without_tools": True})
    assert play([without], settings(), profile=native)[1]["profile"] == Profile()
    assert "profile" not in play([REPLY], settings(), profile=native)[1]
