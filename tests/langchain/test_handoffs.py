"""A conversation handed over by another agent: the request is the last human message, later messages are context."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm

from mendgraph import AgentContext, build_graph
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.extent import slow
from tests.langchain.embedding import REPAIR, THREAD, context, native_model, saver
from tests.providers.clients import client
from tests.providers.servers import FAMILIES
from tests.providers.test_runs import ANSWER, MENDED, SCRIPTS, TASK, project
from tests.scenarios.sample_repair import CALC
from tests.workspace_files import changed_files

pytestmark = pytest.mark.filterwarnings(
    "ignore::langgraph.warnings.LangGraphDeprecatedSinceV10"  # of langgraph-supervisor
)

FIXED = {"calc.py": MENDED}
ASKED: Any = {"messages": [HumanMessage(TASK)]}
PLAN = "The plan: make add add."


class SupervisorModel(GenericFakeChatModel):
    """A chat model that accepts tools and has scripted replies."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self


def chief(*messages: BaseMessage) -> SupervisorModel:
    return SupervisorModel(messages=cast("Any", iter(messages)))


def to(agent: str, number: int = 1) -> AIMessage:
    """The supervisor hands over to an agent."""
    return AIMessage("", tool_calls=[{"name": f"transfer_to_{agent}", "args": {}, "id": f"away_{agent}{number}"}])


def coder(folder: Path, model: ScriptedModel, name: str = "coder", **more: Any) -> Any:
    return build_graph(model=model, context=context(folder, **more), name=name)


def prompt_of(model: ScriptedModel, call: int = 0) -> list[tuple[str, str]]:
    """What the model was sent in a call, after the system prompt."""
    messages = model.calls[call].prompt.messages[1:]
    return [(message["role"], str(message["content"]).partition("\n")[0]) for message in messages]


@slow
@pytest.mark.parametrize(
    ("output_mode", "handoff_messages", "loop"), [("last_message", True, False), ("full_history", False, True)]
)
def test_second_agent_under_a_supervisor_sees_the_first_ones_messages(
    tmp_path: Path, output_mode: Any, handoff_messages: bool, loop: bool
) -> None:
    """The second agent sees the first one's messages; both work on the person's request."""
    first, second = native_model(*REPAIR), native_model(Say("It adds."))
    agents: Any = [coder(tmp_path, first), coder(tmp_path, second, "reviewer", mode="read-only")]
    around = create_supervisor(
        agents,
        model=chief(to("coder"), to("reviewer"), AIMessage("It is done.")),
        output_mode=output_mode,
        add_handoff_messages=handoff_messages,
        add_handoff_back_messages=handoff_messages,
    ).compile(checkpointer=saver())
    result = asyncio.run(around.ainvoke(ASKED, THREAD)) if loop else around.invoke(ASKED, THREAD)
    assert changed_files(tmp_path, CALC) == FIXED
    answers = {
        message.name: message.text for message in result["messages"] if message.type == "ai" and not message.tool_calls
    }
    assert answers == {"coder": "add now adds.", "reviewer": "It adds.", "supervisor": "It is done."}
    assert (prompt_of(first)[0], prompt_of(second)[0]) == (("user", TASK), ("user", TASK))
    assert ("assistant", "add now adds.") in [(role, text.strip()) for role, text in prompt_of(second)]


def test_swarm_continues_with_the_active_agent(tmp_path: Path) -> None:
    model = native_model(*REPAIR, Say("You are welcome."))
    desk = create_agent(chief(to("coder")), [create_handoff_tool(agent_name="coder")], name="desk")
    swarm = create_swarm([desk, coder(tmp_path, model)], default_active_agent="desk").compile(checkpointer=saver())
    first = swarm.invoke(ASKED, THREAD)
    second = swarm.invoke({"messages": [HumanMessage("Thank you.")]}, THREAD)
    assert (first["active_agent"], changed_files(tmp_path, CALC)) == ("coder", FIXED)
    assert [result["messages"][-1].text for result in (first, second)] == ["add now adds.", "You are welcome."]
    assert (prompt_of(model)[0], prompt_of(model, 3)[-1]) == (("user", TASK), ("user", "Thank you."))


@pytest.mark.parametrize("form", [{}, {"protocol": "text"}, {"protocol": "text", "edit_form": "blocks"}])
def test_agent_after_a_planner_works_on_the_plan(tmp_path: Path, form: dict[str, Any]) -> None:
    """In each protocol it sees the plan, and never two messages of one role in a row."""
    model = ScriptedModel([Say("I see.")])
    builder = StateGraph(MessagesState)
    builder.add_node("planner", lambda _: {"messages": [AIMessage(PLAN, name="planner")]})
    builder.add_node("coder", coder(tmp_path, model, **form))
    builder.add_edge(START, "planner")
    builder.add_edge("planner", "coder")
    result = builder.compile(checkpointer=saver()).invoke({"messages": [HumanMessage("What does calc.py do?")]}, THREAD)
    assert result["messages"][-1].text == "I see."
    messages = model.calls[0].prompt.messages
    assert PLAN in str(messages)
    assert all(one["role"] != after["role"] for one, after in pairwise(messages))


def test_finished_thread_without_a_new_request_is_an_invalid_request(tmp_path: Path) -> None:
    graph: Any = build_graph(saver(), model=native_model(*REPAIR), context=context(tmp_path))
    nothing: Any = {"messages": []}
    done = [graph.invoke(turn_input, THREAD)["outcome"] for turn_input in (ASKED, nothing)]
    assert [(outcome.kind, outcome.reason) for outcome in done] == [
        ("FINISHED", "answered"),
        ("SYSTEM_ERROR", "invalid_request"),
    ]


CALL: Any = {"name": "transfer_to_coder", "args": {}, "id": "call_away12", "type": "tool_call"}
SINCE: list[AnyMessage] = [
    AIMessage("", tool_calls=[CALL], name="supervisor"),
    ToolMessage("Successfully transferred to coder", tool_call_id="call_away12", name="transfer_to_coder"),
    AIMessage(PLAN, name="planner"),
]


@slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_provider_accepts_calls_and_messages_of_other_agents(family: str, tmp_path: Path) -> None:
    """Including those that require reasoning before each call, which another agent's calls lack."""
    protocol: Any = "text" if family == "no_tools" else "native"
    with FAMILIES[family](SCRIPTS[protocol], play="position") as server:
        settings = AgentContext(workspace=project(tmp_path), protocol=protocol, read_ahead=False, evidence=False)
        graph = build_graph(model=client(server), context=settings)
        ended: Any = graph.invoke({"messages": [HumanMessage(TASK), *SINCE]})
    assert ended["outcome"].answer == ANSWER, ended["outcome"].message
    assert (tmp_path / "calc.py").read_text() == MENDED
