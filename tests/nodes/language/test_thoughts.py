import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.language.content_blocks import without_thoughts
from mendgraph.nodes.records import ModelReply

CALL = 'tool: read_file({"path": "a.py"})'
THOUGHT = 'tool: delete_file({"path": "a.py"})'
FENCED = "page.html\n```html\n<think>\nx\n</think>\n```"


@pytest.mark.parametrize(
    ("text", "said", "reasoning"),
    [
        (f"<think>{THOUGHT}</think>{CALL}", CALL, THOUGHT),
        (f"\n <think>\n{THOUGHT}\n</think>\n\n{CALL}\n", CALL, THOUGHT),
        (f"<thinking>Hm.</thinking>\n{CALL}", CALL, "Hm."),
        ("[THINK]Hm.[/THINK]It adds.", "It adds.", "Hm."),
        ("<think>Hm.</think>\n<think>So.</think>It adds.", "It adds.", "Hm.\nSo."),
        ("<think>Hm.</think><think>So.</think>It adds.", "It adds.", "Hm.\nSo."),
        ("<think>\n\n</think>\n\nIt adds.", "It adds.", ""),
        ("<think></think>", "", ""),
        ("<think>Hm.</think>", "", "Hm."),
        (f"<think>Hm.\n{THOUGHT}", "", f"Hm.\n{THOUGHT}"),
        (f"Let me see.\n{THOUGHT}\n</think>\n\n{CALL}", CALL, f"Let me see.\n{THOUGHT}"),
        ("```python\nx = 1\n```\nSo.\n</think>\nIt adds.", "It adds.", "```python\nx = 1\n```\nSo."),
        (f"<think>A fence:\n```\nopen</think>\n{CALL}", CALL, "A fence:\n```\nopen"),
        ("<think>a [/THINK] b</thinking> c</think>d", "d", "a [/THINK] b</thinking> c"),
        (f"<think>Hm.</think>\n{FENCED}", FENCED, "Hm."),
    ],
)
def test_thoughts_are_taken_from_the_text(text: str, said: str, reasoning: str) -> None:
    assert without_thoughts(ModelReply(text=text, model="m")) == ModelReply(text=said, reasoning=reasoning, model="m")


@pytest.mark.parametrize(
    "text",
    [
        "It adds.",
        "It reads what stands between <think> and </think>.",
        "The tags are:\n<think> opens it.",
        "It ends with\n  </think> and goes on.",
        FENCED,
        'tool: write_file({"path": "a.html", "content": "<think>\\n</think>"})',
        "<Think>No tag of a model.</Think>",
        "```\nx\n</think>\n",
    ],
)
def test_a_text_that_only_speaks_of_such_tags_is_left_as_it_is(text: str) -> None:
    reply = ModelReply(text=text)
    assert without_thoughts(reply) is reply


TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", "```", "~~~~", "\n", " ", "x", CALL, "</thinking>"]),
    max_size=14,
).map("".join)


@given(TEXTS)
def test_nothing_is_invented_and_no_word_is_lost(text: str) -> None:
    reply = without_thoughts(ModelReply(text=text))
    for part in (reply.text, reply.reasoning):
        assert set(part) <= set(text) | {"\n"}
    assert text.count("x") + text.count(CALL) == sum(
        part.count("x") + part.count(CALL) for part in (reply.text, reply.reasoning)
    )
