import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.language.dialects import recognised
from mendgraph.nodes.records import JsonMap, ToolInvocation

KNOWN = frozenset({"read_file", "edit_file", "multi_edit", "my-tool"})
ARGUMENTS = '{"path": "a.py"}'
CALL = f'{{"name": "read_file", "arguments": {ARGUMENTS}}}'
READ = ToolInvocation("read_file", {"path": "a.py"}, 0)
PAIRS = '"old_str": "1", "new_str": "2", "old_str": "3", "new_str": "4"'
EDITS = [{"old_str": "1", "new_str": "2"}, {"old_str": "3", "new_str": "4"}]


def read_form(dialect: str, body: str, tools: frozenset[str] = KNOWN) -> list[ToolInvocation] | None:
    """The calls of a body that is read in this form."""
    found = recognised(body, tools)
    return found.calls if found and found.dialect == dialect else None


@pytest.mark.parametrize("name", ["name", "tool", "function", "action"])
@pytest.mark.parametrize("arguments", ["arguments", "parameters", "args", "input", "action_input"])
def test_a_call_goes_by_many_names(name: str, arguments: str) -> None:
    assert read_form("json", f'{{"{name}": "read_file", "{arguments}": {ARGUMENTS}}}') == [READ]
    assert read_form("json", f'{{"{arguments}": {ARGUMENTS}, "{name}": "read_file"}}') == [READ]


