import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.language.dialects import Rescue, fenced_calls, looks_like_call, recognised
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
    ("json", JSON_CALL, [READ]),
    ("json", f"\n  {JSON_CALL}\n", [READ]),
    ("json", FENCED, [READ]),
    ("json", f"~~~ JSON title\r\n{JSON_CALL}\r\n~~~", [READ]),
    ("json", f"```json\n{JSON_CALL}", [READ]),
    ("json", f"Action:\n{JSON_CALL}", [READ]),
    ("json", f"Action:\n{FENCED}", [READ]),
    ("json", LIST, [("read_file", {}), ("edit_file", {"path": "b"})]),
    ("json", EDIT_CALL, [EDIT]),
    ("json", f"```json\n{EDIT_CALL}\n```", [EDIT]),
    ("json", f"{JSON_CALL}\n{JSON_CALL}", [READ, READ]),
    ("json", f"{FENCED}\n\n{FENCED}", [READ, READ]),
    ("json", '{"name": "read_file", "arguments": {"path": "a.py",},}', [READ]),
    ("json", TAGGED, [READ]),
    ("json", f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{JSON_CALL}</tool_call>", [READ, READ]),
    ("json", f"```xml\n{TAGGED}\n```", [READ]),
    ("tool_line", '```\ntool: read_file({"path": "a.py"})\n```', [READ]),
    ("tool_line", '```python\ntool: read_file({"path": "a.py"})\n```', [READ]),
    ("tool_line", 'tool: read_file({"path": "a.py"})', [READ]),
    ("bare_call", 'read_file({"path": "a.py"})', [READ]),
    ("bare_call", '```\nread_file({"path": "a.py"})\n```', [READ]),
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


def found(dialect: str, calls: list[tuple[str, dict[str, Any]]]) -> Rescue:
    return Rescue(dialect, [ToolInvocation(tool, arguments, 0) for tool, arguments in calls])


@pytest.mark.parametrize(("dialect", "text", "calls"), READABLE)
def test_a_reply_that_is_meant_as_a_call_and_nothing_else_is_read(
    dialect: str, text: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    assert recognised(text, KNOWN) == found(dialect, calls)
    assert looks_like_call(text, KNOWN) == dialect


@pytest.mark.parametrize(("dialect", "text"), ONLY_LOOKS)
def test_a_doubtful_call_is_noticed_but_not_read(dialect: str, text: str) -> None:
    assert recognised(text, KNOWN) is None
    assert looks_like_call(text, KNOWN) == dialect


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_stays_an_answer(text: str) -> None:
    assert recognised(text, KNOWN) is None
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
    assert recognised(text, KNOWN) is None


@pytest.mark.parametrize("fence", ["", "```json\n"])
@pytest.mark.parametrize(("arguments", "dialect"), [('{"path": "a"}', "json"), ("{}", None)])
def test_a_reply_that_is_one_call_of_an_invented_tool_is_meant_as_a_call(
    fence: str, arguments: str, dialect: str | None
) -> None:
    reply = f'{fence}{{"name": "delete", "arguments": {arguments}}}' + ("\n```" if fence else "")
    assert (looks_like_call(reply, KNOWN), recognised(reply, KNOWN)) == (dialect, None)


def test_all_calls_in_fences_are_found() -> None:
    others = "```\ntool: read_file({})\n```\n```json\n{}\n```"
    text = f"One:\n{FENCED}\nTwo:\n```\n{TAGGED}\n```\n{others}\n```\n{JSON_CALL} x\n```"
    assert [(each.line, each.end) for each in fenced_calls(text, KNOWN)] == [(2, 4), (6, 10), (17, 19)]


def read_form(dialect: str, body: str) -> list[ToolInvocation] | None:
    """The calls of a body that is read in this form."""
    found = recognised(body, KNOWN)
    return found.calls if found and found.dialect == dialect else None


CALL = ToolInvocation("read_file", {"path": "a.py"}, 0)
ARGUMENTS = '{"path": "a.py"}'


@pytest.mark.parametrize("name", ["name", "tool", "function", "action"])
@pytest.mark.parametrize("arguments", ["arguments", "parameters", "args", "input", "action_input"])
def test_a_call_goes_by_many_names(name: str, arguments: str) -> None:
    assert read_form("json", f'{{"{name}": "read_file", "{arguments}": {ARGUMENTS}}}') == [CALL]
    assert read_form("json", f'{{"{arguments}": {ARGUMENTS}, "{name}": "read_file"}}') == [CALL]


@pytest.mark.parametrize(
    ("dialect", "body", "calls"),
    [
        ("json", f'{{"function": {JSON_CALL}}}', [CALL]),
        ("json", f'{{"type": "function", "id": "call_1", "function": {JSON_CALL}}}', [CALL]),
        ("json", f'{{"name": "read_file", "arguments": {json.dumps(ARGUMENTS)}}}', [CALL]),
        ("json", JSON_CALL.replace("a.py", "a\nb"), [ToolInvocation("read_file", {"path": "a\nb"}, 0)]),
        ("json", f"<tools>\n[{JSON_CALL}]\n</tools>\n{TAGGED}", [CALL, CALL]),
        ("json", TAGGED.replace("a.py", "</tool_call>"), [ToolInvocation("read_file", {"path": "</tool_call>"}, 0)]),
        ("tool_line", 'tool: read_file(\n{"path":\n"a.py"}\n)', [CALL]),
        ("bare_call", 'read_file ( {"path":\n"a.py"} )', [CALL]),
        ("json", "[]", None),
        ("json", "[1]", None),
        ("json", f"{JSON_CALL} and so on", None),
        ("json", f"{JSON_CALL},\n{JSON_CALL}", None),
        ("json", '{"name": ["read_file"], "arguments": {}}', None),
        ("json", '{"name": "read_file", "arguments": "{\\"path\\": "}', None),
        ("json", '{"name": "read_file", "tool": "read_file", "arguments": {}}', None),
        ("json", '{"type": "message", "name": "read_file", "arguments": {}}', None),
        ("tool_line", "tool: read_file({})\ntool: nope({})", None),
        ("bare_call", "nope({})", None),
    ],
)
def test_each_form_is_read_where_it_is_whole(dialect: str, body: str, calls: list[ToolInvocation] | None) -> None:
    assert read_form(dialect, body) == calls


@pytest.mark.parametrize("unit", ["{", "[", '{"a":', "{}", "<tool_call>", "read_file("])
def test_endless_texts_are_no_calls(unit: str) -> None:
    assert recognised(unit * (20_000 // len(unit)), KNOWN) is None
