import pytest

from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.estimates import estimate_tokens
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import FinishReason, ModelReply, ProviderErrorKind, ProviderFailure, RawCall
from tests.doubles.replies import NO_USAGE, Calls, Cut, Message, Refuse, Say, Think
from tests.doubles.scripted_model import ScriptedModel, reply_of

CALL = Call(prompt=Prompt(messages=({"role": "user", "content": "x" * 30},)), max_output_tokens=20, timeout_s=1.0)
FITS = estimate_tokens(CALL.prompt.size, messages=1)
FAILURE = ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message="late")


def test_lines_come_in_order_and_calls_are_kept() -> None:
    said: list[str] = []
    model = ScriptedModel([Say("one"), FAILURE], then=Say("enough"))
    assert [model.complete(CALL, said.append) for _ in range(4)] == [
        ModelReply(text="one"),
        FAILURE,
        ModelReply(text="enough"),
        ModelReply(text="enough"),
    ]
    assert (said, model.calls) == (["one", "enough", "enough"], [CALL] * 4)


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        (Say("a", usage=(9, 7)), ModelReply(text="a", input_tokens=9, output_tokens=7)),
        (Say("a", usage=(9_000, 7_000)), ModelReply(text="a", input_tokens=FITS, output_tokens=20)),
        (Say("a", usage=NO_USAGE), ModelReply(text="a")),
        (Think("Hm.", "a"), ModelReply(text="a", reasoning="Hm.")),
        (Cut("hal"), ModelReply(text="hal", finish_reason=FinishReason.LENGTH)),
        (Refuse("no"), ModelReply(refusal="no", finish_reason=FinishReason.REFUSAL)),
        (
            Calls([("read", "{}"), ("write", "{", "mine")]),
            ModelReply(
                calls=(
                    RawCall(call_id="call_3_1", tool="read", arguments="{}"),
                    RawCall(call_id="mine", tool="write", arguments="{"),
                ),
                finish_reason=FinishReason.TOOL_CALLS,
            ),
        ),
    ],
)
def test_a_message_becomes_a_reply(message: Message, reply: ModelReply) -> None:
    assert reply_of(message, 3, CALL) == reply
