"""What part of a reply is a call that runs, a call that needs a correction, or a part of an answer."""

import json
import sys
from typing import Any

from hypothesis import given, strategies as st

from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.formats.recognition import recognise
from mendgraph.nodes.parse.written_calls import read_text_calls
from mendgraph.nodes.records import ToolInvocation
from tests.row_tables import rows

KNOWN = frozenset({"read_file", "edit_file", "multi_edit", "write_file", "list_files"})
TOOLS = ToolSchemas(KNOWN)

JSON_CALL = '{"name": "read_file", "arguments": {"path": "a.py"}}'
LIST = '[{"tool": "read_file", "args": {}}, {"tool": "edit_file", "args": {"path": "b"}}]'
FENCED = f"```json\n{JSON_CALL}\n```"
TAGGED = f"<tool_call>\n{JSON_CALL}\n</tool_call>"
PYTHON_CALL = 'read_file(path="a.py")'
PYTHON_FENCED = f"```python\n{PYTHON_CALL}\n```"
READ: tuple[str, dict[str, Any]] = ("read_file", {"path": "a.py"})
EDIT_CALL = '{"name": "edit_file", "arguments": {"new_str": "```\nx\n```"}}'
EDIT: tuple[str, dict[str, Any]] = ("edit_file", {"new_str": "```\nx\n```"})

