"""What a delta channel holds is what a plain reducer would have made of the same writes, however it is read back."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from copy import deepcopy
from itertools import pairwise
from typing import Annotated, Any

import pytest
from hypothesis import given, settings, strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from mendgraph.graph.machine.state import (
    SNAPSHOT_SHARE,
    Changes,
    FilesRead,
    GrowingChannel,
    Messages,
    append,
    fold_messages,
    merge,
    serializer,
)

IDS = ("a", "b", "c", "d")
MESSAGES = st.builds(
    lambda kind, content, name: kind(content, id=name),
    st.sampled_from([HumanMessage, AIMessage]),
    st.text("xy", max_size=2),
    st.sampled_from(IDS),
)
REMOVALS = st.sampled_from([*IDS, REMOVE_ALL_MESSAGES]).map(lambda name: RemoveMessage(id=name))
PARTS = st.lists(MESSAGES | MESSAGES | REMOVALS, max_size=4)
WRITES = st.lists(PARTS | MESSAGES | st.lists(MESSAGES, max_size=3).map(Overwrite), max_size=8)


def possible(writes: Sequence[Any]) -> list[Any]:
    """The writes that `add_messages` takes: it refuses to remove what is not there."""
    held: list[Any] = []
    taken = []
    for write in writes:
        try:
            held = plain(held, write)
        except ValueError:
            continue
        taken.append(write)
    return taken


def plain(messages: list[Any], write: Any) -> list[Any]:
    """What LangGraph's own channel with `add_messages` makes of one write."""
    channel = BinaryOperatorAggregate(list[AnyMessage], add_messages).from_checkpoint(list(messages))  # type: ignore[arg-type]
    channel.update([write])
    return list(channel.get())


def after_each(writes: Sequence[Any]) -> list[list[Any]]:
    """The history after each write, as `add_messages` has it."""
    states: list[list[Any]] = []
    for write in writes:
        states.append(plain(states[-1] if states else [], write))
    return states


def channel_of(kind: Any, frequency: int = 100) -> Any:
    """The channel that an annotation stands for, empty."""
    declared = kind.__metadata__[0]
    channel = type(declared)(declared.reducer, kind.__origin__, snapshot_frequency=frequency)
    return channel.from_checkpoint(channel.checkpoint())


# --- Equal to add_messages


@given(WRITES)
def test_after_each_write_the_history_is_what_add_messages_makes_of_it(drawn: list[Any]) -> None:
    writes, channel = possible(drawn), channel_of(Messages)
    for write, expected in zip(writes, after_each(writes), strict=True):
        channel.update([write])
        assert channel.get() == expected


@given(WRITES, st.lists(st.integers(0, 8), max_size=3))
def test_it_is_the_same_however_the_writes_are_batched(drawn: list[Any], cuts: list[int]) -> None:
    """LangGraph replays the writes of many steps at once, from a snapshot on that may lie anywhere."""
    writes, channel = possible(drawn), channel_of(Messages)
    bounds = [0, *sorted(min(cut, len(writes)) for cut in cuts), len(writes)]
    for start, end in pairwise(bounds):
        channel = channel.from_checkpoint(channel.get())
        channel.replay_writes([("task", "messages", write) for write in writes[start:end]])
    assert channel.get() == (after_each(writes) or [[]])[-1]


# --- Messages without an id

NAMELESS: dict[str, Any] = {
    "a text": "hello",
    "a list of texts": ["hello", "hello"],
    "a pair": ("user", "hello"),
    "a list of pairs": [("user", "hello"), ("assistant", "hi")],
    "a map": {"role": "user", "content": "hello"},
    "a message": HumanMessage("hello"),
    "a chunk": AIMessageChunk(content="hello"),
}


@pytest.mark.parametrize("write", NAMELESS.values(), ids=NAMELESS)
def test_they_get_the_same_id_at_every_reading_and_each_its_own(write: Any) -> None:
    before: list[Any] = [HumanMessage("hello", id="a")]
    read = fold_messages(before, [write, write])
    assert read == fold_messages(fold_messages(before, [write]), [write])
    assert len({message.id for message in read}) == len(read)
    expected = add_messages(add_messages(before, deepcopy(write)), deepcopy(write))
    assert [(type(each), each.content) for each in read] == [(type(each), each.content) for each in expected]  # type: ignore[union-attr]


def test_one_that_comes_again_after_others_were_removed_never_takes_anothers_place() -> None:
    """The place, the one before it and the text are the same as when X came, which is still there."""
    state = fold_messages([], [[HumanMessage("", id="m"), HumanMessage("", id="l")], "x"])
    moved = fold_messages(state, [[RemoveMessage(id="m"), RemoveMessage(id="l")], [HumanMessage("", id="l")]])
    assert [message.content for message in fold_messages(moved, ["x"])] == ["x", "", "x"]


