from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.language.dialects import (
    LONGEST_LEAD,
    Rescue,
    announces,
    fenced_calls,
    holds_call,
    is_file_name,
    looks_like_call,
    passages,
    recognised,
)
from mendgraph.nodes.records import JsonMap, ToolInvocation

KNOWN = frozenset({"read_file", "edit_file", "multi_edit", "write_file", "list_files"})
ONLY_REQUIRED = {"read_file": "path"}

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
    ("json", f"```\n{JSON_CALL}\n```\n", [READ]),
    ("json", f"~~~ JSON title\r\n{JSON_CALL}\r\n~~~", [READ]),
    ("json", f"```json\n{JSON_CALL}", [READ]),
    ("json", f"Action:\n{JSON_CALL}", [READ]),
    ("json", f"Action:\n{FENCED}", [READ]),
    ("json", f"Tool call: {JSON_CALL}", [READ]),
    ("json", LIST, [("read_file", {}), ("edit_file", {"path": "b"})]),
    ("json", EDIT_CALL, [EDIT]),
    ("json", f"```json\n{EDIT_CALL}\n```", [EDIT]),
    ("json", f"{JSON_CALL}\n{JSON_CALL}", [READ, READ]),
    ("json", f"{FENCED}\n\n{FENCED}", [READ, READ]),
    ("json", '{"name": "read_file", "arguments": {"path": "a.py",},}', [READ]),
    ("tool_call_tags", TAGGED, [READ]),
    ("tool_call_tags", f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{JSON_CALL}</tool_call>", [READ, READ]),
    ("tool_call_tags", f"```xml\n{TAGGED}\n```", [READ]),
    ("tool_calls_mark", f"[TOOL_CALLS] [{JSON_CALL}]", [READ]),
    ("python_tag", f"<|python_tag|>{JSON_CALL}", [READ]),
    ("function_tags", '<function=read_file>{"path": "a.py"}</function>', [READ]),
    ("react", 'Action: read_file\nAction Input: {"path": "a.py"}', [READ]),
    ("tool_line", '```\ntool: read_file({"path": "a.py"})\n```', [READ]),
    ("tool_line", '```python\ntool: read_file({"path": "a.py"})\n```', [READ]),
    ("tool_line", 'tool: read_file({"path": "a.py"})', [READ]),
    ("bare_call", 'read_file({"path": "a.py"})', [READ]),
    ("bare_call", '```\nread_file({"path": "a.py"})\n```', [READ]),
    ("python_call", PYTHON_CALL, [READ]),
    ("python_call", f"tool: {PYTHON_CALL}", [READ]),
    ("python_call", PYTHON_FENCED, [READ]),
    ("python_call", f"```tool_code\n{PYTHON_CALL}\n```", [READ]),
    ("python_call", f"{PYTHON_FENCED}\n{PYTHON_FENCED}", [READ, READ]),
    ("python_call", "Action: read_file('a.py')", [READ]),
]

ANNOUNCED = [
    ("json", f"I will read the file first:\n\n{FENCED}", [READ]),
    ("json", f"Sure! Let me read it.\n{FENCED}\n", [READ]),
    ("json", f"I'll read `a.py`:\n{FENCED}", [READ]),
    ("json", f"Thought: I need to see it.\nNow I will read it.\nAction: {JSON_CALL}", [READ]),
    ("tool_call_tags", f"I will read the file first.\n{TAGGED}", [READ]),
    ("react", 'Thought: read it first\nAction: read_file\nAction Input: {"path": "a.py"}', [READ]),
    ("tool_line", 'Let me look:\n```\ntool: read_file({"path": "a.py"})\n```', [READ]),
    ("python_call", f"Let's read the file:\n{PYTHON_FENCED}", [READ]),
]

