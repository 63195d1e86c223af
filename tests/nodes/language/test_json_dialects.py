import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.language.dialects import (
    Reader,
    read_function_tags,
    read_json,
    read_python_tag,
    read_react,
    read_tool_call_tags,
    read_tool_calls_mark,
)
from nodes.records import ToolInvocation

KNOWN = frozenset({"read_file", "edit_file", "multi_edit", "my-tool"})
ARGUMENTS = '{"path": "a.py"}'
CALL = f'{{"name": "read_file", "arguments": {ARGUMENTS}}}'
READ = ToolInvocation("read_file", {"path": "a.py"}, 0)
PAIRS = '"old_str": "1", "new_str": "2", "old_str": "3", "new_str": "4"'
EDITS = [{"old_str": "1", "new_str": "2"}, {"old_str": "3", "new_str": "4"}]


@pytest.mark.parametrize("name", ["name", "tool", "function", "action"])
@pytest.mark.parametrize("arguments", ["arguments", "parameters", "args", "input", "action_input"])
def test_a_call_goes_by_many_names(name: str, arguments: str) -> None:
    assert read_json(f'{{"{name}": "read_file", "{arguments}": {ARGUMENTS}}}', KNOWN) == [READ]
    assert read_json(f'{{"{arguments}": {ARGUMENTS}, "{name}": "read_file"}}', KNOWN) == [READ]