def test_a_raw_history_that_was_put_in_place_of_the_old_one_is_read_the_same_each_time() -> None:
    channel = channel_of(Messages)
    channel.replay_writes([("task", "messages", Overwrite([("user", "hello")])), ("task", "messages", "more")])
    again = channel_of(Messages)
    again.update([Overwrite([("user", "hello")])])
    again.update(["more"])
    assert [message.content for message in channel.get()] == ["hello", "more"]
    assert channel.get() == again.get()


# --- The other two


@given(st.lists(st.lists(st.integers(), max_size=3), max_size=6), st.integers(0, 6))
def test_append_is_a_fold(writes: list[list[int]], cut: int) -> None:
    assert append([0], writes) == [0, *(each for write in writes for each in write)]
    assert append(append([0], writes[:cut]), writes[cut:]) == append([0], writes)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3), max_size=6), st.integers(0, 6))
def test_merge_is_a_fold(writes: list[dict[str, int]], cut: int) -> None:
    expected = {"a": 0}
    for write in writes:
        expected |= write
    assert merge({"a": 0}, writes) == expected
    assert merge(merge({"a": 0}, writes[:cut]), writes[cut:]) == expected


# --- Snapshots


def test_snapshots_are_the_rarer_the_more_there_is() -> None:
    """So all of them together hold at most so many times the value: they lie in geometric progression."""
    channel = channel_of(Changes, frequency=3)
    snapshots, since = [], 0
    for number in range(10_000):
        channel.update([[number]])
        since += 1
        if since >= channel.snapshot_frequency:
            snapshots.append(len(channel.get()))
            since = 0
    assert snapshots[:6] == [3, 6, 9, 13, 19, 28]
    assert sum(snapshots) < (SNAPSHOT_SHARE + 1) * 10_000


# --- Through the savers


def machine(saver: BaseCheckpointSaver[Any], frequency: int) -> Any:
    """A graph of one node that adds nothing: what it is given is all that its channels hold."""
    channel = GrowingChannel(fold_messages, snapshot_frequency=frequency)

    class State(TypedDict, total=False):
        messages: Annotated[list[AnyMessage], channel]
        files: FilesRead
        count: int

    builder = StateGraph(State)
    builder.add_node("count", lambda given: {"count": given.get("count", 0) + 1})
    builder.add_edge(START, "count")
    builder.add_edge("count", END)
    return builder.compile(checkpointer=saver)


@settings(max_examples=25)
@given(WRITES, st.sampled_from([1, 2, 3, 100]), st.sampled_from(["sync", "exit"]), st.booleans())
def test_every_checkpoint_is_read_back_as_it_was(
    drawn: list[Any], frequency: int, durability: str, in_memory: bool
) -> None:
    writes = possible(drawn)
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        saver: Any = InMemorySaver() if in_memory else SqliteSaver(connection, serde=serializer())
        graph, config = machine(saver, frequency), RunnableConfig(configurable={"thread_id": "t"})
        for write, expected in zip(writes, after_each(writes), strict=True):
            graph.invoke({"messages": write, "files": {"a": str(len(expected))}}, config, durability=durability)
            assert graph.get_state(config).values["messages"] == expected
        history = list(graph.get_state_history(config))
        ended = [each.values["messages"] for each in reversed(history) if not each.next]
        assert ended[len(ended) - len(writes) :] == after_each(writes)  # "exit" begins with an empty one
        assert [graph.get_state(each.config).values for each in history] == [each.values for each in history]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("frequency", [1, 2, 100])
def test_a_fork_goes_on_from_its_own_past(frequency: int, in_memory: bool) -> None:
    config = RunnableConfig(configurable={"thread_id": "t"})
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        saver: Any = InMemorySaver() if in_memory else SqliteSaver(connection, serde=serializer())
        graph = machine(saver, frequency)
        for name in IDS:
            graph.invoke({"messages": [HumanMessage(name, id=name)]}, config)
        second = [each for each in graph.get_state_history(config) if not each.next][2]
        forked = graph.update_state(second.config, {"messages": [HumanMessage("new", id="n")]})
        assert [each.content for each in graph.get_state(forked).values["messages"]] == ["a", "b", "new"]
        replaced = graph.update_state(second.config, {"messages": Overwrite([HumanMessage("only", id="o")])})
        graph.invoke({"messages": [HumanMessage("next", id="x")]}, replaced)
        assert [each.content for each in graph.get_state(config).values["messages"]] == ["only", "next"]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_request_without_an_id_keeps_the_one_that_it_is_given(in_memory: bool) -> None:
    config = RunnableConfig(configurable={"thread_id": "t"})
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        saver: Any = InMemorySaver() if in_memory else SqliteSaver(connection, serde=serializer())
        graph = machine(saver, 100)
        shown = [graph.invoke({"messages": write}, config)["messages"] for write in NAMELESS.values()][-1]
        read = [graph.get_state(config).values["messages"] for _ in range(3)]
        assert read == [shown] * 3
        graph.invoke({"messages": [RemoveMessage(id=shown[0].id)]}, config)
        assert graph.get_state(config).values["messages"] == shown[1:]
