"""What users of LangGraph, LangChain and deepagents have reported, told to their packages and to ours.

A test whose name ends with `still` shows that the package does it to this day; ours follows.
"""

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool as langchain_tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel, SecretStr

from mendgraph.graph.machine.build import build_graph
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect, JsonMap, OutcomeKind, StopReason
from tests.doubles.replies import Calls, Reply, Status
from tests.doubles.scripted_server import ScriptedServer
from tests.doubles.tool_use import use
from tests.runs.embedding import ASKED, REPAIR, THREAD, context, saver, told
from tests.runs.test_embedding_agents import chief
from tests.scenarios.sample_repair import CALC, DONE, EDIT, MENDED, READ, TASK
from tests.workspace_files import changed_files

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries of deepagents, at their import
    from deepagents import CompiledSubAgent, create_deep_agent
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelCallLimitMiddleware
    from langchain.agents.structured_output import ProviderStrategy, ToolStrategy


def calls(*wanted: tuple[str, JsonMap]) -> AIMessage:
    """One message that calls these tools."""
    made = [{"name": name, "args": given, "id": f"c{number}"} for number, (name, given) in enumerate(wanted)]
    return AIMessage("", tool_calls=made)


def tool_node(tools: list[BaseTool], sent: Callable[[Any], Any] = lambda _: "tools") -> Any:
    """A graph of one `ToolNode`, which is given the whole message, or what is `sent`."""
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(tools))
    builder.add_conditional_edges(START, sent)
    return builder.compile(checkpointer=saver())


def marker(ran: list[str]) -> BaseTool:
    """A tool without a question, each run of which is seen."""

    @langchain_tool
    async def mark() -> str:
        """Leave a mark."""
        ran.append("mark")
        return "marked"

    return mark


# --- langgraph#6533, langgraph#6624: people in the loop with parallel calls


def test_6624_and_6533_one_question_hides_the_other_and_its_answer_goes_astray_still() -> None:
    """`create_agent` gives each call a task of its own and shows both; a `ToolNode` of one's own does not."""
    ran: list[str] = []
    turn: dict[str, Any] = {}

    def asking(name: str) -> BaseTool:
        async def ask() -> str:
            if name != turn["first"]:
                await turn["begun"].wait()
            turn["begun"].set()
            return f"{name}: {interrupt(f'May {name}?')}"

        return langchain_tool(name, description="Ask.")(ask)

    graph = tool_node([asking("a"), asking("b"), marker(ran)])

    async def play() -> tuple[list[list[str]], list[str]]:
        given: Any = {"messages": [HumanMessage("Go."), calls(("a", {}), ("b", {}), ("mark", {}))]}
        shown = []
        for first in ("a", "b", "a"):
            turn.update(first=first, begun=asyncio.Event())
            result = await graph.ainvoke(given, THREAD)
            shown.append([each.value for each in result.get("__interrupt__", ())])
            given = Command(resume=f"yes to {shown[-1]}")
        return shown, [message.content for message in result["messages"][2:]]

    shown, results = asyncio.run(play())
    assert shown == [["May a?"], ["May a?"], []]
    assert results == ["a: yes to ['May a?']", "b: yes to ['May a?']", "marked"]
    assert ran == ["mark"] * 3


@tool(effect=Effect.READ)
def mark(context: ToolContext) -> ToolOutput:
    """Leave a mark outside of the workspace."""
    with (Path(context.workspace.root).parent / "marks").open("a", encoding="utf-8") as marks:
        marks.write("x")
    return ToolOutput.ok(left=1)


APPEND: tuple[str, JsonMap] = ("append_file", {"path": "log.txt", "content": "one"})


