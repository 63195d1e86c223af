import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.language.dialects import fenced_calls, looks_like_call, recognised
from mendgraph.nodes.records import ToolInvocation

KNOWN = frozenset({"read_file", "edit_file", "multi_edit", "write_file", "list_files"})

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
    (f"```xml\n{TAGGED}\n```", [READ]),
]

ONLY_LOOKS = [
    ("json", f"```json\n{JSON_CALL}\n```\nThis reads the file."),
    ("json", f"I will read both:\n```json\n{JSON_CALL}\n{JSON_CALL}\n```"),
    ("json", f"I will read the file first:\n{FENCED}"),
    ("json", f"calls.json\n{FENCED}"),
    ("json", f"I will write it:\n```json calls.json\n{JSON_CALL}\n```"),
    ("json", f"```json data/calls.json\n{JSON_CALL}\n```"),
    ("json", f"{FENCED}\nAlternatively:\n{FENCED}"),
    ("json", '{"name": "edit_file", "arguments": {"path": "a", "path": "b"}}'),
    ("json", '{"name": "edit_file", "arguments": {"new_str": "x'),
    ("json", '{"name": "edit_file", "arguments": {"new_str": "x"}'),
    ("json", '{"name": "read_file", "arguments": "a.py"}'),
    ("json", '{"name": "read_file", "arguments": {}, "because": "I want to"}'),
    ("json", '[{"name": "read_file", "arguments": {}}, {"name": "nope", "arguments": {}}]'),
    ("json", f"I will read it.\n{TAGGED}\nThat is all."),
    ("json", '<tool_call>{"name": "nope", "arguments": {}}</tool_call>'),
    ("another harness", '[TOOL_CALLS] [{"name": "read_file"}]'),
    ("another harness", "<|python_tag|>print(1)"),
    ("another harness", '<function=read_file>{"path": "a.py"}'),
    ("another harness", "Action: read_file\nAction Input: a.py"),
    ("another harness", "<tool: nope({})>"),
    ("json", f"The file holds\n{FENCED}\nwhich is a call."),
    ("json", f"The file holds\n```\n{TAGGED}\n```\nand no more."),
    ("tool_line", "```\ntool: read_file({})\nand so on\n```"),
    ("bare_call", 'read_file({"path": "a.py"})\nThis reads the file.'),
    ("bare_call", 'read_file({"path": a.py})'),
    ("tool_line", '```python\ntool: read_file({"path": "a.py"})\n```'),
    ("tool_line", 'tool: read_file({"path": "a.py"})'),
    ("bare_call", 'read_file({"path": "a.py"})'),
    ("bare_call", '```\nread_file({"path": "a.py"})\n```'),
    ("python_call", PYTHON_CALL),
    ("tool_line", f"tool: {PYTHON_CALL}"),
    ("python_call", PYTHON_FENCED),
    ("python_call", f"```tool_code\n{PYTHON_CALL}\n```"),
    ("python_call", "Action: read_file('a.py')"),
    ("python_call", 'read_file(path="a.py", limit=count)'),
    ("python_call", '```python\nread_file(path="a.py"))\n```'),
]

ANSWERS = [
    'deploy({"path": "a.py"})',
    'Call read_file({"path": "a.py"}) to read it.',
    "read_file(path)",
    'read_file(path="a.py") gives the text of the file.',
    "",
    "The bug is fixed.",
    "Use `tool: read_file({})` or <tool_call> tags.",
    "Action: none is needed.",
    '{"name": "nope", "arguments": {}}',
    '{"name": "read_file", "version": "1.0"}',
    '{"name": "mendgraph", "dependencies": {}}',
    f"It is run by\n```python\n{PYTHON_CALL}\n```\nand no more.",
    f"```python\n{JSON_CALL}\n```",
    f"The test data is\n```python\n{JSON_CALL}\n```",
    f"> {JSON_CALL}",
    '```python\nprint("tool: read_file({})")\n```',
    f"```python\ndef read_file(path):\n    return open(path).read()\n\n\n{PYTHON_CALL}\n```",
    f"```python\ntext = {PYTHON_CALL}\n```",
    f"tools.py\n```python\nprint({PYTHON_CALL})\n```",
    f"1. `{PYTHON_CALL}` reads it.\n2. `list_files()` lists them.",
    "[]",
    "{}",
    "[1, 2]",
    "```\n```",
]


