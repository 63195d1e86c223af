"""Issues that users of LangGraph, LangChain and deepagents have reported, reproduced with our agents."""

import asyncio
import warnings
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool as langchain_tool
from langgraph.types import Command

from mendgraph import build_graph
from tests.doubles.replies import Calls, Reply, Status
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow
from tests.langchain.embedding import REPAIR, THREAD, context, native_model, saver
from tests.langchain.test_embedding_agents import chief
from tests.scenarios.sample_repair import CALC, MENDED, TASK
from tests.workspace_files import changed_files

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries of deepagents, at their import
    from deepagents import CompiledSubAgent, create_deep_agent


@slow
def test_parallel_subagents_with_questions_run_each_call_once(tmp_path: Path) -> None:
    """deepagents#420: a question inside of a subagent, beside other calls."""
    models = {name: native_model(*REPAIR) for name in "xy"}
    agents = {
        name: build_graph(model=model, context=context(tmp_path / name, mode="ask")) for name, model in models.items()
    }
    calls_made: list[str] = []

    @langchain_tool
    async def mark() -> str:
        """Leave a mark."""
        calls_made.append("mark")
        return "marked"

    def reply(*calls: tuple[str, dict[str, str]]) -> AIMessage:
        tool_calls = [{"name": name, "args": args, "id": f"c{number}"} for number, (name, args) in enumerate(calls)]
        return AIMessage("", tool_calls=tool_calls)

    coders: Any = [CompiledSubAgent(name=name, description="Repairs.", runnable=agents[name]) for name in "xy"]
    task_calls = [("task", {"description": TASK, "subagent_type": name}) for name in "xy"]
    model = chief(reply(*task_calls, ("mark", {})), AIMessage("Repaired."))
    graph: Any = create_deep_agent(model=model, tools=[mark], subagents=coders, checkpointer=saver())

    async def play() -> Any:
        result = await graph.ainvoke({"messages": [HumanMessage("Repair both.")]}, THREAD)
        answers = 0
        while questions := result.get("__interrupt__"):
            assert [call["tool"] for call in questions[0].value["calls"]] == ["edit_file"]
            result = await graph.ainvoke(Command(resume={questions[0].id: "approve"}), THREAD)
            answers += 1
            assert [bool(changed_files(tmp_path / name, CALC)) for name in "xy"].count(True) == answers
        return result, answers

    result, answers = asyncio.run(play())
    assert [changed_files(tmp_path / name, CALC) for name in "xy"] == [{"calc.py": MENDED}] * 2
    assert (answers, calls_made, [len(model.calls) for model in models.values()]) == (2, ["mark"], [3, 3])
    assert [message.text for message in result["messages"][2:5]] == ["add now adds.", "add now adds.", "marked"]


def test_typed_result_uses_a_tool_and_no_forced_tool_choice(tmp_path: Path) -> None:
    """langchain#33863: endpoints that take no response format beside tools, and force no tool.

    Source: Groq's error in agno#1065, and langchain-google#1582.
    """

    def strict(request: dict[str, Any]) -> Reply:
        if request.get("tools") and request.get("response_format"):
            return Status(400, {"error": {"message": "response_format cannot be combined with tool/function calling"}})
        if request.get("tool_choice") in ("any", "required"):
            return Status(400, {"error": {"message": "tool_choice is not supported"}})
        if request["messages"][-1]["role"] == "tool":
            return Calls([("final_answer", '{"answer": "One.", "value": {"bugs": 1}}')])
        return Calls([("read_file", '{"path": "calc.py"}')])

    schema = {"type": "object", "properties": {"bugs": {"type": "integer"}}, "required": ["bugs"]}
    question: Any = {"messages": [HumanMessage("How many bugs are in calc.py?")]}
    with ScriptedServer(then=strict) as server:
        run = context(tmp_path, model="m", base_url=server.base_url, response_format=schema)
        result: Any = build_graph().invoke(question, context=run)
    assert (result["outcome"].kind, result["outcome"].value) == ("FINISHED", {"bugs": 1})
    assert len(server.requests) == 2
