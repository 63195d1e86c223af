import pytest

from mendgraph.nodes.language.content_blocks import without_thoughts
from mendgraph.nodes.parse.reading import cut_invented, kept_part, was_cut
from mendgraph.nodes.records import ModelReply

TOOLS = frozenset({"read_file"})
CALL = 'tool: read_file({"path": "a.py"})'


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


KNOWN = frozenset({"read_file", "write_file"})
CALL_LINE = 'tool: read_file({"path": "a.py"})\n'
RESULT = 'tool_result({"tool":"read_file","ok":true,"data":{"content":"x"}})\n'


@pytest.mark.parametrize(
    ("kept", "cut"),
    [
        ("", RESULT),
        ("I read it.\n", f"{RESULT}tool: write_file({{}})"),
        (CALL_LINE, f"{RESULT}{CALL_LINE}"),
        (f"{CALL_LINE}{CALL_LINE}\n", RESULT),
        (f"{CALL_LINE}\n", "user: thanks"),
        (CALL_LINE, f"user: {RESULT}"),
        (CALL_LINE, "User:\nNow edit it."),
        (CALL_LINE, "  assistant: I see."),
        (CALL_LINE, "### User\nNow edit it."),
        (CALL_LINE, "## tool result:\nx"),
        (CALL_LINE, "tool_result: x"),
        (CALL_LINE, "<|im_start|>user\nx"),
        (CALL_LINE, "<|im_end|>\n"),
        (CALL_LINE, "<tool_response>\nx"),
        (CALL_LINE, "[INST] x"),
        ("Look:\n```json\n{}\n```\n" + CALL_LINE, "Human: x"),
        ('{"name": "read_file", "arguments": {}}\n', "user: x"),
        ('```json\n{"name": "read_file", "arguments": {}}\n```\n', "user: x"),
        ("<tool_call>\n{}\n</tool_call>\n", "<tool_response>\nx"),
        ("Action: read_file\nAction Input: {}\n", "Observation: x"),
        ('tool: write_file({"path": "a"})\n```\nuser: x\n```\n', "user: x"),
        ('tool: write_file({"content": "\nuser: x\n"})\n', "user: x"),
    ],
)
def test_what_was_invented_is_cut(kept: str, cut: str) -> None:
    assert cut_invented(kept + cut, KNOWN) == kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        CALL_LINE,
        f"I read it first.\n{CALL_LINE}Then I edit it.",
        "user: what one types is marked so.\nassistant: that is the model.",
        "### User\n\nWho uses it.",
        "Observation: the test fails.",
        "A result is a line such as `tool_result({...})`.",
        f"  {RESULT}",
        f"The log:\n```\n{RESULT}```\n",
        'tool: write_file({"path": "a", "content": "\ntool_result(x)\nuser: x\n"})',
        f'tool: write_file({{"path": "a"}})\n```\n{RESULT}user: x\n```\n',
        f"{CALL_LINE}```\nuser: x\n```\n",
        f"{CALL_LINE}users: all of them\n",
        f"{CALL_LINE}### User guide\n",
        f"{CALL_LINE}A user: x\n",
    ],
)
def test_what_was_not_invented_stays(text: str) -> None:
    assert cut_invented(text, KNOWN) == text