@pytest.mark.parametrize(("text", "calls"), READABLE)
def test_a_reply_that_is_json_calls_and_nothing_else_is_read(
    text: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    assert [call[:2] for call in recognised(text, KNOWN)] == calls
    assert looks_like_call(text, KNOWN) == "json"


@pytest.mark.parametrize(("dialect", "text"), ONLY_LOOKS)
def test_a_doubtful_call_is_noticed_but_not_read(dialect: str, text: str) -> None:
    assert recognised(text, KNOWN) == []
    assert looks_like_call(text, KNOWN) == dialect


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_stays_an_answer(text: str) -> None:
    assert recognised(text, KNOWN) == []
    assert looks_like_call(text, KNOWN) is None


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


@given(st.lists(PARAGRAPHS | QUOTES, max_size=6), PARAGRAPHS, st.booleans())
def test_a_text_that_quotes_calls_is_never_rescued(parts: list[str], paragraph: str, ends_with_prose: bool) -> None:
    text = "\n\n".join([*parts, paragraph] if ends_with_prose else [paragraph, *parts])
    assert recognised(text, KNOWN) == []


@pytest.mark.parametrize("fence", ["", "```json\n"])
@pytest.mark.parametrize(("arguments", "dialect"), [('{"path": "a"}', "json"), ("{}", None)])
def test_a_reply_that_is_one_call_of_an_invented_tool_is_meant_as_a_call(
    fence: str, arguments: str, dialect: str | None
) -> None:
    reply = f'{fence}{{"name": "delete", "arguments": {arguments}}}' + ("\n```" if fence else "")
    assert (looks_like_call(reply, KNOWN), recognised(reply, KNOWN)) == (dialect, [])


def test_all_calls_in_fences_are_found() -> None:
    others = "```\ntool: read_file({})\n```\n```json\n{}\n```"
    text = f"One:\n{FENCED}\nTwo:\n```\n{TAGGED}\n```\n{others}\n```\n{JSON_CALL} x\n```"
    assert [(each.line, each.end) for each in fenced_calls(text, KNOWN)] == [(2, 4), (6, 10), (17, 19)]


CALL = ToolInvocation("read_file", {"path": "a.py"}, 0)
ARGUMENTS = '{"path": "a.py"}'


@pytest.mark.parametrize("name", ["name", "tool", "function", "action"])
@pytest.mark.parametrize("arguments", ["arguments", "parameters", "args", "input", "action_input"])
def test_a_call_goes_by_many_names(name: str, arguments: str) -> None:
    assert recognised(f'{{"{name}": "read_file", "{arguments}": {ARGUMENTS}}}', KNOWN) == [CALL]
    assert recognised(f'{{"{arguments}": {ARGUMENTS}, "{name}": "read_file"}}', KNOWN) == [CALL]


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (f'{{"function": {JSON_CALL}}}', [CALL]),
        (f'{{"type": "function", "id": "call_1", "function": {JSON_CALL}}}', [CALL]),
        (f'{{"name": "read_file", "arguments": {json.dumps(ARGUMENTS)}}}', [CALL]),
        (JSON_CALL.replace("a.py", "a\nb"), [ToolInvocation("read_file", {"path": "a\nb"}, 0)]),
        (f"<tools>\n[{JSON_CALL}]\n</tools>\n{TAGGED}", [CALL, CALL]),
        (TAGGED.replace("a.py", "</tool_call>"), [ToolInvocation("read_file", {"path": "</tool_call>"}, 0)]),
        ("[]", []),
        ("[1]", []),
        (f"{JSON_CALL} and so on", []),
        (f"{JSON_CALL},\n{JSON_CALL}", []),
        ('{"name": ["read_file"], "arguments": {}}', []),
        ('{"name": "read_file", "arguments": "{\\"path\\": "}', []),
        ('{"name": "read_file", "tool": "read_file", "arguments": {}}', []),
        ('{"type": "message", "name": "read_file", "arguments": {}}', []),
    ],
)
def test_json_is_read_where_it_is_whole(body: str, calls: list[ToolInvocation]) -> None:
    assert recognised(body, KNOWN) == calls


@pytest.mark.parametrize("unit", ["{", "[", '{"a":', "{}", "<tool_call>", "read_file("])
def test_endless_texts_are_no_calls(unit: str) -> None:
    assert recognised(unit * (20_000 // len(unit)), KNOWN) == []