@pytest.mark.parametrize(
    ("dialect", "body", "calls"),
    [
        ("json", f"[{CALL}, {CALL}]", [READ, READ]),
        ("json", f"{CALL}\n{CALL}{CALL}", [READ, READ, READ]),
        ("json", f'{{"function": {CALL}}}', [READ]),
        ("json", f'{{"type": "function", "id": "call_1", "function": {CALL}}}', [READ]),
        ("json", f'{{"type": "tool_use", "id": "t", "name": "read_file", "input": {ARGUMENTS}}}', [READ]),
        ("json", f'{{"name": "read_file", "arguments": {json.dumps(ARGUMENTS)}}}', [READ]),
        ("json", f'{{"function": {{"name": "read_file", "arguments": {json.dumps(ARGUMENTS)}}}}}', [READ]),
        ("json", '{"name": "read_file", "arguments": {}}', [ToolInvocation("read_file", {}, 0)]),
        ("json", CALL.replace("a.py", "a\nb"), [ToolInvocation("read_file", {"path": "a\nb"}, 0)]),
        ("json", '{"name": "read_file", "arguments": {"path": "a.py", }, }', [READ]),
        (
            "json",
            f'{{"name": "edit_file", "arguments": {{"path": "a.py", {PAIRS}}}}}',
            [ToolInvocation("multi_edit", {"path": "a.py", "edits": EDITS}, 0)],
        ),
        ("tool_call_tags", f"<tool_call>{CALL}</tool_call>", [READ]),
        ("tool_call_tags", f"<tools>\n[{CALL}]\n</tools>\n<tool_call>\n{CALL}\n</tool_call>", [READ, READ]),
        (
            "tool_call_tags",
            f"<tool_call>{CALL.replace('a.py', '</tool_call>')}</tool_call>",
            [ToolInvocation("read_file", {"path": "</tool_call>"}, 0)],
        ),
        ("function_tags", f"<function=read_file>{ARGUMENTS}</function>", [READ]),
        (
            "function_tags",
            f"<function=my-tool>{{}}</function>\n<function=read_file>{ARGUMENTS}</function>",
            [ToolInvocation("my-tool", {}, 0), READ],
        ),
        ("tool_calls_mark", f"[TOOL_CALLS] [{CALL}, {CALL}]", [READ, READ]),
        ("tool_calls_mark", f"[TOOL_CALLS]{CALL}", [READ]),
        ("tool_calls_mark", f"[TOOL_CALLS]read_file{ARGUMENTS}", [READ]),
        ("tool_calls_mark", f"[TOOL_CALLS]read_file[ARGS]{ARGUMENTS}[TOOL_CALLS]my-tool[ARGS]{{}}",
         [READ, ToolInvocation("my-tool", {}, 0)]),
        ("tool_calls_mark", f"[TOOL_CALLS]read_file[CALL_ID]abc123XYZ[ARGS]{ARGUMENTS}", [READ]),
        ("tool_calls_mark", f"read_file[ARGS]{ARGUMENTS}", [READ]),
        ("python_tag", f"<|python_tag|>{CALL}", [READ]),
        ("python_tag", f"<|python_tag|>{CALL}; {CALL}<|eom_id|>", [READ, READ]),
        ("react", f"Action: read_file\nAction Input: {ARGUMENTS}", [READ]),
        ("react", f"read_file\nAction Input: {ARGUMENTS}", [READ]),
        ("react", f"Action: `read_file`\r\nAction Input:\n{ARGUMENTS}\nAction: read_file\nAction input: {ARGUMENTS}",
         [READ, READ]),
    ],
)  # fmt: skip
def test_each_form_is_read(dialect: str, body: str, calls: list[ToolInvocation]) -> None:
    assert read_form(dialect, body) == calls


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("json", ""),
        ("json", "[]"),
        ("json", "[1]"),
        ("json", '"read_file"'),
        ("json", CALL[:-1]),
        ("json", f"{CALL} and so on"),
        ("json", f"{CALL},\n{CALL}"),
        ("json", '{"name": "nope", "arguments": {}}'),
        ("json", '{"name": ["read_file"], "arguments": {}}'),
        ("json", '{"name": "read_file", "arguments": null}'),
        ("json", '{"name": "read_file", "arguments": []}'),
        ("json", '{"name": "read_file", "arguments": "a.py"}'),
        ("json", '{"name": "read_file", "arguments": "{\\"path\\": "}'),
        ("json", '{"name": "read_file"}'),
        ("json", '{"name": "read_file", "tool": "read_file", "arguments": {}}'),
        ("json", '{"name": "read_file", "arguments": {}, "args": {}}'),
        ("json", '{"name": "read_file", "arguments": {}, "id": 1}'),
        ("json", '{"type": "message", "name": "read_file", "arguments": {}}'),
        ("json", '{"type": ["function"], "name": "read_file", "arguments": {}}'),
        ("json", f'{{"function": {CALL}, "x": 1}}'),
        ("json", '{"name": "read_file", "description": "Reads.", "parameters": {}}'),
        ("json", "{'name': 'read_file', 'arguments': {}}"),
        ("json", f'{{"name": "read_file", "arguments": {{{PAIRS}}}}}'),
        ("json", f'{{"name": "multi_edit", "arguments": {{"path": "a", "edits": [{{{PAIRS}}}]}}}}'),
        ("json", '{"name": "read_file", "arguments": {"path": "a", "path": "b"}}'),
        ("tool_call_tags", CALL),
        ("tool_call_tags", f"<tool_call>{CALL}"),
        ("tool_call_tags", f"<tool_call>{CALL}</tool_call> done"),
        ("function_tags", f"<function=nope>{ARGUMENTS}</function>"),
        ("function_tags", f"<function=read_file>{ARGUMENTS}"),
        ("function_tags", "<function=read_file>[1]</function>"),
        ("tool_calls_mark", CALL),
        ("tool_calls_mark", f"read_file{ARGUMENTS}"),
        ("tool_calls_mark", "[TOOL_CALLS]"),
        ("python_tag", CALL),
        ("python_tag", "<|python_tag|>print(1)"),
        ("react", ARGUMENTS),
        ("react", "Action: read_file\nAction Input: a.py"),
        ("react", f"Action: nope\nAction Input: {ARGUMENTS}"),
        ("react", f"Action: read_file\nAction Input: {ARGUMENTS}\nObservation: done"),
    ],
)
def test_whatever_is_not_whole_or_not_only_calls_is_not_read(dialect: str, body: str) -> None:
    assert read_form(dialect, body) is None


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.text(), values, max_size=3), min_size=1, max_size=3), st.sampled_from([None, 2]))
def test_arguments_come_through_unchanged(arguments: list[dict[str, Any]], indent: int | None) -> None:
    calls = [{"name": "read_file", "arguments": each} for each in arguments]
    expected = [ToolInvocation("read_file", each, 0) for each in arguments]
    assert read_form("json", "\n".join(json.dumps(call, indent=indent) for call in calls)) == expected
    tags = "".join(f"<function=read_file>{json.dumps(each, ensure_ascii=False)}</function>" for each in arguments)
    assert read_form("function_tags", tags) == expected


