"""Whole runs as OpenTelemetry traces."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from opentelemetry.trace import SpanKind, StatusCode

from mendgraph import AgentContext, Asked, Session, arun_task, build_graph, run_task
from tests.doubles.scripted_server import Calls, Say, ScriptedServer, Stall, Status
from tests.surfaces.telemetry.conftest import SpanRecorder, context
from tests.workspace_files import write_files

READ = Calls([("read_file", '{"path": "a.txt"}')], usage=(10, 5))
DONE = Say("Done.", usage=(20, 7))
WORD = "hunter2-hunter2-hunter2"
PATH = ["invoke_agent mendgraph", "chat m", "execute_tool read_file", "chat m"]


def by_task(run: AgentContext) -> None:
    run_task("Look.", run, thread_id="t")


def by_atask(run: AgentContext) -> None:
    asyncio.run(arun_task("Look.", run, thread_id="t"))


def by_invoke(run: AgentContext) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    build_graph(InMemorySaver()).invoke({"messages": [HumanMessage("Look.")]}, config, context=run)


def by_parent(run: AgentContext) -> None:
    machine = build_graph()

    def ask(state: MessagesState) -> Any:
        return {"messages": machine.invoke({"messages": state["messages"]}, context=run)["messages"]}

    parent = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    config: Any = {"configurable": {"thread_id": "t"}}
    parent.compile(InMemorySaver()).invoke({"messages": [HumanMessage("Look.")]}, config)


WAYS = [by_task, by_atask, by_invoke, by_parent]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_run_is_one_trace_for_each_way_to_run_it(
    way: Callable[[AgentContext], None], tmp_path: Path, span_recorder: SpanRecorder
) -> None:
    write_files(tmp_path, {"a.txt": "one\n"})
    with ScriptedServer([READ, DONE]) as server:
        way(context(tmp_path, server.base_url))
    assert span_recorder.names() == PATH
    agent, *children = span_recorder.spans
    assert agent.context is not None
    assert {child.parent.span_id for child in children if child.parent} == {agent.context.span_id}
    (conversation,) = {(span.attributes or {}).get("gen_ai.conversation.id") for span in span_recorder.spans}
    assert str(conversation).split("|")[0] == "t"  # what follows is the place in a parent graph


def test_spans_of_a_run_have_the_attributes_of_the_conventions(tmp_path: Path, span_recorder: SpanRecorder) -> None:
    write_files(tmp_path, {"a.txt": "one\n"})
    printed = Say('<tool_call>{"name": "read_file", "arguments": {"path": "a.txt"}}</tool_call>', usage=(10, 5))
    with ScriptedServer([READ, printed, DONE]) as server:
        run_task("Look.", context(tmp_path, server.base_url), thread_id="t")
    agent, chat, tool, _, rescued, last = (dict(span.attributes or {}) for span in span_recorder.spans)
    conversation = {"gen_ai.conversation.id": "t"}
    model = {"gen_ai.provider.name": "openai", "gen_ai.request.model": "m", **conversation}
    assert agent == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "mendgraph",
        **model,
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 17,
        "mendgraph.mode": "auto",
        "mendgraph.outcome.kind": "FINISHED",
        "mendgraph.outcome.reason": "answered",
        "mendgraph.changed_files": 0,
    }
    assert {**chat, "gen_ai.request.max_tokens": 0} == {
        "gen_ai.operation.name": "chat",
        **model,
        "gen_ai.response.model": "m",
        "gen_ai.request.max_tokens": 0,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }
    assert {**tool, "gen_ai.tool.call.id": "c"} == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "read_file",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c",
        **conversation,
        "mendgraph.tool.attempts": 1,
    }
    assert rescued["mendgraph.tool.call_format"] == "hermes"
    assert last["gen_ai.response.finish_reasons"] == ("stop",)
    kinds = [SpanKind.INTERNAL, *[SpanKind.CLIENT, SpanKind.INTERNAL] * 2, SpanKind.CLIENT]
    assert [span.kind for span in span_recorder.spans] == kinds
    assert ("one" in span_recorder.text(), "Look." in span_recorder.text()) == (False, False)


def test_failed_run_is_an_error(tmp_path: Path, span_recorder: SpanRecorder) -> None:
    with ScriptedServer([Status(401)]) as server:
        run_task("Look.", context(tmp_path, server.base_url))
    agent, chat = span_recorder.spans
    assert (agent.status.status_code, (agent.attributes or {})["error.type"]) == (StatusCode.ERROR, "provider_failed")
    assert (chat.status.status_code, (chat.attributes or {})["error.type"]) == (StatusCode.ERROR, "authentication")


def leave_stream(machine: Any, run: AgentContext) -> None:
    parts = machine.stream({"messages": [HumanMessage("Look.")]}, context=run)
    next(parts)
    parts.close()


def leave_astream(machine: Any, run: AgentContext) -> None:
    async def leave() -> None:
        parts = machine.astream({"messages": [HumanMessage("Look.")]}, context=run)
        await anext(parts)
        await parts.aclose()

    asyncio.run(leave())


@pytest.mark.parametrize("leave", [leave_stream, leave_astream], ids=["sync", "async"])
def test_closing_a_stream_is_not_traced_as_a_failure(
    leave: Callable[[Any, AgentContext], None], tmp_path: Path, span_recorder: SpanRecorder
) -> None:
    leave(build_graph(), context(tmp_path, "http://x.y"))
    (agent,) = span_recorder.spans
    assert agent.status.status_code is StatusCode.UNSET
    assert "error.type" not in (agent.attributes or {})


def test_cancelled_run_is_traced_as_cancelled(tmp_path: Path, span_recorder: SpanRecorder) -> None:
    async def cancel(url: str) -> None:
        run = context(tmp_path, url, request_timeout_s=60.0)
        task = asyncio.ensure_future(build_graph().ainvoke({"messages": [HumanMessage("Look.")]}, context=run))
        while not server.requests:  # noqa: ASYNC110 - the server is in another thread
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ScriptedServer([Stall(0)]) as server:
        asyncio.run(cancel(server.base_url))
    assert span_recorder.names() == ["invoke_agent mendgraph", "chat m"]
    for span in span_recorder.spans:
        assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "cancelled")


def test_run_that_changes_files_is_traced_with_verification_and_cost(
    tmp_path: Path, span_recorder: SpanRecorder
) -> None:
    write = Calls([("write_file", '{"path": "b.txt", "content": "two"}')], usage=(300, 5))
    prices = {"usd_per_million_input": 100_000.0, "usd_per_million_output": 200_000.0}
    with ScriptedServer([write, Say("Done.", usage=(400, 7))]) as server:
        run_task("Write.", context(tmp_path, server.base_url, **prices))
    outcome = {
        name: value
        for name, value in (span_recorder.spans[0].attributes or {}).items()
        if name.startswith("mendgraph.")
    }
    assert outcome == {
        "mendgraph.mode": "auto",
        "mendgraph.outcome.kind": "FINISHED",
        "mendgraph.outcome.reason": "answered",
        "mendgraph.outcome.verified": "none",
        "mendgraph.changed_files": 1,
        "mendgraph.session.cost_usd": pytest.approx(700 * 0.1 + 12 * 0.2),
    }


def test_secret_in_thread_and_model_name_is_not_traced(
    tmp_path: Path, span_recorder: SpanRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD_TOKEN", WORD)
    config: Any = {"configurable": {"thread_id": f"thread-{WORD}"}}
    with ScriptedServer([DONE]) as server:
        run = context(tmp_path, server.base_url, model=f"m-{WORD}")
        build_graph(InMemorySaver()).invoke({"messages": [HumanMessage("Look.")]}, config, context=run)
    assert span_recorder.names()[0] == "invoke_agent mendgraph"
    assert WORD not in span_recorder.text()


def test_interrupted_run_and_its_answer_are_separate_spans(tmp_path: Path, span_recorder: SpanRecorder) -> None:
    write = Calls([("write_file", '{"path": "b.txt", "content": "two"}')])
    with (
        ScriptedServer([write, Say("Done.")]) as server,
        Session(context(tmp_path, server.base_url, mode="ask"), thread_id="t") as session,
    ):
        assert isinstance(session.work("Write."), Asked)
        session.work_on("approve")
    agents = [span for span in span_recorder.spans if span.name == "invoke_agent mendgraph"]
    assert [(agent.attributes or {})["gen_ai.conversation.id"] for agent in agents] == ["t", "t"]
    assert agents[0].status.status_code is StatusCode.UNSET
