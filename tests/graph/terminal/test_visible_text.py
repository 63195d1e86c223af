"""What is seen of a reply while it is streamed."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.graph.terminal.screen import VisibleText
from mendgraph.nodes.language.dialects import read_blocks
from mendgraph.nodes.language.text_protocol import extract_in_order

TOOLS = frozenset({"read_file", "edit_file", "edit_blocks"})
HIDDEN_WORD = "HIDDEN"

READ = 'tool: read_file({"path": "HIDDEN.py"})'
EDIT = 'tool: edit_file({"path": "HIDDEN.py", "old_str": "f(x)\n  HIDDEN)", "new_str": "{[ \\"HIDDEN\\" \\\\"})'
JSON_CALL = '{"name": "read_file", "arguments": {"path": "HIDDEN.py"}}'
CODE = "```python\ndef HIDDEN():\n    return 1\n```\n"
BLOCK = f"calc.py\n{CODE}"


def seen(*pieces: str, blocks: bool = False) -> str:
    visible = VisibleText(TOOLS, blocks=blocks)
    return "".join(map(visible.feed, pieces)) + visible.end()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("", ""),
        ("Hello", "Hello"),
        ("  \n\nHello\n", "  \n\nHello\n"),
        (READ, ""),
        (f"I look.\n{READ}\nDone.\n", "I look.\nDone.\n"),
        (f"{READ}\n  {READ}\nDone.", "Done."),
        (f"Two.\n{EDIT}\n{READ}\nDone.", "Two.\nDone."),
        (f"{EDIT} and HIDDEN\nDone.", "Done."),
        (
            "The word tool: is harmless.\ntoo\ntool\ntools: a, b\n",
            "The word tool: is harmless.\ntoo\ntool\ntools: a, b\n",
        ),
        ("tool:\nDone.", "Done."),
        ("tool: read_file\nDone.", "Done."),
        ("tool: read_file(path='HIDDEN')\nDone.", "Done."),
        ('tool: read_file(\n  {"path": "HIDDEN"}\n)\nDone.', "Done."),
        ('tool: read_file({"path": "HIDDEN"}\nDone.', "Done."),
        ('tool: read_file({"path": "HIDDEN"\nHIDDEN', ""),
        ('tool: read_file({"path": "HIDDEN', ""),
        ("tool: read_file(", ""),
        ('tool: edit_file({"new_str": "a "HIDDEN" b"})\nDone.', "Done."),
        ('tool: edit_file({"new_str": "\n"""HIDDEN"""\nHIDDEN\n"})\nDone.', "Done."),
        (f'tool: edit_file({{"new_str": "\n"""HIDDEN"""\nHIDDEN\n{READ}\nDone.', "Done."),
        ("```python\ntool_box()\n```\nDone.", "```python\ntool_box()\n```\nDone."),
        (f"```python\nx = 1\n{READ}\n```\n", "```python\nx = 1\n```\n"),
        (f"```\n{READ}\n{EDIT}\n```\nDone.", "Done."),
        (f"So:\n```\n{READ}\nand so on\n```\nDone.", "So:\n```\nand so on\n```\nDone."),
        ("So:\n```\ntool: TOOL_NAME(HIDDEN)\n```\nDone.", "So:\nDone."),
        (f"```\nx = 1\n{EDIT}\ny = 2\n```\nDone.", "```\nx = 1\ny = 2\n```\nDone."),
        ('```\nx = 1\n{"name": "x"}\n```\nDone.', '```\nx = 1\n{"name": "x"}\n```\nDone.'),
        ("~~~\n```\nstill code\n~~~\nDone.", "~~~\n```\nstill code\n~~~\nDone."),
        ("`code` is inline.\n``` `x` ```\n", "`code` is inline.\n``` `x` ```\n"),
        ("```python\nno end", "```python\nno end"),
    ],
)
def test_calls_are_hidden_and_prose_is_not(reply: str, expected: str) -> None:
    assert seen(reply) == expected
    assert seen(*reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (JSON_CALL, ""),
        (f"[{JSON_CALL}]", ""),
        (JSON_CALL.replace(": ", ":\n  "), ""),
        (f"I look.\n```json\n{JSON_CALL}\n```\n", "I look.\n"),
        (f"```\n{READ}\n```", ""),
        (f"<tool_call>\n{JSON_CALL}\n</tool_call>", ""),
        ('<tool: read_file({"path": "HIDDEN"})>', ""),
        ('{"name": "nobody", "arguments": {}}', '{"name": "nobody", "arguments": {}}'),
        ('```json\n{"name": "mendgraph"}\n```\nDone.', '```json\n{"name": "mendgraph"}\n```\nDone.'),
        ('{"a": 1}\n[1, 2]\n<table>\n', '{"a": 1}\n[1, 2]\n<table>\n'),
        ('{"na', '{"na'),
        ("```\n", "```\n"),
    ],
)
def test_calls_in_other_forms_are_hidden_too(reply: str, expected: str) -> None:
    assert seen(reply) == expected
    assert seen(*reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (BLOCK, ""),
        (f"I fix it.\n{BLOCK}Done.\n", "I fix it.\nDone.\n"),
        (f"The new `calc.py`:\n{CODE}Done.", "The new `calc.py`:\nDone."),
        ("The new `calc.py`:\n```\nHIDDEN = 1\n```\nDone.", "The new `calc.py`:\nDone."),
        ("**calc.py**\n\n```\nHIDDEN = 1\n```\n", "\n"),
        ("### File: calc.py\n```\nHIDDEN = 1\n```\n", ""),
        ("```python calc.py\nHIDDEN = 1\n```\n", ""),
        ("```python\n# calc.py\nHIDDEN = 1\n```\n", ""),
        ("```python\ndef HIDDEN():\n    return 1\n```\nDone.", "Done."),
        ("Sure:\n```python\ndef HIDDEN():\n    return 1\n```\nDone.", "Sure:\nDone."),
        ("calc.py\n```python\ndef HIDDEN():", ""),
        ("calc.py\n```python\nHIDDEN = '```'\nHIDDEN = 2\n```\nDone.", "Done."),
        ("Run it:\n```sh\npython calc.py\n```\nDone.", "Run it:\n```sh\npython calc.py\n```\nDone."),
        ("Run\n```sh\npython calc.py\n```\n" + BLOCK, "Run\n```sh\npython calc.py\n```\n"),
        ("calc.py\nis a file.\n", "calc.py\nis a file.\n"),
        ("calc.py\n\n``", "calc.py\n\n``"),
        ("calc.py", "calc.py"),
        (f"{READ}\n{BLOCK}", ""),
        (f"```json\n{JSON_CALL}\n```", ""),
        (f"So:\n```\n{READ}\n```\nDone.", "So:\nDone."),
    ],
)
def test_edits_in_blocks_are_hidden_with_the_name_of_their_file(reply: str, expected: str) -> None:
    assert seen(reply, blocks=True) == expected
    assert seen(*reply, blocks=True) == expected


def test_prose_is_seen_as_it_comes() -> None:
    visible = VisibleText(TOOLS)
    pieces = [
        "I",
        " look",
        " at it",
        ".\n",
        "to",
        "ol: re",
        "ad_file({",
        '"path": "HIDDEN.py"',
        "})",
        "\n",
        "Do",
        "ne.",
    ]
    shown = ["I", " look", " at it", ".\n", "", "", "", "", "", "", "", ""]
    assert [visible.feed(piece) for piece in pieces] == shown
    assert visible.end() == "Done."


def test_each_reply_begins_anew() -> None:
    visible = VisibleText(TOOLS)
    assert visible.feed('tool: read_file({"path": "HIDDEN') + visible.end() == ""
    assert visible.feed("```python\nx") + visible.end() == "```python\nx"
    assert visible.feed("Done.") + visible.end() == "Done."


PROSE = st.sampled_from(
    ["I look.", "", "  indented", "`calc.py`:", "calc.py", "to", "too", "- tool: x", '{"a": 1}', "<b>", "~", "x = f(1)"]
)
STRINGS = st.text(alphabet='HIDEN"\\\n(){}[],: `~\u2028\r', max_size=12)
CALLS = st.builds(
    lambda tool, values, raw: f"tool: {tool}({_json(values, raw=raw)})",
    st.sampled_from(sorted(TOOLS)),
    st.dictionaries(st.sampled_from(["path", "content"]), STRINGS | st.lists(STRINGS, max_size=2)),
    st.booleans(),
)
MARKS = ("tool:", "tool: read_file", '{"', '"}', "<tool", "~~~", "```")
MORE = ("\n", "\r\n", "\u2028", "```python\n", "calc.py", "def f():", JSON_CALL, "words ")
FRAGMENTS = st.sampled_from([*MARKS, *'()"{}[,\\` ', *MORE])


def _json(values: object, *, raw: bool) -> str:
    """As JSON; `raw` with line breaks as they are, which the text protocol reads as well."""
    text = json.dumps(values)
    return text.replace("\\n", "\n").replace("\\r", "\r") if raw and "\\\\" not in text else text


@given(st.lists(PROSE.map(lambda line: (line, True)) | CALLS.map(lambda call: (call, False)), max_size=8))
def test_well_formed_calls_are_hidden_as_the_parser_reads_them(lines: list[tuple[str, bool]]) -> None:
    reply = "\n".join(line for line, _ in lines)
    assert len(extract_in_order(reply, TOOLS)) == sum(not is_prose for _, is_prose in lines)
    assert seen(reply).splitlines() == [line for line, is_prose in lines if is_prose][: len(seen(reply).splitlines())]
    assert seen(reply).split() == [word for line, is_prose in lines if is_prose for word in line.split()]


@settings(max_examples=150)
@given(st.lists(FRAGMENTS | PROSE, max_size=25).map("".join), st.data(), st.booleans())
def test_how_a_reply_is_cut_makes_no_difference(reply: str, data: st.DataObject, blocks: bool) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(reply)), max_size=8).map(sorted))
    pieces = [reply[start:end] for start, end in pairwise([0, *cuts, len(reply)])]
    whole = seen(reply, blocks=blocks)
    assert seen(*pieces, blocks=blocks) == whole
    assert seen(*reply, blocks=blocks) == whole


@given(st.lists(PROSE | st.just(BLOCK) | st.just("```sh\nls\n```"), max_size=6).map("\n".join))
def test_blocks_hide_what_the_machine_takes_for_an_edit(reply: str) -> None:
    shown = seen(reply, blocks=True)
    assert HIDDEN_WORD not in shown
    edits = read_blocks(reply, ("file.py",)).outcomes
    assert bool(edits) == (HIDDEN_WORD in reply)
