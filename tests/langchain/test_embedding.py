"""The machine inside a user's graph: as a node that shares `messages`, and called by a node with a state of its own."""

import asyncio
import logging
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from mendgraph import AgentContext, Outcome, build_graph
from tests.doubles.history_model import HistoryModel
from tests.doubles.tool_use import use
from tests.extent import slow
from tests.langchain.embedding import ASKED, LINES, REPAIR, THREAD, context, last, native_model, saver, workspace
from tests.scenarios.sample_repair import CALC, DONE, MENDED, TASK
from tests.workspace_files import changed_files

FIXED = {"calc.py": MENDED}
ALLOWED: dict[str, Any] = {"any": {}, "none": {"allowed_msgpack_modules": None}}


class Shared(MessagesState, total=False):
    """A parent's state with the outcome of its agent."""

    outcome: Outcome
    changes: Annotated[list[Any], operator.add]


def parent(agent: Any, checkpointer: Any = None, schema: Any = AgentContext) -> Any:
    """A graph whose only node is the agent."""
    builder = StateGraph(Shared, context_schema=schema)
    builder.add_node("coder", agent)
    builder.add_edge(START, "coder")
    builder.add_edge("coder", END)
    return builder.compile(checkpointer=checkpointer)


# --- As a node


@pytest.mark.parametrize(("has_saver", "loop"), [(True, True), (False, False)])
def test_node_repairs_the_bug_and_returns_its_outcome(tmp_path: Path, has_saver: bool, loop: bool) -> None:
    around = parent(build_graph(model=native_model(*REPAIR)), saver() if has_saver else None)
    settings: Any = {"config": THREAD, "context": context(tmp_path)}
    result = asyncio.run(around.ainvoke(ASKED, **settings)) if loop else around.invoke(ASKED, **settings)
    assert (result["outcome"].kind, last(result)) == ("FINISHED", "add now adds.")
    assert [message.type for message in result["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert [change.path for change in result["changes"]] == ["calc.py"]
    assert changed_files(tmp_path, CALC) == FIXED


@pytest.mark.parametrize(("allowed", "loop"), [("ours", True), ("any", False), ("none", True)])
def test_question_is_asked_and_answered_at_the_parent_graph(
    tmp_path: Path, loop: bool, allowed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever types the parent's checkpointer loads."""
    lent = saver() if allowed == "ours" else InMemorySaver(serde=JsonPlusSerializer(**ALLOWED[allowed]))
    around = parent(build_graph(model=native_model(*REPAIR)), lent)
    settings: Any = {"config": THREAD, "context": context(tmp_path, mode="ask")}

    def go(turn_input: Any) -> Any:
        return asyncio.run(around.ainvoke(turn_input, **settings)) if loop else around.invoke(turn_input, **settings)

    with caplog.at_level(logging.WARNING):
        interrupted = go(ASKED)
        (question,) = interrupted["__interrupt__"]
        assert [call["tool"] for call in question.value["calls"]] == ["edit_file"]
        assert changed_files(tmp_path, CALC) == {}
        result = go(Command(resume="approve"))
        assert around.get_state(THREAD).values == result
    assert (result["outcome"].kind, changed_files(tmp_path, CALC)) == ("FINISHED", FIXED)
    assert caplog.records == []  # LangGraph warns of types that it does not know, but of each once in a process


def test_question_without_a_checkpointer_is_refused_with_a_message(tmp_path: Path) -> None:
    result = parent(build_graph(model=native_model(*REPAIR))).invoke(ASKED, context=context(tmp_path, mode="ask"))
    assert result["outcome"].reason == "invalid_request"
    assert "needs a checkpointer" in result["outcome"].message


@slow
@pytest.mark.parametrize("way", ["abatch", "chain"])
def test_run_is_not_stopped_by_the_default_recursion_limit_of_langchain(way: str, tmp_path: Path) -> None:
    """A wrapper passes on its default of 25 steps as if the user had set it; a limit set by the user applies."""
    reads = [use(("read_file", {"path": "calc.py", "start_line": line})) for line in range(1, 11)]
    agent = build_graph(model=native_model(*reads, DONE))
    room = context(tmp_path, max_calls_per_turn=60)
    turn_input: Any = {"messages": [("user", "What is in calc.py?")]}
    if way == "abatch":
        [result] = asyncio.run(agent.abatch([turn_input], context=room))
    else:
        result = (RunnableLambda(lambda value: value) | agent.bind(context=room)).invoke(turn_input)
    assert (result["outcome"].kind, result["outcome"].usage["total_calls"]) == ("FINISHED", 11)
    with pytest.raises(GraphRecursionError):
        build_graph(model=native_model(*reads, DONE)).invoke(turn_input, {"recursion_limit": 24}, context=room)


@slow
def test_next_turn_of_a_thread_knows_the_previous_messages(tmp_path: Path) -> None:
    """The parent keeps the messages; with `checkpointer=True` the agent also keeps its own."""
    for checkpointer in (None, True):
        model = native_model(*REPAIR, DONE)
        around = parent(build_graph(checkpointer, model=model), saver())
        settings: Any = {"config": THREAD, "context": context(tmp_path / str(checkpointer))}
        around.invoke(ASKED, **settings)
        result = around.invoke({"messages": [("user", "Is it right now?")]}, **settings)
        assert result["outcome"].kind == "FINISHED"
        assert [message.type for message in result["messages"]].count("human") == 2
        assert TASK in str(model.calls[-1].prompt.messages)
        assert result["outcome"].usage["total_calls"] == (4 if checkpointer else 1)


# --- Its context


@dataclass
class UserContext:
    """The context of a user's graph."""

    user: str


def test_agent_uses_the_context_that_it_was_built_with(tmp_path: Path) -> None:
    agent = build_graph(model=native_model(*REPAIR), context=context(tmp_path))
    result = parent(agent, schema=UserContext).invoke(ASKED, context=UserContext("ada"))
    assert (result["outcome"].kind, changed_files(tmp_path, CALC)) == ("FINISHED", FIXED)


def test_context_of_another_type_is_refused_with_a_message() -> None:
    model = native_model(*REPAIR)
    result = parent(build_graph(model=model), schema=UserContext).invoke(ASKED, context=UserContext("ada"))
    assert result["outcome"].reason == "invalid_request"
    assert "context of the run has the type UserContext" in result["outcome"].message
    assert "build_graph(context=AgentContext(...))" in result["outcome"].message
    assert model.calls == []


# --- Called in a node


class QuestionState(TypedDict, total=False):
    """A parent's state that shares nothing with the agent's."""

    question: str
    answers: Annotated[list[str], operator.add]


def test_question_of_an_agent_called_in_a_node_is_answered_at_the_parent(tmp_path: Path) -> None:
    model = native_model(*REPAIR)
    builder: Any = StateGraph(QuestionState)
    agent = build_graph(model=model)
    (tmp_path / "w").mkdir()
    asking = context(tmp_path / "w", mode="ask")

    async def work(_: QuestionState) -> QuestionState:
        return {"answers": [(await agent.ainvoke(ASKED, context=asking))["outcome"].answer]}

    builder.add_node("work", work)
    builder.add_edge(START, "work")
    around = builder.compile(checkpointer=saver())

    async def play() -> Any:
        interrupted: Any = await around.ainvoke({"question": TASK}, THREAD)
        assert [call["tool"] for call in interrupted["__interrupt__"][0].value["calls"]] == ["edit_file"]
        return await around.ainvoke(Command(resume="approve"), THREAD)

    result = asyncio.run(play())
    assert (result["answers"], len(model.calls)) == (["add now adds."], 3)
    assert changed_files(tmp_path / "w", CALC) == FIXED


# --- Several in one thread


class Task(TypedDict, total=False):
    """One of several tasks, each for an agent."""

    folder: str
    answers: Annotated[list[str], operator.add]


@slow
def test_agents_in_one_thread_have_separate_records(tmp_path: Path) -> None:
    """Two parallel nodes, one of them twice, and a second turn: each run has its own records and counters."""

    def node(agent: Any) -> Callable[[Task], Task]:
        def work(task: Task) -> Task:
            result = agent.invoke(ASKED, context=context(tmp_path / task["folder"]))
            return {"answers": [f"{task['folder']}: {result['outcome'].usage['total_calls']}"]}

        return work

    builder: Any = StateGraph(Task)
    for name in ("first", "second"):
        builder.add_node(name, node(build_graph(model=HistoryModel(LINES))))
    tasks = (("first", "a"), ("first", "b"), ("second", "c"))
    builder.add_conditional_edges(START, lambda _: [Send(name, {"folder": folder}) for name, folder in tasks])
    around = builder.compile(checkpointer=saver())
    runs: list[set[tuple[str, str]]] = []
    for _ in range(2):
        for name in "abc":
            workspace(tmp_path / name)
        parts = around.stream({"answers": []}, THREAD, subgraphs=True, stream_mode="custom")
        runs.append({(place[0], part["run_id"]) for place, part in parts if part["type"] == "trace"})
        assert {name: changed_files(tmp_path / name, CALC) for name in "abc"} == dict.fromkeys("abc", FIXED)
    assert sorted(around.get_state(THREAD).values["answers"]) == sorted([f"{name}: 3" for name in "abc"] * 2)
    records = runs[0] | runs[1]
    assert [*map(len, runs), len(records), len({run for _, run in records})] == [3, 3, 6, 6]
    assert records == {(place, f"parent|{place}") for place, _ in records}


BLOCKS = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
MESSAGES: tuple[tuple[Any, bool], ...] = (
    ("What is this?", True),
    (["What is this?"], True),
    ({"role": "user", "content": "What is this?"}, True),
    ([{"type": "human", "content": BLOCKS}], True),
    ([{"type": "human", "content": ""}], False),
    ([{"type": "human", "content": []}], False),
    ([{"type": "ai", "content": "I say something."}], False),
    ([], False),
)


def test_message_content_may_be_text_or_blocks(tmp_path: Path) -> None:
    """As `langgraph dev` passes it on: it calls the graph with what it was sent."""
    for messages, has_text in MESSAGES:
        model = native_model(DONE)
        ended = build_graph(model=model, context=context(tmp_path)).invoke({"messages": messages})
        requests = [call.prompt.messages[-1]["content"] for call in model.calls]
        assert requests == ["What is this?"] * has_text, messages
        refused = "There is no request: send a message of a person, with text."
        assert ended["outcome"].message == ("No file was changed." if has_text else refused)
