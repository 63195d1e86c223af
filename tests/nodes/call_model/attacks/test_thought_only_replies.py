"""Models whose thoughts take all the room of a reply, and those that turn out to have no native tools."""

import pytest

from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.exchange import CallSettings
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.call_model.model import Call, Effect
from mendgraph.nodes.records import FinishReason, ModelReply, Profile, Protocol, RawCall, StopReason
from tests.nodes.call_model.test_exchange import REPLY, play, settings_of, state

THOUGHT = ModelReply(reasoning="Hm. " * 9, finish_reason=FinishReason.LENGTH, input_tokens=70, output_tokens=2_048)
TAGGED = THOUGHT.model_copy(update={"reasoning": "", "text": "<think>Hm."})
COUNTED = THOUGHT.model_copy(update={"reasoning": "", "reasoning_tokens": 2_048})


def roomy(session: int, per_call: int | None = 2_048) -> CallSettings:
    api = APILimits(max_output_tokens_per_session=session)
    return settings_of(limits=RunLimits(api=api, max_output_tokens_per_call=per_call))


def asked_for(effects: list[Effect]) -> list[int]:
    return [effect.max_output_tokens for effect in effects if isinstance(effect, Call)]


@pytest.mark.parametrize("thought", [THOUGHT, TAGGED, COUNTED], ids=["reasoning", "in the text", "only counted"])
def test_a_model_that_thinks_longer_than_the_budget_lets_it_ends_the_run(thought: ModelReply) -> None:
    effects, update = play([thought], roomy(20_000), state())
    assert (len(asked_for(effects)), update["reply"]) == (1, None)
    assert update["stop"].reason is StopReason.MAX_OUTPUT_TOKENS
    assert update["stop"].message.startswith("The model's thoughts took all 2,048 output tokens")
    assert update["spending"].usage.total_output_tokens == 2_048


def test_a_limit_of_the_chat_model_itself_is_named_and_no_second_call_is_paid() -> None:
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


def test_a_model_without_native_tools_is_talked_to_in_text_from_then_on() -> None:
    given = state(profile=Profile(protocol=Protocol.NATIVE))
    assert play([REPLY.model_copy(update={"without_tools": True})], settings_of(), given)[1]["profile"] == Profile()
    assert "profile" not in play([REPLY], settings_of(), given)[1]
