"""Which text of a reply is shown while it is streamed."""

from itertools import pairwise

from hypothesis import given, strategies as st

from mendgraph.graph.terminal.visible_text import VisibleText
from mendgraph.nodes.language.formats.table import FORMATS
from mendgraph.nodes.small_model.blocks import read_blocks

TOOLS = frozenset({"read_file", "edit_file", "edit_blocks"})

READ = 'tool: read_file({"path": "HIDDEN.py"})'
EDIT = 'tool: edit_file({"path": "HIDDEN.py", "old_str": "f(x)\n  HIDDEN)", "new_str": "{[ \\"HIDDEN\\" \\\\"})'
JSON_CALL = '{"name": "read_file", "arguments": {"path": "HIDDEN.py"}}'
CODE = "```python\ndef HIDDEN():\n    return 1\n```\n"
BLOCK = f"calc.py\n{CODE}"


def visible_text(*pieces: str, blocks: bool = False) -> str:
    visible = VisibleText(TOOLS, blocks=blocks)
    return "".join(map(visible.feed, pieces)) + visible.end()


CALL_FORMS = [
    READ,
    f"{READ}\n  {READ}\nDone.",
    f"{EDIT}\n{READ}\nDone.",
    f"{EDIT} and HIDDEN\nDone.",
    "tool:\nDone.",
    "tool: read_file(path='HIDDEN')\nDone.",
    'tool: read_file(\n  {"path": "HIDDEN"}\n)\nDone.',
    'tool: read_file({"path": "HIDDEN',
    'tool: edit_file({"new_str": "\n"""HIDDEN"""\nHIDDEN\n"})\nDone.',
    f"```python\nx = 1\n{READ}\n```\n",
    JSON_CALL,
    f"[{JSON_CALL}]",
    JSON_CALL.replace(": ", ":\n  "),
    f"```json\n{JSON_CALL}\n```\n",
    f"<tool_call>\n{JSON_CALL}\n</tool_call>",
    '<tool: read_file({"path": "HIDDEN"})>',
    *(call_format.example("read_file", {"path": "HIDDEN"}) for call_format in FORMATS),
    *(f"<function_calls>\n{call_format.example('read_file', {'path': 'HIDDEN'})}" for call_format in FORMATS[:3]),
]
PROSE_FORMS = [
    "",
    "Hello",
    "  \n\nHello\n",
    "The word tool: is harmless.\ntoo\ntool\ntools: a, b\n",
    "```python\ntool_box()\n```\nDone.",
    '```\nx = 1\n{"name": "x"}\n```\nDone.',
    "~~~\n```\nstill code\n~~~\nDone.",
    "`code` is inline.\n``` `x` ```\n",
    "```python\nno end",
    '{"name": "nobody", "version": 1}',
    "A <tool_call> tag, `<tool_call>` and <|python",
    '{"a": 1}\n[1, 2]\n<table>\n',
    '{"na',
]

IN_BLOCKS = (
    (f"I fix it.\n{BLOCK}Done.\n", "I fix it.\n"),
    (f"The new `calc.py`:\n{CODE}Done.", "The new `calc.py`:\n"),
    ("The new `calc.py`:\n```\nHIDDEN = 1\n```\nDone.", "The new `calc.py`:\n"),
    ("**calc.py**\n\n```\nHIDDEN = 1\n```\n", ""),
    ("### File: calc.py\n```\nHIDDEN = 1\n```\n", ""),
    ("```python calc.py\nHIDDEN = 1\n```\n", ""),
    ("```python\n# calc.py\nHIDDEN = 1\n```\n", ""),
    ("Sure, so:\n```python\ndef HIDDEN():\n    return 1\n```\nDone.", "Sure, so:\n"),
    ("calc.py\n```python\ndef HIDDEN():", ""),
    ("Run it:\n```sh\npython calc.py\n```\nDone.", "Run it:\n```sh\npython calc.py\n```\nDone."),
    ("calc.py\nis a file.\n", "calc.py\nis a file.\n"),
    ("calc.py\n\n``", "calc.py\n\n``"),
)


def test_prose_is_shown_and_calls_and_block_edits_are_hidden() -> None:
    calls = [(f"I look.\n{call}", blocks, "I look.\n") for call in CALL_FORMS for blocks in (False, True)]
    prose = [(reply, False, reply) for reply in PROSE_FORMS]
    edits = [(reply, True, expected) for reply, expected in IN_BLOCKS]
    for reply, blocks, expected in (*calls, *prose, *edits):
        assert (reply, visible_text(reply, blocks=blocks)) == (reply, expected)
        assert (reply, visible_text(*reply, blocks=blocks)) == (reply, expected)


HELD = ["tool:", "```", "~~~", "<tool_call>", '{"name": ', '{"tool": ', '[{"name": ', '[{"tool": ', " `` `"]


def test_line_that_may_start_a_call_is_held_until_the_reply_ends() -> None:
    for start in HELD:
        visible = VisibleText(TOOLS)
        pieces = ["I", " look.\n", start, "x\nDone.\n"]
        assert (start, [visible.feed(piece) for piece in pieces]) == (start, ["I", " look.\n", "", ""])
        visible.end()
        assert visible.feed("Done.") + visible.end() == "Done."


PROSE = st.sampled_from(
    ["I look.", "", "  indented", "`calc.py`:", "calc.py", "to", "too", "- tool: x", '{"a": 1}', "<b>", "~", "x = f(1)"]
)
MARKS = ("tool:", "tool: read_file", '{"', '"}', "<tool", "~~~", "```")
MORE = ("\n", "\r\n", "\u2028", "```python\n", "calc.py", "def f():", JSON_CALL, "words ")
FRAGMENTS = st.sampled_from([*MARKS, *'()"{}[,\\` ', *MORE])


@given(st.lists(FRAGMENTS | PROSE, max_size=25).map("".join), st.data(), st.booleans())
def test_shown_text_does_not_depend_on_the_chunks(reply: str, data: st.DataObject, blocks: bool) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(reply)), max_size=8).map(sorted))
    pieces = [reply[start:end] for start, end in pairwise([0, *cuts, len(reply)])]
    expected = visible_text(reply, blocks=blocks)
    assert visible_text(*pieces, blocks=blocks) == expected
    assert visible_text(*reply, blocks=blocks) == expected


@given(st.lists(PROSE | st.just(BLOCK) | st.just("```sh\nls\n```"), max_size=6).map("\n".join))
def test_text_that_is_applied_as_an_edit_is_hidden(reply: str) -> None:
    assert "HIDDEN" not in visible_text(reply, blocks=True)
    assert bool(read_blocks(reply, ("file.py",)).outcomes) == ("HIDDEN" in reply)