READABLE = [
    (JSON_CALL, [READ]),
    (f"\n  {JSON_CALL}\n", [READ]),
    (FENCED, [READ]),
    (f"~~~ JSON title\r\n{JSON_CALL}\r\n~~~", [READ]),
    (f"```json\n{JSON_CALL}", [READ]),
    (f"Action:\n{JSON_CALL}", [READ]),
    (f"Action:\n{FENCED}", [READ]),
    (LIST, [("read_file", {}), ("edit_file", {"path": "b"})]),
    (EDIT_CALL, [EDIT]),
    (f"```json\n{EDIT_CALL}\n```", [EDIT]),
    (f"{JSON_CALL}\n{JSON_CALL}", [READ, READ]),
    (f"{FENCED}\n\n{FENCED}", [READ, READ]),
    ('{"name": "read_file", "arguments": {"path": "a.py",},}', [READ]),
    (TAGGED, [READ]),
    (f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{JSON_CALL}</tool_call>", [READ, READ]),
    (f"{TAGGED}\nThat is all.", [READ]),
    ("<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>", [READ]),
    ('[TOOL_CALLS] [{"name": "list_files"}]', [("list_files", {})]),
    ('<function=read_file>{"path": "a.py"}', [READ]),
    (f"[{PYTHON_CALL}]", [READ]),
    (f"```tool_code\n{PYTHON_CALL}\n```", [READ]),
    ('read_file({"path": "a.py"})', [READ]),
    ('{tool: "read_file", args: {"path": "a.py"}, terminal: false}', [READ]),
    (f"Done {JSON_CALL}", [READ]),
]

ASKED_AGAIN = [
    "I will read it.\nread_file({}\n",
    '{"name": "edit_file", "arguments": {"path": "a", "path": "b"}}',
    '{"name": "edit_file", "arguments": {"new_str": "x',
    '{"name": "edit_file", "arguments": {"new_str": "x"}',
    '```json\n{"name": "edit_file", "arguments": {"new_str": "x\n```\nThis edits.',
    '{"name": "read_file", "arguments": "a.py"}',
    '{"name": "read_file", "arguments": {}, "because": "I want to"}',
    '[{"name": "read_file", "arguments": {}}, {"name": "nope", "arguments": {}}]',
    '<tool_call>{"name": "nope", "arguments": {}}</tool_call>',
    '{"name": "nope", "arguments": {}}',
    '{tool: "nope", args: {}, terminal: true}',
    "<tool_call>\nread the file\n</tool_call>",
    '[TOOL_CALLS] [{"name": "read_file"',
    '[TOOL_CALLS] [{"path": "a.py"}]',
    f"{PYTHON_CALL} and\n{PYTHON_CALL}",
    f"[{PYTHON_CALL}, list_files()) and]",
    "<|python_tag|>print(1)",
    "Action: read_file\nAction Input: a.py",
    "<tool: nope({})>",
    'I use {"name": "read_file", "arguments": {"path": "a.py"}} for it.',
    'read_file({"path": "a.py"})\nThis reads the file.',
    'read_file({"path": a.py})',
    '```\nread_file({"path": "a.py"})\n```',
    PYTHON_CALL,
    PYTHON_FENCED,
    "Action: read_file('a.py')",
    'read_file(path="a.py", limit=count)',
    f"[{PYTHON_CALL}]\nreads it.",
    f"```xml\n{TAGGED}\n```",
]

QUOTING_ANSWERS = [
    f"```json\n{JSON_CALL}\n```\nThis reads the file.",
    f"{FENCED}\nAlternatively:\n{FENCED}\nDone.",
    f"calls.json\n{FENCED}",
    f"I will write it:\n```json calls.json\n{JSON_CALL}\n```",
    f"The file holds\n{FENCED}\nwhich is a call.",
    f"The file holds\n```\n{TAGGED}\n```\nand no more.",
    f"A Hermes call is:\n```xml\n{TAGGED}\n```",
    "It is:\n```\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n```",
]

ANSWERS = [
    'deploy({"path": "a.py"})',
    'Call read_file({"path": "a.py"}) to read it.',
    "read_file(path)",
    f"{PYTHON_CALL}\ndeploy(x=1)",
    'read_file(path="a.py") gives the text of the file.',
    "",
    "The bug is fixed.",
    "Use `tool: read_file({})` or <tool_call> tags.",
    f"Write `{TAGGED}` for it.",
    "Action: none is needed.",
    '{"name": "read_file", "version": "1.0"}',
    '{"name": "mendgraph", "dependencies": {}}',
    f"```python\n{JSON_CALL}\n```\nis data.",
    f"> {JSON_CALL}",
    f"It is:\n\n    {JSON_CALL}\n\nas said.",
    '```python\nprint("tool: read_file({})")\n```',
    f"```python\ntext = {PYTHON_CALL}\n```",
    f"tools.py\n```python\nprint({PYTHON_CALL})\n```",
    f"1. `{PYTHON_CALL}` reads it.\n2. `list_files()` lists them.",
    "<table>\n<tr><td>1</td></tr>\n</table>",
    "[]",
    "{}",
    "[1, 2]",
    "```\n```",
]


def calls_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls that run; [] if a part of the reply needs a correction."""
    outcomes = [call.outcome for call in read_text_calls(text, TOOLS, answered=False).calls]
    return [outcome[:2] for outcome in outcomes if isinstance(outcome, ToolInvocation)]


def errors_of(text: str) -> list[str]:
    calls = read_text_calls(text, TOOLS, answered=False).calls
    return [call.outcome.details for call in calls if not isinstance(call.outcome, ToolInvocation)]


@rows(*READABLE)
def test_complete_call_is_read_with_or_without_prose(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    for reply in (text, f"I look into it.\n\n{text}"):
        assert (calls_of(reply), errors_of(reply)) == (calls, [])


@rows(*ASKED_AGAIN)
def test_ambiguous_call_is_an_error(text: str) -> None:
    assert errors_of(text)


@rows(*QUOTING_ANSWERS)
def test_quoted_call_is_part_of_an_answer(text: str) -> None:
    written = read_text_calls(text, TOOLS, answered=False)
    assert (written.calls, bool(written.quotes)) == ([], True)


@rows(*ANSWERS)
def test_answer_is_not_read_as_a_call(text: str) -> None:
    assert read_text_calls(text, TOOLS, answered=False).calls == []


PARAGRAPHS = st.sampled_from(
    [
        "# mendgraph",
        "## How a call looks",
        "A model calls a tool by its name.",
        "The text protocol has one line for each call, for example:",
        "In the native protocol the same call is:",
        "- `read_file`: reads a file\n- `edit_file`: changes one",
        "You can send several calls in one reply.",
        "Other models print JSON, and the first thing they print is this:",
        "See `calls.json`:",
        "| form | read |\n|---|---|\n| JSON | yes |",
    ]
)
QUOTES = st.sampled_from(
    [FENCED, f"```\n{TAGGED}\n```", PYTHON_FENCED, "```\ntool: read_file({})\n```", f"    {JSON_CALL}", f"> {TAGGED}"]
)


@given(st.lists(PARAGRAPHS | QUOTES, max_size=6), PARAGRAPHS)
def test_quoted_calls_never_run(parts: list[str], paragraph: str) -> None:
    assert calls_of("\n\n".join([*parts, paragraph])) in ([], [("read_file", {})] * "".join(parts).count("tool:"))


CALL = ToolInvocation("read_file", {"path": "a.py"}, 1)
ARGUMENTS = '{"path": "a.py"}'


@rows("name", "tool", "function", "action", "tool_name")
@rows("arguments", "parameters", "args", "input", "action_input")
def test_alternative_key_names_of_a_call_are_read(arguments: str, name: str) -> None:
    assert calls_of(f'{{"{name}": "read_file", "{arguments}": {ARGUMENTS}}}') == [CALL[:2]]
    assert calls_of(f'{{"{arguments}": {ARGUMENTS}, "{name}": "read_file"}}') == [CALL[:2]]


NUMBER, NUMBERS = {"type": "integer"}, {"type": "array"}
TYPED = {
    "properties": {
        "may_be_none": {"type": ["integer", "null"]},
        "referred": {"$ref": "#/$defs/count"},
        "nowhere": {"$ref": "#/$defs/none"},
        "either": {"anyOf": [NUMBER, NUMBERS]},
        "needed": {"type": ["integer", "null"]},
    },
    "$defs": {"count": NUMBER},
    "required": ["needed"],
}


@rows(
    ("may_be_none", "null", None),
    ("may_be_none", "None", None),
    ("may_be_none", "3", 3),
    ("needed", "None", None),
    ("referred", "3", 3),
    ("nowhere", "3", "3"),
    ("either", "[1]", [1]),
    ("either", "['a', True]", ["a", True]),
    ("either", "[a", "[a"),
    ("other", "3", "3"),
)
def test_raw_value_is_converted_by_its_argument_schema(key: str, text: str, value: Any) -> None:
    reply = f"<function=edit_file>\n<parameter={key}>\n{text}\n</parameter>\n</function>"
    tools = ToolSchemas(KNOWN, lambda _: TYPED)
    [call] = read_text_calls(reply, tools, answered=False).calls
    assert isinstance(call.outcome, ToolInvocation)
    assert call.outcome[1] == {key: value}


JOINT = "</parameter>\n<parameter=new_str>"


@rows(
    ("", ["edit_file", "read_file"]),
    ("An XML call has <parameter=a>.", ["edit_file", "read_file"]),
    (f"<function=f>\n<parameter=old_str>\nx\n{JOINT}\ny\n</parameter>", ["", ""]),
    ("<function=read_file>\n<parameter=path>\na.py", ["edit_file", ""]),
)
def test_call_that_may_be_joined_from_shown_text_is_an_error(result_text: str, tools: list[str]) -> None:
    edit = f"<function=edit_file>\n<parameter=old_str>\na\n{JOINT}\nb\n</parameter>\n</function>"
    text = f"{edit}\n<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>"
    calls = read_text_calls(text, TOOLS, lambda: [result_text], answered=False).calls
    names = [call.outcome[0] if isinstance(call.outcome, ToolInvocation) else "" for call in calls]
    assert names == tools


@rows(
    (f'{{"function": {JSON_CALL}}}', [READ]),
    (f'{{"type": "function", "id": "call_1", "function": {JSON_CALL}}}', [READ]),
    (f'{{"name": "read_file", "arguments": {json.dumps(ARGUMENTS)}}}', [READ]),
    (JSON_CALL.replace("a.py", "a\nb"), [("read_file", {"path": "a\nb"})]),
    (f"<tools>\n[{JSON_CALL}]\n</tools>\n{TAGGED}", [READ, READ]),
    (TAGGED.replace("a.py", "</tool_call>"), [("read_file", {"path": "</tool_call>"})]),
    ("[1]", []),
    ('{"name": ["read_file"], "arguments": {}}', []),
    ('{"name": "read_file", "arguments": "{\\"path\\": "}', []),
    ('{"name": "read_file", "tool": "read_file", "arguments": {}}', []),
    ('{"type": "message", "name": "read_file", "arguments": {}}', []),
)
def test_complete_json_is_read(body: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert calls_of(body) == calls


@rows(
    *(
        "{",
        "[",
        '{"a":',
        "{}",
        "<tool_call>",
        "read_file(",
        "<function=read_file>",
        "<function=read_file><parameter=a>",
    ),
    *('{"name": "read_file", "arguments": ', '{"name": "x",\n', "<read_file><a>", "[read_file(", '<invoke name="a">'),
    *("```\n<tool_call>\n", "<|tool_call>call:a{b:", "<arg_key>", '<tool_call>{"name": "a", "arguments": {}}'),
    *(
        "tool: read_file({\n",
        "<tool_call>a<arg_key>",
        "✿FUNCTION✿",
        "<｜tool▁call▁begin｜>",
        "`<tool_call>",
        "a <tool_call> b",
    ),
)
def test_time_for_a_hostile_reply_is_linear(unit: str) -> None:
    small, large = (steps_of(unit * (size // len(unit))) for size in (2_000, 8_000))
    assert large <= 6 * small + 2_000


def steps_of(text: str) -> int:
    """The number of Python lines executed to read this text."""
    steps = 0

    def count(_: Any, event: str, __: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        recognise(text, TOOLS)
    finally:
        sys.settrace(before)
    return steps
