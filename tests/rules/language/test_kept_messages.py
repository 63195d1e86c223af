from typing import Any

from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolCall

from mendgraph.nodes.language.media import in_openai_form, media_of, media_problem, without_media
from mendgraph.nodes.language.provider_state import state_of, thoughts_of, with_state, without_secrets, without_thoughts
from mendgraph.nodes.records import JsonMap, ModelReply
from tests.row_tables import rows

THOUGHT: JsonMap = {"type": "thinking", "thinking": "Hm, tool: read_file({})", "signature": "c2ln+/=="}
SEALED: JsonMap = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
TEXT: JsonMap = {"type": "text", "text": "Look:"}
USE: JsonMap = {"type": "tool_use", "id": "x", "name": "f", "input": {"a": 1}}
ITEM: JsonMap = {"type": "function_call", "id": "fc_1", "call_id": "y", "name": "g", "arguments": '{"b": 2}'}
CALLS: list[ToolCall] = [
    {"name": "f", "args": {"a": 1}, "id": "x", "type": "tool_call"},
    {"name": "g", "args": {"b": 2}, "id": "y", "type": "tool_call"},
]
ANTHROPIC: JsonMap = {"model_provider": "anthropic", "stop_reason": "tool_use", "id": "msg_1"}


@rows(
    AIMessage("Hello", response_metadata=ANTHROPIC),
    AIMessage([TEXT, {"type": "text", "text": " more"}]),
    AIMessage("Hello", additional_kwargs={"refusal": "no", "tool_calls": [1], "reasoning_content": ""}),
    AIMessage([{"type": "thinking", "thinking": object()}]),
)
def test_message_with_only_text_and_calls_has_no_provider_state(message: AIMessage) -> None:
    assert state_of(message) == {}


def test_provider_state_is_a_json_copy_of_what_was_sent() -> None:
    sent = AIMessage(
        [THOUGHT, SEALED, "Look:", USE],
        additional_kwargs={"reasoning_details": [{"data": "x"}], "refusal": "no"},
        response_metadata=ANTHROPIC,
    )
    state = state_of(sent)
    assert state == {
        "content": [THOUGHT, SEALED, TEXT, USE],
        "additional_kwargs": {"reasoning_details": [{"data": "x"}]},
        "response_metadata": {"model_provider": "anthropic"},
    }
    assert state["content"][0] is not THOUGHT


@rows(
    (AIMessage([THOUGHT, TEXT]), THOUGHT["thinking"]),
    (AIMessage([{"type": "reasoning", "reasoning": "Hm."}, "Look:"]), "Hm."),
    (AIMessage("Look:", additional_kwargs={"reasoning_content": "Hm."}), "Hm."),
    (AIMessage("Look:", additional_kwargs={"reasoning": "Hm."}), "Hm."),
    (AIMessage("Look:", additional_kwargs={"reasoning": {"summary": []}}), ""),
    (AIMessage([SEALED, TEXT]), ""),
)
def test_thoughts_of_a_message_are_found(message: AIMessage, thoughts: str) -> None:
    assert thoughts_of(message) == thoughts


STATE: JsonMap = {
    "content": [THOUGHT, TEXT, USE, ITEM],
    "additional_kwargs": {"k": 1},
    "response_metadata": {"model_provider": "anthropic"},
}


@rows(
    ("Other", CALLS, {}, [THOUGHT, {"type": "text", "text": "Other"}, USE, ITEM]),
    ("", CALLS, {}, [THOUGHT, USE, ITEM]),
    ("Other", [], {}, [THOUGHT, {"type": "text", "text": "Other"}]),
    ("Look:", CALLS[:1], {}, [THOUGHT, TEXT, USE]),
    (
        "Look:",
        CALLS,
        {"x": {"path": "é"}, "y": {"path": "é"}},
        [THOUGHT, TEXT, {**USE, "input": {"path": "é"}}, {**ITEM, "arguments": '{"path": "é"}'}],
    ),
)
def test_reply_is_sent_back_with_exactly_its_shown_text_and_calls(
    text: str, calls: list[ToolCall], changed: dict[str, JsonMap], content: list[JsonMap]
) -> None:
    """Thoughts precede the calls that they led to; an endpoint would always refuse arguments that are not JSON."""
    message = with_state(ModelReply(text=text, provider=STATE), calls, changed)
    assert (message.content, message.text) == (content, text)


def clean(text: str) -> str:
    return text.replace("word", "***")


def text_part(word: str) -> JsonMap:
    use = {"type": "tool_use", "id": "word", "input": {"data": word, "of": {"id": [word]}}}
    return {"content": [{"type": "text", "text": f"a {word}"}, use]}


def message_with(name: str, value: Any) -> JsonMap:
    return {"additional_kwargs": {name: value}}