def test_ours_asks_all_at_once_gives_each_call_its_answer_and_runs_all_once(tmp_path: Path) -> None:
    """Whoever goes back to the question and answers it again writes nothing twice: the file is not as it was shown."""
    model = told(use(READ), use(EDIT, ("mark", {}), APPEND), DONE, DONE)
    graph = build_graph(saver(), model=model, tools=(*default_tools(), mark))
    settings: Any = {"context": context(tmp_path / "w", mode="ask")}
    (question,) = graph.invoke(ASKED, THREAD, **settings)["__interrupt__"]
    asked = [(call["index"], call["tool"]) for call in question.value["calls"]]
    assert (asked, (tmp_path / "marks").exists()) == ([(0, "edit_file"), (2, "append_file")], False)
    place = graph.get_state(THREAD).config
    answer: Any = Command(resume={"decisions": {"2": {"action": "approve"}, "0": {"action": "reject"}}})
    ended: Any = graph.invoke(answer, THREAD, **settings)
    assert [message.type for message in ended["messages"][4:]] == ["tool", "tool", "tool", "ai"]
    assert '"code":"permission_denied","message":"A person did not approve this call.' in ended["messages"][4].text
    assert (changed_files(tmp_path / "w", CALC), (tmp_path / "marks").read_text()) == ({"log.txt": "one"}, "x")
    again: Any = graph.invoke(answer, place, **settings)
    assert '"code":"conflict","message":"\'log.txt\' has changed since a person was shown' in again["messages"][6].text
    assert changed_files(tmp_path / "w", CALC) == {"log.txt": "one"}


# --- deepagents#420: a question inside of a subagent, beside other calls


@pytest.mark.parametrize("around", ["deepagents", "create_agent", "Send"])
def test_420_agents_of_ours_that_ask_do_each_thing_once_whatever_is_around_them(tmp_path: Path, around: str) -> None:
    """deepagents and `create_agent` give each call a task of its own by now, which a graph of one's own can do as well.

    In one task, as above, LangGraph runs every call again at each answer, and takes one agent's thread for the other's.
    """
    models = {name: told(*REPAIR) for name in "xy"}
    agents = {
        name: build_graph(model=model, context=context(tmp_path / name, mode="ask")) for name, model in models.items()
    }
    ran: list[str] = []
    both = [*((name, {"task": TASK}) for name in "xy"), ("mark", {})]
    tasks = [*(("task", {"description": TASK, "subagent_type": name}) for name in "xy"), ("mark", {})]

    def as_tool(name: str) -> BaseTool:
        def work(task: str) -> str:
            return str(agents[name].invoke({"messages": [HumanMessage(task)]})["messages"][-1].text)

        return langchain_tool(name, description="Repairs bugs.")(work)

    tools = [*map(as_tool, "xy"), marker(ran)]
    given: Any = {"messages": [HumanMessage("Repair both.")]}
    graph: Any
    if around == "deepagents":
        coders = [CompiledSubAgent(name=name, description="Repairs.", runnable=agents[name]) for name in "xy"]
        told_ = chief(calls(*tasks), AIMessage("Repaired."))
        graph = create_deep_agent(model=told_, tools=[marker(ran)], subagents=coders, checkpointer=saver())
    elif around == "create_agent":
        graph = create_agent(chief(calls(*both), AIMessage("Repaired.")), tools, checkpointer=saver())
    else:
        graph = tool_node(tools, lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls])
        given = {"messages": [*given["messages"], calls(*both)]}

    async def play() -> Any:
        result = await graph.ainvoke(given, THREAD)
        answers = 0
        while questions := result.get("__interrupt__"):
            assert [call["tool"] for call in questions[0].value["calls"]] == ["edit_file"]
            result = await graph.ainvoke(Command(resume={questions[0].id: "approve"}), THREAD)
            answers += 1
            changed = [changed_files(tmp_path / name, CALC) for name in "xy"]
            assert [*map(bool, changed)].count(True) == answers
        return result, answers

    result, answers = asyncio.run(play())
    assert [changed_files(tmp_path / name, CALC) for name in "xy"] == [{"calc.py": MENDED}] * 2
    assert (answers, ran, [len(model.calls) for model in models.values()]) == (2, ["mark"], [3, 3])
    assert [message.text for message in result["messages"][2:5]] == ["add now adds.", "add now adds.", "marked"]


# --- langchain#33863, deepagents#4721, langchain#40753: typed results beside tools, and under limits


