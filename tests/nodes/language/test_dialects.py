from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.language.dialects import DIALECTS, describe_dialect, looks_like_call, read_dialect
from nodes.records import ToolInvocation

KNOWN = frozenset({"read_file", "edit_file"})
JSON_CALL = '{"name": "read_file", "arguments": {"path": "a.py"}}'
LIST = '[{"tool": "read_file", "args": {}}, {"tool": "edit_file", "args": {"path": "b"}}]'
READ: tuple[str, dict[str, Any]] = ("read_file", {"path": "a.py"})
EDIT_CALL = '{"name": "edit_file", "arguments": {"new_str": "```\nx\n```"}}'
EDIT: tuple[str, dict[str, Any]] = ("edit_file", {"new_str": "```\nx\n```"})

READABLE = [
    ("json", JSON_CALL, [READ]),
    ("json", f"\n  {JSON_CALL}\n", [READ]),
    ("json", f"```json\n{JSON_CALL}\n```", [READ]),
    ("json", f"```\n{JSON_CALL}\n```\n", [READ]),
    ("json", f"~~~ JSON title\r\n{JSON_CALL}\r\n~~~", [READ]),
    ("json", f"```json\n{JSON_CALL}", [READ]),
    ("json", f"Action:\n{JSON_CALL}", [READ]),
    ("json", f"Action:\n```json\n{JSON_CALL}\n```", [READ]),
    ("json", f"Tool call: {JSON_CALL}", [READ]),
    ("json", '{"tool": "read_file", "parameters": {"path": "a.py"}}', [READ]),
    ("json", '{"args": {"path": "a.py"}, "name": "read_file"}', [READ]),
    ("json", LIST, [("read_file", {}), ("edit_file", {"path": "b"})]),
    ("json", EDIT_CALL, [EDIT]),
    ("json", f"```json\n{EDIT_CALL}\n```", [EDIT]),
    ("tool_call_tags", f"<tool_call>\n{JSON_CALL}\n</tool_call>", [READ]),
    ("tool_call_tags", f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{JSON_CALL}</tool_call>", [READ, READ]),
    ("tool_call_tags", f"```xml\n<tool_call>\n{JSON_CALL}\n</tool_call>\n```", [READ]),
    ("tool_tag", '<tool: read_file({"path": "a.py"})>', [READ]),
    ("tool_tag", '<tool: read_file({"path": "a.py"}) />', [READ]),
    ("tool_line", '```\ntool: read_file({"path": "a.py"})\n```', [READ]),
    ("tool_line", '```python\ntool: read_file({"path": "a.py"})\n```', [READ]),
    ("tool_line", 'tool: read_file({"path": "a.py"})', [READ]),
    ("bare_call", 'read_file({"path": "a.py"})', [READ]),
    ("bare_call", '```\nread_file({"path": "a.py"})\n```', [READ]),
]

ONLY_LOOKS = [
    ("json", f"I will read the file first.\n\n```json\n{JSON_CALL}\n```"),
    ("json", f"```json\n{JSON_CALL}\n```\nThis reads the file."),
    ("json", f"I will read the file.\n{JSON_CALL}"),
    ("json", f"{JSON_CALL}\n{JSON_CALL}"),
    ("json", f"```json\n{JSON_CALL}\n```\n```json\n{JSON_CALL}\n```"),
    ("json", '{"name": "edit_file", "arguments": {"path": "a", "path": "b"}}'),
    ("json", '{"name": "edit_file", "arguments": {"new_str": "x'),
    ("json", '{"name": "edit_file", "arguments": "{}"}'),
    ("json", '{"name": "read_file", "arguments": {}, "id": 1}'),
    ("json", '[{"name": "read_file", "arguments": {}}, {"name": "nope", "arguments": {}}]'),
    ("tool_call_tags", f"Reading.\n<tool_call>\n{JSON_CALL}\n</tool_call>"),
    ("tool_call_tags", f"<tool_call>\n{JSON_CALL}\n"),
    ("tool_call_tags", '<tool_call>{"name": "nope", "arguments": {}}</tool_call>'),
    ("tool_tag", "<tool: nope({})>"),
    ("tool_tag", "<tool: read_file({path})>"),
    ("tool_line", "```\ntool: read_file({})\ntool: read_file({})\n```"),
    ("tool_line", "Let me look:\n```\ntool: read_file({})\n```"),
    ("bare_call", 'read_file({"path": "a.py"})\nThis reads the file.'),
    ("bare_call", 'read_file({"path": a.py})'),
]

ANSWERS = [
    'deploy({"path": "a.py"})',
    'Call read_file({"path": "a.py"}) to read it.',
    "read_file(path)",
    "",
    "The bug is fixed.",
    "Use `tool: read_file({})` or <tool_call> tags.",
    "Action: none is needed.",
    '{"name": "nope", "arguments": {}}',
    '```json\n{"name": "delete", "arguments": {"path": "a"}}\n```',
    '{"name": "read_file", "version": "1.0"}',
    '{"name": "mendgraph", "dependencies": {}}',
    f"The file holds\n```json\n{JSON_CALL}\n```\nwhich is a call.",
    f"The file holds\n```\n<tool_call>\n{JSON_CALL}\n</tool_call>\n```\nand no more.",
    f"```python\n{JSON_CALL}\n```",
    f"The test data is\n```python\n{JSON_CALL}\n```",
    f"> {JSON_CALL}",
    '```python\nprint("tool: read_file({})")\n```',
    "[]",
    "{}",
    "[1, 2]",
    "```\n```",
]


@pytest.mark.parametrize(("dialect", "text", "calls"), READABLE)
def test_a_reply_that_is_nothing_but_a_call_is_read(
    dialect: str, text: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    assert read_dialect(text, KNOWN) == [ToolInvocation(tool, arguments, 0) for tool, arguments in calls]
    assert looks_like_call(text, KNOWN) == dialect


@pytest.mark.parametrize(("dialect", "text"), ONLY_LOOKS)
def test_a_doubtful_call_is_noticed_but_not_read(dialect: str, text: str) -> None:
    assert read_dialect(text, KNOWN) is None
    assert looks_like_call(text, KNOWN) == dialect


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_stays_an_answer(text: str) -> None:
    assert read_dialect(text, KNOWN) is None
    assert looks_like_call(text, KNOWN) is None


def test_every_dialect_has_cases() -> None:
    names = {dialect.name for dialect in DIALECTS}
    assert names == {case[0] for case in READABLE} == {case[0] for case in ONLY_LOOKS}


PIECES = [
    "```",
    "```json",
    "<tool_call>",
    "</tool_call>",
    "Action:",
    "tool:",
    "read_file({})",
    "text",
    "[",
    '{"name":"read_file","args":',
]
pieces = st.sampled_from([*PIECES, "\n", "<tool: read_file({})>", JSON_CALL, LIST])


@given(st.lists(pieces, max_size=12).map("".join) | st.text())
def test_whatever_is_read_is_known_and_noticed(text: str) -> None:
    calls = read_dialect(text, KNOWN)
    if calls is not None:
        assert calls
        assert {call.tool_name for call in calls} <= KNOWN
        assert looks_like_call(text, KNOWN) is not None


def test_the_description_names_the_form_and_no_protocol() -> None:
    assert describe_dialect("json") == (
        "The reply looks like a tool call in the form 'json', which does not run. Nothing was executed."
    )
