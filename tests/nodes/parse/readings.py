"""Readers of replies in each form, short ways to write what is read and what comes out, and any reply at all."""

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st

from mendgraph.nodes.execute_tools.registry import ActionRegistry
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.parse.answers import TurnFacts, answer_problems
from mendgraph.nodes.parse.reading import Reader, ReplyReading, read_reply
from mendgraph.nodes.records import (
    EditForm,
    Effect,
    ExtractionError,
    ExtractionErrorType as Kind,
    FinishReason,
    JsonMap,
    ModelReply,
    Profile,
    Protocol,
    RawCall,
    Reading,
    ToolCall,
)

REGISTRY = ActionRegistry(default_tools())
WRITING = frozenset(spec.name for spec in REGISTRY.specs() if spec.effect is Effect.WRITE)
COUNT = {"type": "object", "required": ["count"]}
GOOD = 'tool: read_file({"path": "a.py"})'


def reader(
    protocol: Protocol = Protocol.TEXT,
    edit_form: EditForm = EditForm.REPLACE,
    schema: JsonMap | None = None,
    shown: tuple[str, ...] = (),
    turn: TurnFacts | None = None,
) -> Reader:
    profile = Profile(protocol=protocol, edit_form=edit_form)
    check = partial(answer_problems, schema=schema)
    return Reader(profile, REGISTRY.names(), REGISTRY.validate, check, WRITING, shown, turn=turn or TurnFacts())


TEXT, NATIVE = reader(), reader(Protocol.NATIVE)
BLOCKS = reader(edit_form=EditForm.BLOCKS, shown=("calc.py",))
NATIVE_BLOCKS = reader(Protocol.NATIVE, EditForm.BLOCKS, shown=("calc.py",))
EITHER = pytest.mark.parametrize("how", [TEXT, NATIVE], ids=["text", "native"])


def read(how: Reader, text: str = "", *calls: RawCall, finish: FinishReason = FinishReason.STOP) -> ReplyReading:
    return read_reply(ModelReply(text=text, calls=calls, finish_reason=finish), 3, how)


def raw(tool: str, arguments: str, call_id: str = "") -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)


def reading_file(call_id: str = "call_3_0", path: str = "a.py", line: int = 1, raw_text: str | None = None) -> ToolCall:
    return ToolCall(
        call_id=call_id,
        tool="read_file",
        arguments={"path": path, "start_line": 1, "limit": 0, "start_column": 1},
        raw_arguments=raw_text if raw_text is not None else json.dumps({"path": path}),
        line_number=line,
    )


def answering(call_id: str, answer: str, raw_text: str, value: Any = None) -> ToolCall:
    arguments = {"answer": answer, "value": value}
    return ToolCall(call_id=call_id, tool="final_answer", arguments=arguments, raw_arguments=raw_text)


def checking(*paths: str) -> ToolCall:
    arguments = {"paths": list(paths)}
    raw_text = json.dumps(arguments)
    return ToolCall(
        call_id="call_3_checks", tool="run_checks", arguments=arguments, raw_arguments=raw_text, implied=True
    )


def malformed(kind: Kind, content: str, details: str) -> ReplyReading:
    return ReplyReading(Reading.MALFORMED, [], [ExtractionError(kind, 0, content, details)])


CODE = "def add(a, b):\n    return a + b\n"


def editing(call_id: str, path: str, line: int) -> ToolCall:
    arguments = {"path": path, "content": CODE}
    return ToolCall(call_id=call_id, tool="edit_blocks", arguments=arguments, raw_arguments=CODE, line_number=line)


def implied(said: str, **value: Any) -> ToolCall:
    arguments = {"answer": said, **value}
    return ToolCall(call_id="call_3_answer", tool="final_answer", arguments=arguments, raw_arguments="", implied=True)


ARGUMENTS = st.one_of(
    st.fixed_dictionaries({"path": st.text(max_size=5)}).map(json.dumps),
    st.dictionaries(st.sampled_from(["path", "answer", "value", "x"]), st.integers() | st.text(max_size=3)).map(
        json.dumps
    ),
    st.sampled_from(["", "{}", "[]", "null", "{", '{"path": "\\ud83d"}', '{"path": NaN}', '{"a": 1, "a": 2}']),
)
TOOLS = st.sampled_from(["read_file", "list_files", "final_answer", "edit_file", "nope"])
CALLS = st.lists(st.tuples(TOOLS, ARGUMENTS), min_size=1, max_size=5)

REPLIES = st.builds(
    ModelReply,
    text=st.text(max_size=40)
    | st.lists(
        st.sampled_from([GOOD, "calc.py", "```python", "```", "tool: (", '{"name": "read_file"', "def f():"])
    ).map("\n".join),
    calls=st.lists(
        st.builds(
            RawCall,
            call_id=st.sampled_from(["", "x", "y", "call_3_1", "\n"]),
            tool=TOOLS | st.text(max_size=5),
            arguments=ARGUMENTS | st.text(max_size=10),
        ),
        max_size=4,
    ).map(tuple),
    finish_reason=st.sampled_from(FinishReason),
)
