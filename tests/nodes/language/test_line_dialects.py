import pytest

from nodes.language.dialects import read_bare_call, read_tool_lines, read_tool_tag
from nodes.records import ToolInvocation

KNOWN = frozenset({"read_file", "write_file"})
READ = ToolInvocation("read_file", {"path": "a.py"}, 0)
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
        (f"```\n{LINE}\n```", None),
        ('tool: write_file({"path": "a.py"})\n```\nx\n```', None),
    ],
)
def test_tool_lines_and_nothing_else(body: str, calls: list[ToolInvocation] | None) -> None:
    assert read_tool_lines(body, KNOWN) == calls


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
    assert read_bare_call(body, KNOWN) == calls


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ('<tool: read_file({"path": "a.py"})>', [READ]),
        ('<tool: read_file({"path": "a.py"}) />', [READ]),
        ('<tool:read_file(path="a.py")>', [READ]),
        ("<tool:read_file('a.py')/>", [READ]),
        ('<tool:read_file {"path": "a.py"}>', [READ]),
        ('<tool:read_file path="a.py">', [READ]),
        ("<tool:read_file\n  path='a.py'\n/>", [READ]),
        ('<tool:write_file path="" content="\'">', [ToolInvocation("write_file", {"path": "", "content": "'"}, 0)]),
        ("<tool:read_file>", None),
        ("<tool:read_file />", None),
        ('<tool:nope path="a.py">', None),
        ('<tool:read_file path="a" path="b">', None),
        ('<tool:read_file path="a&amp;b">', None),
        ('<tool:read_file path="a" and>', None),
        ("<tool:read_file path=a>", None),
        ("<tool: read_file({path})>", None),
        ('<tool: read_file({"path": "a.py"})> done', None),
        ('tool: read_file({"path": "a.py"})>', None),
    ],
)
def test_a_call_in_a_tag(body: str, calls: list[ToolInvocation] | None) -> None:
    assert read_tool_tag(body, KNOWN, {"read_file": "path"}) == calls