SIGNED = message_with("__gemini_function_call_thought_signatures__", {"x": "word"})
DETAILS = [{"text": "word", "signature": "s"}, {"text": "word"}]


@rows(
    ({}, {}),
    (STATE, STATE),
    (text_part("word"), text_part("***")),
    ({"content": [{**THOUGHT, "thinking": "word"}, TEXT]}, {"content": [TEXT]}),
    ({"content": [{**THOUGHT, "signature": "word"}]}, {"content": [{**THOUGHT, "signature": "word"}]}),
    (message_with("reasoning_content", "word"), message_with("reasoning_content", "***")),
    (message_with("reasoning_details", DETAILS), message_with("reasoning_details", [{"text": "***"}])),
    (SIGNED, SIGNED),
)
def test_state_is_redacted_and_sealed_parts_over_secrets_are_dropped(state: JsonMap, cleaned: Any) -> None:
    """Signatures are unchanged although they may look like secrets: endpoints refuse other ones."""
    assert without_secrets(state, clean) == cleaned


IMAGE, VIDEO = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}, {"type": "video", "base64": "AA"}


def test_unsupported_media_are_left_out_with_a_note() -> None:
    types = ("text", "image", "input_image", "file", "audio", "video")
    assert media_of(HumanMessage([{"type": kind} for kind in types])) == ("image", "file", "audio", "video")
    message = HumanMessage(["Hi.", {"type": "input_image"}, VIDEO], id="1")
    noted = without_media(message, ["image"])
    note = {"type": "text", "text": "[image, not shown: the model does not take it]"}
    assert (noted.id, noted.content) == ("1", ["Hi.", note, VIDEO])
    assert without_media(message, []) is message
    assert in_openai_form(HumanMessage(["Hi.", IMAGE]))
    assert [in_openai_form(HumanMessage([block])) for block in (VIDEO, {"type": "image"})] == [None, None]
    assert media_problem((), "m") == ""
    problem = "The request holds content of the kind 'image', which m does not take: say it in words, or choose a model"
    assert media_problem(("image",), "m").startswith(problem)


CALL = 'tool: read_file({"path": "a.py"})'
SAID = 'tool: delete_file({"path": "a.py"})'
FENCED = "page.html\n```html\n<think>\nx\n</think>\n```"


@rows(
    (f"<think>{SAID}</think>{CALL}", CALL, SAID),
    (f"\n <think>\n{SAID}\n</think>\n\n{CALL}\n", CALL, SAID),
    (f"<thinking>Hm.</thinking>\n{CALL}", CALL, "Hm."),
    ("[THINK]Hm.[/THINK]It adds.", "It adds.", "Hm."),
    ("<think>Hm.</think>\n<think>So.</think>It adds.", "It adds.", "Hm.\nSo."),
    ("<think>\n\n</think>\n\nIt adds.", "It adds.", ""),
    (f"<think>Hm.\n{SAID}", "", f"Hm.\n{SAID}"),
    (f"Let me see.\n{SAID}\n</think>\n\n{CALL}", CALL, f"Let me see.\n{SAID}"),
    (f"<think>A fence:\n```\nopen</think>\n{CALL}", CALL, "A fence:\n```\nopen"),
    ("<think>a [/THINK] b</thinking> c</think>d", "d", "a [/THINK] b</thinking> c"),
    ("<seed:think>Hm.</seed:think>It adds.", "It adds.", "Hm."),
    ("<reasoning>Hm.</reasoning>\nIt adds.<|im_end|>\n", "It adds.", "Hm."),
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It adds.<|return|>",
        "It adds.",
        "Hm.",
    ),
    ("It adds.<|im_end|>", "It adds.", ""),
)
def test_thoughts_are_removed_from_the_text(text: str, visible_text: str, reasoning: str) -> None:
    assert without_thoughts(ModelReply(text=text, model="m")) == ModelReply(
        text=visible_text, reasoning=reasoning, model="m"
    )


@rows(
    "It reads what stands between <think> and </think>.",
    "It ends with\n  </think> and goes on.",
    FENCED,
    'tool: write_file({"path": "a.html", "content": "<think>\\n</think>"})',
    "```\nx\n</think>\n",
)
def test_text_that_only_mentions_thinking_tags_is_unchanged(text: str) -> None:
    reply = ModelReply(text=text)
    assert without_thoughts(reply) is reply


TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", "```", "~~~~", "\n", " ", "x", CALL, "</thinking>"]),
    max_size=14,
).map("".join)


@given(TEXTS)
def test_no_text_is_added_or_lost(text: str) -> None:
    reply = without_thoughts(ModelReply(text=text))
    for part in (reply.text, reply.reasoning):
        assert set(part) <= set(text) | {"\n"}
    assert text.count("x") + text.count(CALL) == sum(
        part.count("x") + part.count(CALL) for part in (reply.text, reply.reasoning)
    )
