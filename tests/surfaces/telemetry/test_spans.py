"""The spans of a run."""

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from mendgraph.graph.telemetry.spans import RunSpan, at_work, observed_call, provider_of, run_observer
from mendgraph.nodes.call_model.endpoint import Endpoint, ModelChoice
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
from mendgraph.nodes.records import (
    ModelReply,
    Outcome,
    OutcomeKind,
    ProviderErrorKind,
    ProviderFailure,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
)
from tests.surfaces.telemetry.conftest import SpanRecorder


def span_of_run(conversation: str = "t") -> RunSpan:
    run = run_observer(conversation, str)
    assert run is not None
    return run


def test_lone_surrogate_becomes_a_question_mark(span_recorder: SpanRecorder) -> None:
    """An exporter cannot encode it, and would drop the whole batch of spans."""
    with span_of_run("t\ud800"):
        pass
    assert (span_recorder.spans[0].attributes or {})["gen_ai.conversation.id"] == "t?"


@pytest.mark.parametrize(("kind", "code"), [("BUDGET_STOP", StatusCode.UNSET), ("SYSTEM_ERROR", StatusCode.ERROR)])
def test_outcome_is_traced_without_its_texts(kind: str, code: StatusCode, span_recorder: SpanRecorder) -> None:
    outcome = Outcome(kind=OutcomeKind(kind), reason=StopReason.REFUSED, message="secret words", answer="secret words")
    with span_of_run() as run:
        run.node_ended(kind, {"outcome": outcome})
    assert span_recorder.spans[0].status.status_code is code
    assert (span_recorder.spans[0].attributes or {})["mendgraph.outcome.reason"] == "refused"
    assert "secret words" not in span_recorder.text()


PROMPT = Prompt(messages=({"role": "user", "content": "Look."},))
CHAT = Call(prompt=PROMPT, max_output_tokens=9, timeout_s=1.0)
FAILURE = ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message="secret words")


class FixedReplyModel(Model):
    """A model that returns what it was created with."""

    def __init__(self, result: Any) -> None:
        self.result = result

    async def acomplete(self, call: Call, on_text: Any) -> Any:
        return self.complete(call, on_text)

    def complete(self, call: Call, on_text: Any) -> Any:
        on_text(str(call.max_output_tokens))
        return self.result


def reply_of(model: FixedReplyModel, choice: ModelChoice, *, is_users: bool = False, in_loop: bool = True) -> Any:
    """The reply of one call."""
    heard: list[str] = []
    with span_of_run() as run, at_work(run):
        observed = run.model(model, choice, is_users=is_users)
        if in_loop:
            result: Any = asyncio.run(observed.acomplete(CHAT, heard.append))
        else:
            result = observed.complete(CHAT, heard.append)
    assert heard == ["9"]
    return result


def test_token_details_are_traced_if_present(span_recorder: SpanRecorder) -> None:
    parts: dict[str, Any] = {"cached_tokens": 5, "cache_write_tokens": 3, "reasoning_tokens": 2}
    for more in (parts, {}):
        reply_of(
            FixedReplyModel(ModelReply(input_tokens=9, output_tokens=4, **more)),
            ModelChoice(model="m", base_url=None),
            is_users=True,
        )
    names = ("cache_read.input_tokens", "cache_creation.input_tokens", "reasoning.output_tokens")
    chats = [span.attributes or {} for span in span_recorder.spans if span.name == "chat m"]
    details = [[chat.get(f"gen_ai.usage.{name}") for name in names] for chat in chats]
    assert details == [[5, 3, 2], [None, None, None]]


CALL = ToolCall(call_id="c", tool="mine", arguments={"a": 1}, raw_arguments="{}")


@pytest.mark.parametrize("in_loop", [False, True], ids=["sync", "async"])
def test_failed_model_call_has_its_kind_and_no_text(span_recorder: SpanRecorder, in_loop: bool) -> None:
    choice = ModelChoice(model="m", base_url="http://h.example/v1")
    assert reply_of(FixedReplyModel(FAILURE), choice, in_loop=in_loop) is FAILURE
    chat = span_recorder.named("chat m")
    assert (chat.status.status_code, (chat.attributes or {})["error.type"]) == (StatusCode.ERROR, "timeout")
    assert "secret words" not in span_recorder.text()


def test_users_chat_model_is_named_by_its_reply(span_recorder: SpanRecorder) -> None:
    unnamed = ModelChoice(model=None, base_url=None)
    reply_of(FixedReplyModel(ModelReply(model="mine-7b")), unnamed, is_users=True)
    assert reply_of(FixedReplyModel("nonsense"), unnamed, is_users=True) == "nonsense"
    chat, broken = (span.attributes or {} for span in span_recorder.spans if span.name == "chat")
    assert (chat["gen_ai.provider.name"], chat["gen_ai.response.model"]) == ("custom", "mine-7b")
    assert broken["error.type"] == "invalid_reply"


PROVIDERS = {
    "": "openai",
    "openai": "openai",
    "anthropic": "anthropic",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "anthropic_bedrock": "aws.bedrock",
    "google_vertexai": "gcp.vertex_ai",
    "google_anthropic_vertex": "gcp.vertex_ai",
    "google_genai": "gcp.gemini",
    "azure_openai": "azure.ai.openai",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}


def test_provider_has_the_name_from_the_conventions() -> None:
    assert {name: provider_of(Endpoint(model="m", provider=name)) for name in PROVIDERS} == PROVIDERS
    assert provider_of(Endpoint(model="local", embedded=True)) == "llama.cpp"
    assert provider_of(None) == "custom"


def test_failed_tool_call_has_its_code_and_no_text(span_recorder: SpanRecorder) -> None:
    failure = ToolOutput.failed(ToolError(code=ToolErrorCode.TIMEOUT, message="secret words"))
    with span_of_run() as run, at_work(run), observed_call(CALL) as ended:
        ended(ToolOutcome("c", "mine", failure, attempts=2))
    tool = span_recorder.named("execute_tool mine").attributes or {}
    assert (tool["mendgraph.tool.attempts"], tool["error.type"]) == (2, "timeout")
    assert "secret words" not in span_recorder.text()


def test_process_without_a_tracer_creates_no_observer() -> None:
    assert run_observer("t", str) is None
