"""A session that is far longer than the model's window: nothing overflows, and the task is in the prompt to the end."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph import AgentContext, build_graph
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.summary import SUMMARY_SYSTEM
from mendgraph.nodes.call_model.turn_prompt import NATIVE_SYSTEM
from mendgraph.nodes.records import FinishReason, ModelReply, ProviderErrorKind, ProviderFailure, RawCall
from tests.doubles.call_model import CallModel
from tests.extent import LEVEL, sampled
from tests.vocabulary import JsonMap

STEPS = 100
WINDOW = 16_000
TASK = "Read every file, then say which of them names the colour ultramarine-4711."
SUMMARY = {"done": ["read the files so far"], "findings": ["no colour yet"], "left": ["the rest"], "files": []}
BYTES_PER_TOKEN = 3.6


class Reader(CallModel):
    """Reads file after file and then answers; like an endpoint it counts tokens, and refuses more than its window."""

    def __init__(self, *, native: bool, summary: str = json.dumps(SUMMARY)) -> None:
        self.native, self.summary = native, summary
        self.largest = self.overflows = self.reads = self.summaries = 0
        self.prompts: list[tuple[JsonMap, ...]] = []

    def complete(self, call: Call, _: Callable[[str], None]) -> ModelReply | ProviderFailure:
        sent = json.dumps(call.prompt.messages, ensure_ascii=False) + json.dumps(call.prompt.tools)
        tokens = int(len(sent.encode()) / BYTES_PER_TOKEN)
        self.largest = max(self.largest, tokens + call.max_output_tokens)
        if tokens + call.max_output_tokens > WINDOW:
            self.overflows += 1
            return ProviderFailure(kind=ProviderErrorKind.CONTEXT_OVERFLOW, message="maximum context length is 16000")
        if call.prompt.messages[0]["content"] == SUMMARY_SYSTEM:
            self.summaries += 1
            return ModelReply(text=self.summary, input_tokens=tokens, output_tokens=60)
        self.prompts.append(call.prompt.messages)
        if self.reads == STEPS:
            return ModelReply(text="None of them.", input_tokens=tokens, output_tokens=5)
        arguments = json.dumps({"path": f"file_{self.reads % 20}.txt", "start_line": 1 + self.reads, "limit": 25})
        self.reads += 1
        counted: JsonMap = {"input_tokens": tokens, "output_tokens": 30}
        if self.native:
            call_of = RawCall(call_id=f"c{self.reads}", tool="read_file", arguments=arguments)
            return ModelReply(calls=(call_of,), finish_reason=FinishReason.TOOL_CALLS, **counted)
        return ModelReply(text=f"tool: read_file({arguments})", **counted)


WITH_SUMMARIES = ("text", json.dumps(SUMMARY))
WITH_USELESS_SUMMARIES = ("native", "I would rather not.")


@sampled
@pytest.mark.parametrize(
    ("protocol", "summary"), [WITH_SUMMARIES, WITH_USELESS_SUMMARIES] if LEVEL else [WITH_SUMMARIES]
)
def test_session_of_a_hundred_steps_fits_into_a_window_of_16_000_tokens(
    protocol: Any, summary: str, tmp_path: Path
) -> None:
    for number in range(20):
        (tmp_path / f"file_{number}.txt").write_text("".join(f"{n} {'word ' * 8}\n" for n in range(400)), "utf-8")
    model = Reader(native=protocol == "native", summary=summary)
    context = AgentContext(
        workspace=str(tmp_path),
        protocol=protocol,
        window_tokens=WINDOW,
        max_calls_per_turn=1_000,
        max_calls_per_session=1_000,
        max_input_tokens_per_session=10**9,
        max_output_tokens_per_session=10**9,
    )
    values: Any = {}
    compactions: list[JsonMap] = []
    turn_input: Any = {"messages": [("user", TASK)]}
    parts: Iterator[Any] = build_graph(model=model).stream(
        turn_input, context=context, stream_mode=["custom", "values"]
    )
    for mode, part in parts:
        if mode == "values":
            values = part
        elif part["type"] == "trace" and part["name"] == "context.compacted":
            compactions.append(part["payload"])
    assert (values["outcome"].kind, values["outcome"].answer) == ("FINISHED", "None of them.")
    assert (model.reads, model.overflows, values["spending"].steps) == (STEPS, 0, STEPS)
    assert model.largest <= WINDOW
    for prompt in model.prompts:
        assert any(TASK in message["content"] for message in prompt if message["role"] == "user")
        assert prompt[0] == model.prompts[0][0]
    assert (model.prompts[0][0]["content"] == NATIVE_SYSTEM) is (protocol == "native")
    assert 2 <= len(compactions) <= STEPS // 10
    assert all(compaction["tokens_after"] < 0.7 * compaction["tokens_before"] for compaction in compactions)
    complete_steps = sum(
        prompt[: len(before)] == before for before, prompt in zip(model.prompts, model.prompts[1:], strict=False)
    )
    assert complete_steps >= STEPS - len(compactions)
    assert len(values["messages"]) == 2 * STEPS + 2  # the history itself is whole
    assert model.summaries <= (3 if summary.startswith("I") else len(compactions))