@pytest.mark.parametrize("unit", ["{", "[", '{"a":', "{}", "<tool_call>", "[TOOL_CALLS]", ";", "Action: read_file\n"])
def test_endless_texts_are_no_calls(unit: str) -> None:
    assert recognised(unit * (100_000 // len(unit)), KNOWN) is None


TOOLS = frozenset({"read_file", "write_file"})
LINE = 'tool: read_file({"path": "a.py"})'


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (LINE, [READ]),
        (f"{LINE}\n\n  {LINE}\n", [READ, READ]),
        ('tool: read_file(\n{"path":\n"a.py"}\n)', [READ]),
        ('tool: write_file({"path": "a.py"})', [ToolInvocation("write_file", {"path": "a.py"}, 0)]),
        ("", None),
        ("no call", None),
        (f"Look:\n{LINE}", None),
        (f"{LINE}\nand so on", None),
        (f"{LINE}\ntool: nope({{}})", None),
        ("tool: read_file(path)", None),
        ('tool: write_file({"path": "a.py"})\n```\nx\n```', None),
    ],
)
def test_tool_lines_and_nothing_else(body: str, calls: list[ToolInvocation] | None) -> None:
    assert read_form("tool_line", body, TOOLS) == calls


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ('read_file({"path": "a.py"})', [READ]),
        ('read_file ( {"path":\n"a.py"} )', [READ]),
        (LINE, None),
        ("nope({})", None),
        ('read_file("a.py")', None),
        ('read_file({"path": "a.py"}) reads', None),
    ],
)
def test_a_line_without_its_prefix(body: str, calls: list[ToolInvocation] | None) -> None:
    assert read_form("bare_call", body, TOOLS) == calls


PYTHON_TOOLS = frozenset({"read_file", "edit_file", "multi_edit", "server.tool"})
ONLY_REQUIRED = {"read_file": "path"}


def read(body: str) -> list[tuple[str, JsonMap]] | None:
    found = recognised(body, PYTHON_TOOLS, only_required=ONLY_REQUIRED)
    if found is None or found.dialect != "python_call":
        return None
    assert all(call.line_number == 0 for call in found.calls)
    return [(call.tool_name, call.args) for call in found.calls]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('read_file(path="a.py")', {"path": "a.py"}),
        ("tool: read_file ( path = 'a.py' , )", {"path": "a.py"}),
        ('read_file("a.py")', {"path": "a.py"}),
        ('read_file("a.py", limit=10)', {"path": "a.py", "limit": 10}),
        ("read_file()", {}),
        ("# Read it.\nread_file(\n  'a'  # the file\n  'b'\n)\n# Done.\n", {"path": "ab"}),
        ('read_file(path="""\n"a" and\n""")', {"path": '\n"a" and\n'}),
        ("read_file(path='''it's''')", {"path": "it's"}),
        ('read_file(path="" "x" \'\')', {"path": "x"}),
        ('read_file(path=r"\\d\\n", x="\\d\\n")', {"path": "\\d\\n", "x": "\\d\n"}),
        ('read_file(path="\\x41\\u00e9\\U0001F600\\101\\0\\\n!")', {"path": "A\u00e9\U0001f600A\0!"}),
        (
            "read_file(a=True, b=False, c=None, d=-3, e=2.5e1, f=[1, [], ['x',]], g={'k': {}, \"l\": 0,})",
            {"a": True, "b": False, "c": None, "d": -3, "e": 25.0, "f": [1, [], ["x"]], "g": {"k": {}, "l": 0}},
        ),
        ("read_file(path='tool: read_file()')", {"path": "tool: read_file()"}),
    ],
)
def test_a_call_with_literal_arguments_is_read(body: str, arguments: JsonMap) -> None:
    assert read(body) == [("read_file", arguments)]


