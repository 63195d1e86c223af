import pytest
from hypothesis import given, strategies as st

from nodes.language.thoughts import without_thoughts
from nodes.parse.cutting import kept_part, was_cut
from nodes.records import FinishReason, ModelReply, RawCall

TOOLS = frozenset({"read_file"})
CALL = 'tool: read_file({"path": "a.py"})'


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f'{CALL}\ntool_result({{"ok":true}})\ntool: read_file({{"path": "b.py"}})', CALL),
        (f"{CALL}\n\nuser: thank you", CALL),
        ('tool_result({"ok":true})', ""),
    ],
)
@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
def test_what_a_model_invents_is_cut_and_the_rest_is_whole(text: str, kept: str, finish: FinishReason) -> None:
    reply = ModelReply(text=text, finish_reason=finish, model="m")
    assert kept_part(reply, TOOLS) == ModelReply(text=kept, model="m")


@pytest.mark.parametrize(
    "reply",
    [
        ModelReply(text=CALL),
        ModelReply(text="It prints user: names.", finish_reason=FinishReason.LENGTH),
        ModelReply(text='{"name": "read_file", "arguments": {"path": "a\nuser: b"}}'),
        ModelReply(text=f"{CALL}\nuser: x", calls=(RawCall(call_id="1", tool="read_file", arguments="{}"),)),
    ],
)
def test_a_reply_that_invents_nothing_is_left_as_it_is(reply: ModelReply) -> None:
    assert kept_part(reply, TOOLS) is reply


@given(st.text(max_size=200))
def test_what_is_kept_begins_the_reply(text: str) -> None:
    assert text.startswith(kept_part(ModelReply(text=text), TOOLS).text)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        (CALL, False),
        (f"<think>Hm.</think>\n{CALL}", False),
        (f"{CALL}\n\nuser: thank you", True),
        (f"<think>Hm.</think>\n{CALL}\n\nuser: thank you", True),
    ],
)
def test_thoughts_are_not_what_was_cut(text: str, cut: bool) -> None:
    said = ModelReply(text=text)
    assert was_cut(said, kept_part(without_thoughts(said), TOOLS)) is cut


def test_a_filtered_reply_stays_filtered() -> None:
    reply = ModelReply(text=f"{CALL}\n\nuser: thank you", finish_reason=FinishReason.CONTENT_FILTER)
    assert kept_part(reply, TOOLS) == ModelReply(text=CALL, finish_reason=FinishReason.CONTENT_FILTER)