class Finding(BaseModel):
    """What the task wants to know."""

    bugs: int


SCHEMA: JsonMap = Finding.model_json_schema()
QUESTION: Any = {"messages": [HumanMessage("How many bugs are in calc.py?")]}


def strict(request: JsonMap) -> Reply:
    """An endpoint that takes no response format beside tools, and forces no tool.

    Source: Groq's error in agno#1065, and langchain-google#1582; the issue says that both strategies fail.
    """
    if request.get("tools") and request.get("response_format"):
        return Status(400, {"error": {"message": "response_format cannot be combined with tool/function calling"}})
    if request.get("tool_choice") in ("any", "required"):
        return Status(400, {"error": {"message": "tool_choice is not supported"}})
    if request["messages"][-1]["role"] == "tool":
        return Calls([("final_answer", '{"answer": "One.", "value": {"bugs": 1}}')])
    return Calls([("read_file", '{"path": "calc.py"}')])


@langchain_tool
def read_file(path: str) -> str:
    """Read a file."""
    return path


@pytest.mark.parametrize("strategy", [ProviderStrategy, ToolStrategy])
def test_33863_a_response_format_beside_tools_is_refused_by_the_endpoint_still(strategy: Any) -> None:
    from langchain_openai import ChatOpenAI
    from openai import BadRequestError

    with ScriptedServer(then=strict) as server:
        model = ChatOpenAI(
            model="openai/gpt-oss-120b", base_url=server.base_url, api_key=SecretStr("none"), max_retries=0
        )
        agent: Any = create_agent(model, [read_file], response_format=strategy(Finding))
        with pytest.raises(BadRequestError, match=r"cannot be combined|tool_choice"):
            agent.invoke(QUESTION)


def test_33863_ours_asks_for_a_typed_result_in_a_tool_and_forces_nothing(tmp_path: Path) -> None:
    with ScriptedServer(then=strict) as server:
        run = context(tmp_path, model="m", base_url=server.base_url, response_format=SCHEMA)
        result: Any = build_graph().invoke(QUESTION, context=run)
    assert (result["outcome"].kind, result["outcome"].value) == (OutcomeKind.FINISHED, {"bugs": 1})
    assert len(server.requests) == 2


def test_4721_a_limit_leaves_no_result_and_no_reason_still() -> None:
    model = chief(calls(("read_file", {"path": "a"})), AIMessage("One."))
    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")
    agent: Any = create_agent(model, [read_file], response_format=ToolStrategy(Finding), middleware=[limit])
    result = agent.invoke(QUESTION)
    assert result["structured_response"] is None
    assert result.keys() == {"messages", "structured_response"}


def test_40753_a_result_of_another_shape_is_asked_for_without_end_still() -> None:
    wrong = [calls(("Finding", {"bugs": "none"})) for _ in range(40)]
    agent: Any = create_agent(chief(*wrong), [read_file], response_format=ToolStrategy(Finding))
    with pytest.raises(GraphRecursionError):
        agent.invoke(QUESTION, {"recursion_limit": 30})


@pytest.mark.parametrize(
    ("limits", "ends", "asked"),
    [
        ({"max_calls_per_turn": 2}, (OutcomeKind.BUDGET_STOP, StopReason.MAX_CALLS_PER_TURN), 2),
        ({}, (OutcomeKind.SYSTEM_ERROR, StopReason.SCHEMA_REPAIR_EXHAUSTED), 3),
    ],
)
def test_ours_ends_with_a_reason_where_the_result_does_not_fit(
    tmp_path: Path, limits: Any, ends: Any, asked: int
) -> None:
    wrong = use(("final_answer", {"answer": "None.", "value": {"bugs": "none"}}))
    model = told(*[wrong] * 9)
    result: Any = build_graph(model=model).invoke(QUESTION, context=context(tmp_path, response_format=SCHEMA, **limits))
    outcome = result["outcome"]
    assert ((outcome.kind, outcome.reason), outcome.value, len(model.calls)) == (ends, None, asked)