def test_several_calls_stand_on_lines_of_their_own() -> None:
    body = "tool: read_file('a')\n\ntool: server.tool(x=1)  # more\nread_file('b'); read_file('c')"
    assert read(body) == [
        ("read_file", {"path": "a"}),
        ("server.tool", {"x": 1}),
        ("read_file", {"path": "b"}),
        ("read_file", {"path": "c"}),
    ]


def test_several_edits_are_one_call() -> None:
    body = "edit_file(path='a', old_str='1', new_str='2', old_str='3', new_str='4')"
    edits = [{"old_str": "1", "new_str": "2"}, {"old_str": "3", "new_str": "4"}]
    assert read(body) == [("multi_edit", {"path": "a", "edits": edits})]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "# nothing",
        "read_file",
        "read_file(",
        "read_file(path=",
        "read_file(path='a'",
        "read_file(path='a)",
        "read_file(path='''a)",
        "read_file(path='a\nb')",
        "read_file(path='a'))",
        "read_file(path='a') is a call",
        "read_file(path='a') read_file(path='b')",
        "nope(path='a')",
        "x = read_file(path='a')",
        "print(read_file(path='a'))",
        "read_file(path='a').strip()",
        "read_file(path=name)",
        "read_file(path='a' + 'b')",
        "read_file(path=f'a')",
        "read_file(path=b'a')",
        "read_file(path=('a', 'b'))",
        "read_file(path={'a'})",
        "read_file(path={1: 'a'})",
        "read_file(path={'a': 1, 'a': 2})",
        "read_file(path={**a})",
        "read_file(*a)",
        "read_file(**a)",
        "read_file('a', 'b')",
        "read_file('a', path='b')",
        "read_file(limit=1, 'a')",
        "edit_file('a')",
        "read_file(path='a', path='b')",
        "read_file(path == 'a')",
        "read_file(,)",
        "read_file(path=[1 2])",
        "read_file(path=[,])",
        "read_file(n=true)",
        "read_file(n=01)",
        "read_file(n=1if)",
        "read_file(n=18446744073709551616)",
        "read_file(n=1e999)",
        "read_file(path='\\x4')",
        "read_file(path='\\U00110000')",
        "read_file(path='\\ud83d')",
        "def read_file(path):\n    return path\n\nread_file('a')",
        "import os\nread_file('a')",
        f"read_file(x={'[' * 65}{']' * 65})",
        "read_file(path='" + "x" * 1_000_000 + "')",
    ],
)
def test_anything_that_would_have_to_be_evaluated_or_guessed_is_not_read(body: str) -> None:
    assert read(body) is None


@pytest.mark.parametrize(
    "unit", ["(", "[", "{", "'", '"""', "\\", "'a' ", "{'a':", "#", "\n", "x=", "read_file('a')", "-"]
)
@pytest.mark.parametrize("start", ["", "read_file(", "read_file(path=", 'read_file(path="""'])
def test_endless_texts_are_no_python_calls(unit: str, start: str) -> None:
    assert read(start + unit * (100_000 // len(unit))) is None


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e30, 1e30) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["path", "limit", "text"]), json_values))
def test_what_python_writes_is_read_back(arguments: dict[str, Any]) -> None:
    body = f"read_file({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    assert read(body) == [("read_file", arguments)]


@pytest.mark.parametrize("value", ['"""a\r\nb"""', "'a'\r\n'b'"])
def test_a_text_of_several_lines_with_carriage_returns_is_not_read(value: str) -> None:
    """Python would read them as line feeds, and a file would lose them without a word."""
    assert read(f"read_file(path={value})") is None
    assert read("read_file(path='a')\r\nread_file('b')\r\n") is not None
