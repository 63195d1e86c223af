"""What is observed of a run, as spans, events and metrics."""

import asyncio
import json
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from mendgraph.graph.telemetry.observing import at_work, observed_call
from mendgraph.graph.telemetry.spans import (
    CAPTURE_VARIABLE,
    RunSpan,
    answered,
    asked,
    captures_messages,
    observer,
    provider_of,
    server_of,
)
from mendgraph.nodes.call_model.endpoint import Endpoint, ModelChoice
from mendgraph.nodes.call_model.model import Call, Model
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import (
    FinishReason,
    ModelReply,
    Outcome,
    OutcomeKind,
    ProviderErrorKind,
    ProviderFailure,
    RawCall,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
)
from tests.graph.telemetry.conftest import Told


def begun(conversation: str = "t") -> RunSpan:
    run = observer(conversation, str)
    assert run is not None
    return run


def test_what_is_told_after_the_end_is_not_heard(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    with begun() as run:
        pass
    run.set({"late": 1})
    run.fail("late")
    assert told.names() == ["invoke_agent mendgraph"]
    assert caplog.text == ""
    assert told.spans[0].status.status_code is StatusCode.UNSET


def test_half_a_surrogate_pair_is_told_as_a_question_mark(told: Told) -> None:
    """An exporter cannot write it, and would drop all the spans that it sends together."""
    with begun("t\ud800") as run:
        run.set({"said": "a\udfffb", "more": ("x",)})
    attributes = told.spans[0].attributes or {}
    assert [attributes[name] for name in ("gen_ai.conversation.id", "said", "more")] == ["t?", "a?b", ("x",)]


@pytest.mark.parametrize(("kind", "code"), [("BUDGET_STOP", StatusCode.UNSET), ("SYSTEM_ERROR", StatusCode.ERROR)])
def test_an_outcome_is_told_without_its_words(kind: str, code: StatusCode, told: Told) -> None:
    outcome = Outcome(kind=OutcomeKind(kind), reason=StopReason.REFUSED, message="secret words", answer="secret words")
    with begun() as run:
        run.node_ended(kind, {"outcome": outcome})
    assert told.spans[0].status.status_code is code
    assert (told.spans[0].attributes or {})["mendgraph.outcome.reason"] == "refused"
    assert "secret words" not in told.text()


CALL = ToolCall(call_id="c", tool="mine", arguments={"a": 1}, raw_arguments="{}")


def make(output: ToolOutput) -> None:
    with observed_call(CALL) as ended:
        ended(ToolRun("c", "mine", output, attempts=2))


def test_a_failed_call_has_its_code_and_no_words(told: Told) -> None:
    failure = ToolOutput.failed(ToolError(code=ToolErrorCode.TIMEOUT, message="secret words"))
    with begun() as run, at_work(run):
        make(failure)
    tool = told.named("execute_tool mine")
    assert dict(tool.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "mine",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c",
        "gen_ai.conversation.id": "t",
        "mendgraph.tool.attempts": 2,
        "error.type": "timeout",
    }
    assert "secret words" not in told.text()


PROMPT = Prompt(messages=({"role": "user", "content": "Look."},))
CHAT = Call(prompt=PROMPT, max_output_tokens=9, timeout_s=1.0)
FAILURE = ProviderFailure(kind=ProviderErrorKind.TIMEOUT, message="secret words")


class Mine(Model):
    """A model that gives back what it was made with."""

    def __init__(self, result: Any) -> None:
        self.result = result

    async def acomplete(self, call: Call, on_text: Any) -> Any:
        on_text(str(call.max_output_tokens))
        return self.result


def reply_of(model: Mine, wanted: ModelChoice, *, own: bool = False) -> Any:
    """What comes of one call."""
    heard: list[str] = []
    with begun() as run, at_work(run):
        result: Any = asyncio.run(run.model(model, wanted, own=own).acomplete(CHAT, heard.append))
    assert heard == ["9"]
    return result


def test_a_failed_try_has_its_kind_and_no_words(told: Told) -> None:
    assert reply_of(Mine(FAILURE), ModelChoice(model="m", base_url="http://h.example/v1")) is FAILURE
    chat = told.named("chat m")
    assert (chat.status.status_code, (chat.attributes or {})["error.type"]) == (StatusCode.ERROR, "timeout")
    assert "secret words" not in told.text()


def test_a_model_without_a_name_is_told_by_its_reply(told: Told) -> None:
    reply_of(Mine(ModelReply(model="mine-7b")), ModelChoice(model=None, base_url=None), own=True)
    chat = told.named("chat").attributes or {}
    assert (chat["gen_ai.provider.name"], chat["gen_ai.response.model"]) == ("custom", "mine-7b")


def test_what_is_part_of_input_and_output_is_told_where_there_is_any(told: Told) -> None:
    parts = {"cached_tokens": 5, "cache_write_tokens": 3, "reasoning_tokens": 2}
    for more in (parts, {}):
        reply_of(
            Mine(ModelReply(input_tokens=9, output_tokens=4, **more)), ModelChoice(model="m", base_url=None), own=True
        )
    names = ("cache_read.input_tokens", "cache_creation.input_tokens", "reasoning.output_tokens")
    chats = [span.attributes or {} for span in told.spans if span.name == "chat m"]
    found = [[chat.get(f"gen_ai.usage.{name}") for name in names] for chat in chats]
    assert found == [[5, 3, 2], [None, None, None]]


def test_what_is_no_reply_is_an_error(told: Told) -> None:
    assert reply_of(Mine("nonsense"), ModelChoice(model="m", base_url=None), own=True) == "nonsense"
    assert (told.named("chat m").attributes or {})["error.type"] == "invalid_reply"


@pytest.mark.parametrize(
    ("url", "provider"),
    [("", "openai"), ("https://API.DeepSeek.com", "deepseek"), ("https://notapi.deepseek.com.example/v1", "openai")],
)
def test_the_provider_is_named_after_its_host(url: str, provider: str) -> None:
    assert provider_of(Endpoint(model="m", base_url=url)) == provider


def test_models_without_an_endpoint_have_a_name_and_no_server() -> None:
    embedded = Endpoint(model="local", embedded=True)
    assert [provider_of(each) for each in (embedded, None)] == ["llama.cpp", "custom"]
    assert [server_of(each) for each in (embedded, None)] == [{}, {}]


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("", {"server.address": "api.openai.com", "server.port": 443}),
        ("http://localhost/v1", {"server.address": "localhost", "server.port": 80}),
        ("http://localhost:81/v1", {"server.address": "localhost", "server.port": 81}),
    ],
)
def test_the_server_is_told_with_its_port(url: str, server: dict[str, object]) -> None:
    assert server_of(Endpoint(model="m", base_url=url)) == server


