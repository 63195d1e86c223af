import pytest
from hypothesis import given, strategies as st

from nodes.parse.cutting import Cut, cut_invented

KNOWN = frozenset({"read_file", "write_file"})
CALL = 'tool: read_file({"path": "a.py"})\n'
RESULT = 'tool_result({"tool":"read_file","ok":true,"data":{"content":"x"}})\n'


@pytest.mark.parametrize(
    ("kept", "cut"),
    [
        ("", RESULT),
        ("I read it.\n", f"{RESULT}tool: write_file({{}})"),
        (CALL, f"{RESULT}{CALL}"),
        (f"{CALL}{CALL}\n", RESULT),
        (f"{CALL}\n", "user: thanks"),
        (CALL, f"user: {RESULT}"),
        (CALL, "User:\nNow edit it."),
        (CALL, "  assistant: I see."),
        (CALL, "### User\nNow edit it."),
        (CALL, "## tool result:\nx"),
        (CALL, "tool_result: x"),
        (CALL, "<|im_start|>user\nx"),
        (CALL, "<|im_end|>\n"),
        (CALL, "<tool_response>\nx"),
        (CALL, "[INST] x"),
        ("Look:\n```json\n{}\n```\n" + CALL, "Human: x"),
        ('{"name": "read_file", "arguments": {}}\n', "user: x"),
        ('```json\n{"name": "read_file", "arguments": {}}\n```\n', "user: x"),
        ("<tool_call>\n{}\n</tool_call>\n", "<tool_response>\nx"),
        ("Action: read_file\nAction Input: {}\n", "Observation: x"),
        ('tool: write_file({"path": "a"})\n```\nuser: x\n```\n', "user: x"),
        ('tool: write_file({"content": "\nuser: x\n"})\n', "user: x"),
    ],
)
def test_what_was_invented_is_cut(kept: str, cut: str) -> None:
    assert cut_invented(kept + cut, KNOWN) == Cut(kept, cut)


@pytest.mark.parametrize(
    "text",
    [
        "",
        CALL,
        f"I read it first.\n{CALL}Then I edit it.",
        "user: what one types is marked so.\nassistant: that is the model.",
        "### User\n\nWho uses it.",
        "Observation: the test fails.",
        "A result is a line such as `tool_result({...})`.",
        f"  {RESULT}",
        f"The log:\n```\n{RESULT}```\n",
        'tool: write_file({"path": "a", "content": "\ntool_result(x)\nuser: x\n"})',
        f'tool: write_file({{"path": "a"}})\n```\n{RESULT}user: x\n```\n',
        f"{CALL}```\nuser: x\n```\n",
        f"{CALL}users: all of them\n",
        f"{CALL}### User guide\n",
        f"{CALL}A user: x\n",
    ],
)
def test_what_was_not_invented_stays(text: str) -> None:
    assert cut_invented(text, KNOWN) == Cut(text, "")


def test_without_the_tools_a_block_is_a_fence_like_any_other() -> None:
    text = f'tool: write_file({{"path": "a"}})\n```\n{RESULT}```\n'
    assert cut_invented(text + RESULT) == Cut(text, RESULT)


LINES = st.sampled_from(
    [CALL, RESULT, "user: x\n", "```\n", "text\n", "\n", 'tool: write_file({"path": "a"})\n', "{\n"]
)


@given(st.lists(LINES, max_size=10).map("".join))
def test_nothing_is_lost_and_what_is_kept_is_kept_again(text: str) -> None:
    kept, cut = cut_invented(text, KNOWN)
    assert kept + cut == text
    assert cut_invented(kept, KNOWN) == Cut(kept, "")


@given(st.text())
def test_any_text_is_cut_at_a_line_or_not_at_all(text: str) -> None:
    kept, cut = cut_invented(text, KNOWN)
    assert kept.splitlines() + cut.splitlines() == text.splitlines()