@pytest.mark.parametrize(
    ("read", "body", "calls"),
    [
        (read_json, f"[{CALL}, {CALL}]", [READ, READ]),
        (read_json, f"{CALL}\n{CALL}{CALL}", [READ, READ, READ]),
        (read_json, f'{{"function": {CALL}}}', [READ]),
        (read_json, f'{{"type": "function", "id": "call_1", "function": {CALL}}}', [READ]),
        (read_json, f'{{"type": "tool_use", "id": "t", "name": "read_file", "input": {ARGUMENTS}}}', [READ]),
        (read_json, f'{{"name": "read_file", "arguments": {json.dumps(ARGUMENTS)}}}', [READ]),
        (read_json, f'{{"function": {{"name": "read_file", "arguments": {json.dumps(ARGUMENTS)}}}}}', [READ]),
        (read_json, '{"name": "read_file", "arguments": {}}', [ToolInvocation("read_file", {}, 0)]),
        (read_json, CALL.replace("a.py", "a\nb"), [ToolInvocation("read_file", {"path": "a\nb"}, 0)]),
        (read_json, '{"name": "read_file", "arguments": {"path": "a.py", }, }', [READ]),
        (
            read_json,
            f'{{"name": "edit_file", "arguments": {{"path": "a.py", {PAIRS}}}}}',
            [ToolInvocation("multi_edit", {"path": "a.py", "edits": EDITS}, 0)],
        ),
        (read_tool_call_tags, f"<tool_call>{CALL}</tool_call>", [READ]),
        (read_tool_call_tags, f"<tools>\n[{CALL}]\n</tools>\n<tool_call>\n{CALL}\n</tool_call>", [READ, READ]),
        (
            read_tool_call_tags,
            f"<tool_call>{CALL.replace('a.py', '</tool_call>')}</tool_call>",
            [ToolInvocation("read_file", {"path": "</tool_call>"}, 0)],
        ),
        (read_function_tags, f"<function=read_file>{ARGUMENTS}</function>", [READ]),
        (
            read_function_tags,
            f"<function=my-tool>{{}}</function>\n<function=read_file>{ARGUMENTS}</function>",
            [ToolInvocation("my-tool", {}, 0), READ],
        ),
        (read_tool_calls_mark, f"[TOOL_CALLS] [{CALL}, {CALL}]", [READ, READ]),
        (read_tool_calls_mark, f"[TOOL_CALLS]{CALL}", [READ]),
        (read_tool_calls_mark, f"[TOOL_CALLS]read_file{ARGUMENTS}", [READ]),
        (read_tool_calls_mark, f"[TOOL_CALLS]read_file[ARGS]{ARGUMENTS}[TOOL_CALLS]my-tool[ARGS]{{}}",
         [READ, ToolInvocation("my-tool", {}, 0)]),
        (read_tool_calls_mark, f"[TOOL_CALLS]read_file[CALL_ID]abc123XYZ[ARGS]{ARGUMENTS}", [READ]),
        (read_tool_calls_mark, f"read_file[ARGS]{ARGUMENTS}", [READ]),
        (read_python_tag, f"<|python_tag|>{CALL}", [READ]),
        (read_python_tag, f"<|python_tag|>{CALL}; {CALL}<|eom_id|>", [READ, READ]),
        (read_react, f"Action: read_file\nAction Input: {ARGUMENTS}", [READ]),
        (read_react, f"read_file\nAction Input: {ARGUMENTS}", [READ]),
        (read_react, f"Action: `read_file`\r\nAction Input:\n{ARGUMENTS}\nAction: read_file\nAction input: {ARGUMENTS}",
         [READ, READ]),
    ],
)  # fmt: skip
def test_each_form_is_read(read: Reader, body: str, calls: list[ToolInvocation]) -> None:
    assert read(body, KNOWN) == calls


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (read_json, ""),
        (read_json, "[]"),
        (read_json, "[1]"),
        (read_json, '"read_file"'),
        (read_json, CALL[:-1]),
        (read_json, f"{CALL} and so on"),
        (read_json, f"{CALL},\n{CALL}"),
        (read_json, '{"name": "nope", "arguments": {}}'),
        (read_json, '{"name": ["read_file"], "arguments": {}}'),
        (read_json, '{"name": "read_file", "arguments": null}'),
        (read_json, '{"name": "read_file", "arguments": []}'),
        (read_json, '{"name": "read_file", "arguments": "a.py"}'),
        (read_json, '{"name": "read_file", "arguments": "{\\"path\\": "}'),
        (read_json, '{"name": "read_file"}'),
        (read_json, '{"name": "read_file", "tool": "read_file", "arguments": {}}'),
        (read_json, '{"name": "read_file", "arguments": {}, "args": {}}'),
        (read_json, '{"name": "read_file", "arguments": {}, "id": 1}'),
        (read_json, '{"type": "message", "name": "read_file", "arguments": {}}'),
        (read_json, '{"type": ["function"], "name": "read_file", "arguments": {}}'),
        (read_json, f'{{"function": {CALL}, "x": 1}}'),
        (read_json, '{"name": "read_file", "description": "Reads.", "parameters": {}}'),
        (read_json, "{'name': 'read_file', 'arguments': {}}"),
        (read_json, f'{{"name": "read_file", "arguments": {{{PAIRS}}}}}'),
        (read_json, f'{{"name": "multi_edit", "arguments": {{"path": "a", "edits": [{{{PAIRS}}}]}}}}'),
        (read_json, '{"name": "read_file", "arguments": {"path": "a", "path": "b"}}'),
        (read_tool_call_tags, CALL),
        (read_tool_call_tags, f"<tool_call>{CALL}"),
        (read_tool_call_tags, f"<tool_call>{CALL}</tool_call> done"),
        (read_function_tags, f"<function=nope>{ARGUMENTS}</function>"),
        (read_function_tags, f"<function=read_file>{ARGUMENTS}"),
        (read_function_tags, "<function=read_file>[1]</function>"),
        (read_tool_calls_mark, CALL),
        (read_tool_calls_mark, f"read_file{ARGUMENTS}"),
        (read_tool_calls_mark, "[TOOL_CALLS]"),
        (read_python_tag, CALL),
        (read_python_tag, "<|python_tag|>print(1)"),
        (read_react, ARGUMENTS),
        (read_react, "Action: read_file\nAction Input: a.py"),
        (read_react, f"Action: nope\nAction Input: {ARGUMENTS}"),
        (read_react, f"Action: read_file\nAction Input: {ARGUMENTS}\nObservation: done"),
    ],
)
def test_whatever_is_not_whole_or_not_only_calls_is_not_read(read: Reader, body: str) -> None:
    assert read(body, KNOWN) is None


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.text(), values, max_size=3), min_size=1, max_size=3), st.sampled_from([None, 2]))
def test_arguments_come_through_unchanged(arguments: list[dict[str, Any]], indent: int | None) -> None:
    calls = [{"name": "read_file", "arguments": each} for each in arguments]
    expected = [ToolInvocation("read_file", each, 0) for each in arguments]
    assert read_json("\n".join(json.dumps(call, indent=indent) for call in calls), KNOWN) == expected
    tags = "".join(f"<function=read_file>{json.dumps(each, ensure_ascii=False)}</function>" for each in arguments)
    assert read_function_tags(tags, KNOWN) == expected


@pytest.mark.parametrize("unit", ["{", "[", '{"a":', "{}", "<tool_call>", "[TOOL_CALLS]", ";", "Action: read_file\n"])
def test_endless_texts_are_no_calls(unit: str) -> None:
    readers = (
        read_json, read_tool_call_tags, read_function_tags, read_tool_calls_mark, read_python_tag, read_react,
    )  # fmt: skip
    assert [read(unit * (100_000 // len(unit)), KNOWN) for read in readers] == [None] * len(readers)