@pytest.mark.parametrize(
    ("value", "wanted"), [("", False), ("false", False), ("True", True), ("SPAN_ONLY", True), ("EVENT_ONLY", False)]
)
def test_messages_are_told_only_where_the_user_says_so(value: str, wanted: bool) -> None:
    assert captures_messages({CAPTURE_VARIABLE: value}) is wanted
    assert captures_messages({}) is False


def test_a_request_has_the_conventions_form() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    said = asked(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "one"},
        ]
    )
    assert json.loads(said["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(said["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Look."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "read_file", "arguments": {}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "one"}]},
    ]


def test_a_reply_has_the_conventions_form() -> None:
    calls = [
        RawCall(call_id="c", tool="read_file", arguments=each) for each in ('{"path":"a","n":NaN}', "{path", "[" * 9999)
    ]
    said = answered(ModelReply(text="So.", reasoning="Hm.", calls=tuple(calls), finish_reason=FinishReason.TOOL_CALLS))
    made = {"type": "tool_call", "id": "c", "name": "read_file"}
    assert json.loads(said["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "Hm."},
                {"type": "text", "content": "So."},
                {**made, "arguments": {"path": "a", "n": "NaN"}},
                {**made, "arguments": "{path"},
                {**made, "arguments": "[" * 9999},
            ],
            "finish_reason": "tool_call",
        }
    ]
    assert json.loads(answered(ModelReply())["gen_ai.output.messages"])[0]["parts"] == []
