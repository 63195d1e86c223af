"""A tool call that is a span `execute_tool {tool}`, where somebody listens."""

import os
from collections.abc import Callable

from graph.current_redactor import CurrentRedactor
from graph.telemetry import conventions as names
from graph.telemetry.active import CURRENT_RUN
from graph.telemetry.said import as_json
from nodes.execute_tools.tool_run import ToolRun
from nodes.records import ToolCall


def told_call(call: ToolCall, run_it: Callable[[], ToolRun]) -> ToolRun:
    """What `run_it` gives; the run that is at work is told of it."""
    run = CURRENT_RUN.get()
    if run is None:
        return run_it()
    with_messages = names.captures_messages(os.environ)
    attributes = {
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: call.tool,
        "gen_ai.tool.type": "function",
        names.TOOL_CALL: call.call_id,
        names.CONVERSATION: run.attributes.get(names.CONVERSATION),
        **_said(with_messages, "gen_ai.tool.call.arguments", call.arguments),
    }
    with run.child(f"execute_tool {call.tool}", attributes) as telling:
        ran = run_it()
        telling.set({"mendgraph.tool.attempts": ran.attempts})
        telling.set(_said(with_messages, "gen_ai.tool.call.result", ran.result.as_map()))
        if ran.result.error is not None:
            telling.fail(ran.result.error.code.value)
        return ran


def _said(wanted: bool, name: str, value: object) -> dict[str, str]:
    """Freed of secrets once more: a run that was resumed has what the journal kept."""
    return {name: CurrentRedactor(()).now().text(as_json(value))} if wanted else {}