ONLY_LOOKS = [
    ("json", f"```json\n{JSON_CALL}\n```\nThis reads the file."),
    ("json", f"I will read the file.\n{JSON_CALL}"),
    ("json", f"I will read both:\n```json\n{JSON_CALL}\n{JSON_CALL}\n```"),
    ("json", f"For example:\n{FENCED}"),
    ("json", f"You could send this:\n{FENCED}"),
    ("json", f"The log holds one line:\n{FENCED}"),
    ("json", f"The last answer was\n\n{FENCED}"),
    ("json", f"I will not run this:\n{FENCED}"),
    ("json", f"Should I send this?\n{FENCED}"),
    ("json", f"calls.json\n{FENCED}"),
    ("json", f"I will create `calls.json`:\n{FENCED}"),
    ("json", f"I will write it.\n**calls.json**\n\n{FENCED}"),
    ("json", f"I will write it:\n```json calls.json\n{JSON_CALL}\n```"),
    ("json", f"```json data/calls.json\n{JSON_CALL}\n```"),
    ("json", f"I will read it:\n{FENCED}\nor list the files:\n{FENCED}"),
    ("json", f"{FENCED}\n{PYTHON_FENCED}"),
    ("json", f"{FENCED}\nAlternatively:\n{FENCED}"),
    ("json", '{"name": "edit_file", "arguments": {"path": "a", "path": "b"}}'),
    ("json", '{"name": "edit_file", "arguments": {"new_str": "x'),
    ("json", '{"name": "edit_file", "arguments": {"new_str": "x"}'),
    ("json", '{"name": "read_file", "arguments": "a.py"}'),
    ("json", '{"name": "read_file", "arguments": {}, "because": "I want to"}'),
    ("json", '[{"name": "read_file", "arguments": {}}, {"name": "nope", "arguments": {}}]'),
    ("tool_call_tags", f"For example:\n{TAGGED}"),
    ("tool_call_tags", f"I will read it.\n{TAGGED}\nThat is all."),
    ("tool_call_tags", f"<tool_call>\n{JSON_CALL}\n"),
    ("tool_call_tags", '<tool_call>{"name": "nope", "arguments": {}}</tool_call>'),
    ("tool_calls_mark", '[TOOL_CALLS] [{"name": "read_file"}]'),
    ("python_tag", "<|python_tag|>print(1)"),
    ("function_tags", '<function=read_file>{"path": "a.py"}'),
    ("react", "Action: read_file\nAction Input: a.py"),
    ("tool_tag", "<tool: nope({})>"),
    ("tool_tag", "<tool: read_file({path})>"),
    ("json", f"The file holds\n{FENCED}\nwhich is a call."),
    ("tool_call_tags", f"The file holds\n```\n{TAGGED}\n```\nand no more."),
    ("tool_line", "```\ntool: read_file({})\nand so on\n```"),
    ("tool_line", "Use such a line:\n```\ntool: read_file({})\n```"),
    ("bare_call", 'read_file({"path": "a.py"})\nThis reads the file.'),
    ("bare_call", 'read_file({"path": a.py})'),
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


@pytest.mark.parametrize(("dialect", "text", "calls"), [*READABLE, *ANNOUNCED])
def test_a_reply_that_is_meant_as_a_call_and_nothing_else_is_read(
    dialect: str, text: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    assert recognised(text, KNOWN, only_required=ONLY_REQUIRED) == found(dialect, calls)
    assert looks_like_call(text, KNOWN) == dialect


@pytest.mark.parametrize(("dialect", "text"), ONLY_LOOKS)
def test_a_doubtful_call_is_noticed_but_not_read(dialect: str, text: str) -> None:
    assert recognised(text, KNOWN, only_required=ONLY_REQUIRED) is None
    assert looks_like_call(text, KNOWN) == dialect


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_stays_an_answer(text: str) -> None:
    assert recognised(text, KNOWN, only_required=ONLY_REQUIRED) is None
    assert looks_like_call(text, KNOWN) is None


def knows_the_path(tool: str, arguments: JsonMap) -> bool:
    return tool == "read_file" and arguments == {"path": "a.py"}


@pytest.mark.parametrize(("dialect", "text", "calls"), [*ANNOUNCED, ("python_call", PYTHON_CALL, [READ])])
def test_a_call_that_may_be_an_example_is_only_read_if_its_arguments_fit(
    dialect: str, text: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    assert recognised(text, KNOWN, knows_the_path, ONLY_REQUIRED) == found(dialect, calls)
    assert recognised(text.replace("a.py", "b.py"), KNOWN, knows_the_path, ONLY_REQUIRED) is None


def test_a_python_call_without_names_needs_to_be_told_what_it_gives() -> None:
    assert recognised("read_file('a.py')", KNOWN) is None


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
    "I will read it:",
    "Action Input:",
    "[TOOL_CALLS]",
    "<|python_tag|>",
]
pieces = st.sampled_from([*PIECES, "\n", "<tool: read_file({})>", JSON_CALL, LIST, PYTHON_CALL])


@given(st.lists(pieces, max_size=12).map("".join) | st.text())
def test_whatever_is_read_is_known_and_noticed(text: str) -> None:
    rescue = recognised(text, KNOWN)
    if rescue is not None:
        assert rescue.calls
        assert {call.tool_name for call in rescue.calls} <= KNOWN
        assert looks_like_call(text, KNOWN) is not None


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
    one, two, broken = fenced_calls(text, KNOWN)
    assert [(each.line_number, each.dialect, each.tool, len(each.calls)) for each in (one, two, broken)] == [
        (2, "json", "read_file", 1),
        (6, "tool_call_tags", "read_file", 1),
        (17, "json", "read_file", 0),
    ]


@pytest.mark.parametrize(
    ("opening", "body", "expected"),
    [
        ("```json\n", '{"name": "read_file", "arguments": {"path": "a\n', True),
        ("```\n", "It is\n<tool_call>\n{", True),
        ("```\n", '{"name": "nope", "arguments": {', False),
        ("```python\n", '{"name": "read_file", "arguments": {', False),
        ("```\n", 'tool: read_file({"path": "a"})', False),
        ("```python\n", 'read_file("a")', False),
        ("```\n", "", False),
    ],
)
def test_a_fence_holds_a_call_from_its_beginning_on(opening: str, body: str, expected: bool) -> None:
    assert holds_call(opening, body, KNOWN) is expected


ARGUMENTS = {"path": "a.py", "limit": 3}


@pytest.mark.parametrize(
    "lead",
    [
        "I will read the file first:",
        "I'll read the file.",
        "I\N{RIGHT SINGLE QUOTATION MARK}ll read the file.",
        "To fix the bug in the add function, we need to change it so that it returns the sum.",
        "The function does not handle None. I am going to fix it before anything else:",
        "Sure, I can help you with that. Let me look at the file.\n",
        "Let's first read it:",
        "First, read the file:",
        "Sure! Reading the file now.\nNow read it:",
        "Reading the file:",
        "Using the read_file tool:",
        "Thought: the file must be read",
        "Here's the corrected code:",
        "Here is the tool call to read the file:",
        "I will read `a.py`:",
        "I will read a.py.",
    ],
)
def test_an_announcement_says_what_is_done_now(lead: str) -> None:
    assert announces(lead, ARGUMENTS)


@pytest.mark.parametrize(
    "lead",
    [
        "",
        "The file:",
        "For example:",
        "Let me give an example:",
        "The first line of the log is:",
        "We need to look at what the server says:",
        "You could send:",
        "I would send:",
        "I will show how it is done:",
        "Let me know whether this is right:",
        "We can see the call in the log:",
        "If the file exists, I will send:",
        "I will either read it or list the files:",
        "Should I send it?",
        "I will not send this:",
        "I won't send this:",
        "Here is the call that the client makes:",
        "Here is the JSON:",
        "Now the log has this line:",
        "First I sent this:",
        "I will use this format:",
        "I will write the file.\n```\nx\n```",
        "a.py",
        "I will write it.\na.py",
        "I will write it.\n### File: `a.py`",
        "I will write `b.py`:",
        "I will write b.py.",
        "I will write .env:",
        "I will write the Makefile: Makefile",
        "Ich lese die Datei:",
    ],
)
def test_anything_else_may_be_an_example(lead: str) -> None:
    assert not announces(lead, ARGUMENTS)


def test_a_long_text_explains() -> None:
    lead = "I will read the file. " + "x" * (LONGEST_LEAD - 22)
    assert announces(lead, {})
    assert not announces(f"{lead}x", {})


@given(st.lists(st.sampled_from(["```", "```json", "~~~", "text", "", "Action:", "    ```"]), max_size=8))
def test_no_line_of_prose_is_lost(lines: list[str]) -> None:
    text = "\n".join(["start", *lines])
    found = [line for passage in passages(text) for line in passage.body.split("\n")]
    assert sum("text" in line for line in found) == lines.count("text")


@pytest.mark.parametrize("word", ["", "file", "json", "3.11", "etc.", "read_file", "a b.py", "...", "src/"])
def test_other_words(word: str) -> None:
    assert not is_file_name(word)
