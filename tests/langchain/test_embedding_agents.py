"""The machine as a part of other agents: a subagent of deepagents."""

import asyncio
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mendgraph import AgentContext, build_graph
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.langchain.embedding import REPAIR, THREAD, context, native_model, saver
from tests.scenarios.sample_repair import CALC, COUNT, MENDED, TASK
from tests.workspace_files import changed_files

FIXED = {"calc.py": MENDED}
ASKED: Any = {"messages": [HumanMessage("Have the bug repaired.")]}


class SupervisorModel(GenericFakeChatModel):
    """A chat model that accepts tools and has scripted replies."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self


def chief(*messages: BaseMessage) -> SupervisorModel:
    return SupervisorModel(messages=cast("Any", iter(messages)))


def task_calls(number: int = 1) -> AIMessage:
    """The main agent calls its subagent, in this many parallel calls."""
    task = {"description": TASK, "subagent_type": "coder"}
    return AIMessage("", tool_calls=[{"name": "task", "args": task, "id": f"c{index}"} for index in range(number)])


@pytest.fixture
def deep() -> Callable[..., Any]:
    """Create a deep agent with the machine as its subagent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries of deepagents, at their import
        from deepagents import CompiledSubAgent, create_deep_agent

    def make_agent(agent: Any, *messages: BaseMessage, **more: Any) -> Any:
        coder = CompiledSubAgent(name="coder", description="Repairs bugs in the project.", runnable=agent)
        return create_deep_agent(model=chief(*messages), subagents=[coder], checkpointer=saver(), **more)

    return make_agent


def test_subagent_repairs_the_bug_and_reports(tmp_path: Path, deep: Any) -> None:
    agent = build_graph(model=native_model(*REPAIR), context=context(tmp_path))
    around = deep(agent, task_calls(), AIMessage("It is repaired."))
    result = asyncio.run(around.ainvoke(ASKED, THREAD))
    assert [message.text for message in result["messages"]][-2:] == ["add now adds.", "It is repaired."]
    assert changed_files(tmp_path, CALC) == FIXED


def test_structured_value_of_a_subagent_reaches_the_main_agent_as_json(tmp_path: Path, deep: Any) -> None:
    counted = native_model(*REPAIR[:2], use(("final_answer", {"answer": "One.", "value": {"count": 1}})))
    agent = build_graph(model=counted, context=context(tmp_path), response_format=COUNT)
    result = deep(agent, task_calls(), AIMessage("One.")).invoke(ASKED, THREAD)
    assert json.loads(result["messages"][-2].text) == {"count": 1}


def test_subagent_takes_the_parents_context_if_it_is_an_agent_context(tmp_path: Path, deep: Any) -> None:
    around = deep(
        build_graph(model=native_model(*REPAIR)), task_calls(), AIMessage("Repaired."), context_schema=AgentContext
    )
    around.invoke(ASKED, THREAD, context=context(tmp_path))
    assert changed_files(tmp_path, CALC) == FIXED


def test_subagent_that_stops_early_tells_the_main_agent(tmp_path: Path, deep: Any) -> None:
    agent = build_graph(model=native_model(*REPAIR), context=context(tmp_path, max_calls_per_turn=1))
    result = deep(agent, task_calls(), AIMessage("It is not.")).invoke(ASKED, THREAD)
    assert result["messages"][-2].text.startswith("BUDGET_STOP (max_calls_per_turn)")
    assert changed_files(tmp_path, CALC) == {}


@slow
def test_two_parallel_subagents_are_two_runs(tmp_path: Path, deep: Any) -> None:
    """They take turns in one workspace; each has its own run in the records."""
    agent = build_graph(model=native_model(*REPAIR, *REPAIR), context=context(tmp_path, mode="read-only"))
    around = deep(agent, task_calls(2), AIMessage("Seen."))
    runs = {
        part["run_id"]
        for _, part in around.stream(ASKED, THREAD, subgraphs=True, stream_mode="custom")
        if part.get("type") == "trace"
    }
    assert len(runs) == 2
    assert changed_files(tmp_path, CALC) == {}
