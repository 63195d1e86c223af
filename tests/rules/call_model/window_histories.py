"""Histories of both protocols with message ids, and their sizes."""

import json
from collections.abc import Sequence
from math import ceil

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.nodes.language.history import settle_exchange
from mendgraph.nodes.records import CallResult, ModelReply, Protocol, ToolCall, ToolErrorCode, ToolResult


def size_of(message: AnyMessage) -> int:
    """An estimate in tokens: a third of the UTF-8 bytes, and four for the message."""
    calls = json.dumps(message.tool_calls) if isinstance(message, AIMessage) and message.tool_calls else ""
    return ceil(len(f"{message.text}{calls}".encode()) / 3) + 4


def tokens(messages: Sequence[AnyMessage]) -> int:
    return sum(map(size_of, messages))


def with_ids(messages: Sequence[AnyMessage], first: int = 0) -> list[AnyMessage]:
    return [message.model_copy(update={"id": f"m{at}"}) for at, message in enumerate(messages, start=first)]


def exchange(protocol: Protocol, *results: ToolResult, text: str = "", tool: str = "read_file") -> list[AnyMessage]:
    """A reply with a call for each result, and the results."""
    calls = []
    for at, result in enumerate(results):
        raw = json.dumps({"path": result.data.get("path", "x.py")}, separators=(",", ":"))
        calls.append(ToolCall(call_id=f"c{at}", tool=tool, arguments=json.loads(raw), raw_arguments=raw))
    lines = [f"tool: {call.tool}({call.raw_arguments})" for call in calls] if protocol is Protocol.TEXT else []
    done = [
        CallResult(call_id=call.call_id, tool=call.tool, result=result)
        for call, result in zip(calls, results, strict=True)
    ]
    return settle_exchange(ModelReply(text="\n".join(filter(None, [text, *lines]))), calls, done, protocol)


def read(characters: int, path: str = "a.py") -> ToolResult:
    return ToolResult.success(path=path, content="x" * characters, total_lines=3)


def failed(message: str = "There is no such file.") -> ToolResult:
    return ToolResult.failure(ToolErrorCode.NOT_FOUND, message, ("b.py",))


results = st.one_of(
    st.builds(read, st.integers(0, 6_000), st.sampled_from(["a.py", "src/b.py"])),
    st.builds(lambda count: ToolResult.success(matches=["hit in ünïcode\n"] * count), st.integers(0, 60)),
    st.builds(failed, st.text(max_size=60)),
)


@st.composite
def histories(draw: st.DrawFn, turns: int = 3, steps: int = 12) -> list[AnyMessage]:
    """Some finished turns and an unfinished one in one protocol."""
    protocol = draw(st.sampled_from(list(Protocol)))
    messages: list[AnyMessage] = []
    for turn in range(draw(st.integers(1, turns))):
        if turn:
            messages.append(AIMessage("Done: " + draw(st.text(max_size=50))))
        messages.append(HumanMessage(f"Request {turn}: " + draw(st.text(max_size=80))))
        for step_results in draw(st.lists(st.lists(results, min_size=1, max_size=3), max_size=steps)):
            messages += exchange(protocol, *step_results, text=draw(st.sampled_from(["", "I look at it. " * 40])))
    return with_ids(messages)
