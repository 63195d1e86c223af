from collections.abc import Callable

import pytest

from graph.telemetry.active import tracer
from graph.telemetry.run_span import RunSpan
from graph.telemetry.traced_call import told_call
from nodes.execute_tools.registry import ToolOutput
from nodes.execute_tools.tool_run import ToolRun
from nodes.records import ToolCall, ToolError, ToolErrorCode, ToolResult
from tests.graph.telemetry.conftest import Told

CALL = ToolCall(call_id="c", tool="mine", arguments={"a": 1}, raw_arguments="{}")


def ended(output: ToolOutput) -> Callable[[], ToolRun]:
    return lambda: ToolRun("c", "mine", output, attempts=2)


def test_without_a_listener_the_call_is_made_and_no_more() -> None:
    run = ended(ToolOutput(ToolResult.success(x=1)))
    assert told_call(CALL, run).attempts == 2


def test_a_failed_call_has_its_code_and_no_words(told: Told) -> None:
    listening = tracer()
    assert listening is not None
    run = RunSpan(listening, "t")
    failure = ToolOutput.failed(ToolError(code=ToolErrorCode.TIMEOUT, message="secret words"))
    with run.at_work():
        assert told_call(CALL, ended(failure)).attempts == 2
    run.end()
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


def test_arguments_and_results_are_told_where_the_user_says_so(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "span_only")
    listening = tracer()
    assert listening is not None
    run = RunSpan(listening, "t")
    with run.at_work():
        told_call(CALL, ended(ToolOutput(ToolResult.success(x=1))))
    run.end()
    attributes = told.named("execute_tool mine").attributes or {}
    assert attributes["gen_ai.tool.call.arguments"] == '{"a":1}'
    assert attributes["gen_ai.tool.call.result"] == '{"ok":true,"data":{"x":1}}'
