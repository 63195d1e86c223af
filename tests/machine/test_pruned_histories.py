"""A thread whose older checkpoints were deleted is refused; one whose history a user has edited is not."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from mendgraph import PrunedHistoryError, build_graph, run_task
from tests.doubles.replies import Say
from tests.extent import slow
from tests.langchain.embedding import context, native_model
from tests.surfaces.persistence.any_saver import opened_saver

THREAD: Any = {"configurable": {"thread_id": "t"}}
REQUESTS = ("I am Ann.", "I like tea.", "And cake.")


@pytest.fixture(params=["memory", "workspace"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """LangGraph's, and ours."""
    if request.param == "memory":
        yield InMemorySaver()
        return
    folder = tmp_path / "records"
    folder.mkdir()
    with closing(opened_saver(folder)) as opened:
        yield opened


def prune(saver: Any, keep: int) -> None:
    """Delete all checkpoints but the newest, with their writes, as a retention job does."""
    if not isinstance(saver, InMemorySaver):
        with saver.cursor() as cursor:
            for table in ("checkpoints", "writes"):
                newest = f"SELECT checkpoint_id FROM checkpoints ORDER BY checkpoint_id DESC LIMIT {keep}"  # noqa: S608
                cursor.execute(f"DELETE FROM {table} WHERE checkpoint_id NOT IN ({newest})")  # noqa: S608 - ours
        return
    checkpoints = saver.storage["t"][""]
    for name in sorted(checkpoints)[:-keep]:
        del checkpoints[name]
        saver.writes.pop(("t", "", name), None)


def conversation(saver: Any, folder: Path) -> tuple[Any, Any]:
    """A machine after turns in one thread, and its model."""
    model = native_model(*(Say(f"Answer {number}.") for number in range(1, 9)))
    machine = build_graph(saver, model=model, context=context(folder))
    for request in REQUESTS:
        machine.invoke({"messages": [HumanMessage(request)]}, THREAD)
    return machine, model


def texts(machine: Any) -> list[str]:
    return [message.text for message in machine.get_state(THREAD).values["messages"]]


# --- Refused


def test_thread_with_deleted_checkpoints_is_refused_with_the_remedy(saver: Any, tmp_path: Path) -> None:
    machine, model = conversation(saver, tmp_path / "project")
    assert texts(machine)[-1] == "Answer 3."
    prune(saver, 1)
    calls = len(model.calls)

    refusal = pytest.raises(PrunedHistoryError, match=r"thread 't' is incomplete .*messages.* start a new thread")
    with refusal:
        machine.invoke({"messages": [HumanMessage("Who am I?")]}, THREAD)
    with refusal:
        machine.get_state(THREAD)
    with refusal:
        machine.update_state(THREAD, {"messages": [HumanMessage("I am Ann.")]})

    assert len(model.calls) == calls


def test_thread_with_deleted_writes_is_refused(tmp_path: Path) -> None:
    saver = InMemorySaver()
    machine, _ = conversation(saver, tmp_path / "project")
    saver.writes.clear()
    with pytest.raises(PrunedHistoryError):
        machine.get_state(THREAD)


def test_async_run_in_a_thread_with_deleted_checkpoints_is_refused(tmp_path: Path) -> None:
    async def refused() -> None:
        async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            model = native_model(*[Say("Yes.")] * 9)
            machine = build_graph(saver, model=model, context=context(tmp_path / "project"))
            for request in REQUESTS:
                await machine.ainvoke({"messages": [HumanMessage(request)]}, THREAD)
            delete = "DELETE FROM checkpoints WHERE checkpoint_id <> (SELECT max(checkpoint_id) FROM checkpoints)"
            await saver.conn.execute(delete)
            with pytest.raises(PrunedHistoryError):
                await machine.ainvoke({"messages": [HumanMessage("Who am I?")]}, THREAD)
            with pytest.raises(PrunedHistoryError):
                await machine.aget_state(THREAD)

    asyncio.run(refused())


def test_task_in_a_thread_with_deleted_checkpoints_ends_with_history_pruned(tmp_path: Path) -> None:
    saver = InMemorySaver()
    model = native_model(*[Say("Yes.")] * 9)
    options: Any = {"model": model, "checkpointer": saver, "thread_id": "t"}
    run_task("I am Ann.", context(tmp_path / "project"), **options)
    prune(saver, 1)

    outcome = run_task("Who am I?", context(tmp_path / "project"), **options).outcome

    assert (outcome.kind, outcome.reason) == ("SYSTEM_ERROR", "history_pruned")
    assert "start a new thread" in outcome.message


# --- Not refused


@slow
@pytest.mark.parametrize("removed", ["the first exchange", "the last exchange", "all"])
def test_messages_removed_by_the_user_do_not_count_as_deleted_history(tmp_path: Path, removed: str) -> None:
    machine, model = conversation(InMemorySaver(), tmp_path / "project")
    messages = machine.get_state(THREAD).values["messages"]
    exchange = {"the first exchange": slice(2), "the last exchange": slice(-2, None), "all": slice(None)}[removed]
    names = [REMOVE_ALL_MESSAGES] if removed == "all" else [message.id for message in messages[exchange]]
    before = [message.text for message in messages if message not in messages[exchange]]

    machine.update_state(THREAD, {"messages": [RemoveMessage(id=name) for name in names]})
    result = machine.invoke({"messages": [HumanMessage("Who am I?")]}, THREAD)

    assert texts(machine) == [*before, "Who am I?", "Answer 4."]
    assert (result["outcome"].kind, len(model.calls)) == ("FINISHED", 4)


@slow
def test_fork_of_a_thread_continues_from_its_own_history(tmp_path: Path) -> None:
    machine, _ = conversation(InMemorySaver(), tmp_path / "project")
    ends = [snapshot for snapshot in machine.get_state_history(THREAD) if not snapshot.next]
    first = ends[-1].config

    machine.invoke({"messages": [HumanMessage("I am Bob.")]}, first)
    assert texts(machine) == ["I am Ann.", "Answer 1.", "I am Bob.", "Answer 4."]
    edited = machine.update_state(first, {"messages": [HumanMessage("I am Eve.")]})
    machine.invoke({"messages": [HumanMessage("Who am I?")]}, edited)
    assert texts(machine) == ["I am Ann.", "Answer 1.", "I am Eve.", "Who am I?", "Answer 5."]
    assert all(snapshot.values is not None for snapshot in machine.get_state_history(THREAD))


@slow
def test_long_thread_is_read_from_snapshots_after_older_checkpoints_are_deleted(tmp_path: Path) -> None:
    saver = InMemorySaver()
    machine = build_graph(saver, model=native_model(*[Say("Yes.")] * 99), context=context(tmp_path / "project"))
    for number in range(30):
        machine.invoke({"messages": [HumanMessage(str(number))]}, THREAD)
    before = texts(machine)
    prune(saver, 40)
    assert texts(machine) == before
