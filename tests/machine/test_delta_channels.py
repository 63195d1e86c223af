"""A delta channel has the value that a plain reducer makes of the same writes, however it is restored."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Overwrite

from mendgraph.graph.machine.state import SNAPSHOT_SHARE, Changes, Messages

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


def accepted_writes(writes: Sequence[Any]) -> list[Any]:
    """The writes that `add_messages` accepts: it refuses to remove missing messages."""
    value: list[Any] = []
    writes_so_far = []
    for write in writes:
        try:
            value = write_with_add_messages(value, write)
        except ValueError:
            continue
        writes_so_far.append(write)
    return writes_so_far


def write_with_add_messages(messages: list[Any], write: Any) -> list[Any]:
    """What LangGraph's own channel with `add_messages` makes of one write."""
    channel = BinaryOperatorAggregate(list[AnyMessage], add_messages).from_checkpoint(list(messages))  # type: ignore[arg-type]
    channel.update([write])
    return list(channel.get())


def after_each(writes: Sequence[Any]) -> list[list[Any]]:
    """The history after each write, as `add_messages` has it."""
    states: list[list[Any]] = []
    for write in writes:
        states.append(write_with_add_messages(states[-1] if states else [], write))
    return states


def channel_of(kind: Any, frequency: int = 100) -> Any:
    """The channel that an annotation stands for, empty."""
    declared = kind.__metadata__[0]
    channel = type(declared)(declared.reducer, kind.__origin__, snapshot_frequency=frequency)
    return channel.from_checkpoint(channel.checkpoint())


# --- Messages without an id

# --- Snapshots


def test_snapshots_become_rarer_as_the_channel_grows() -> None:
    """Their sizes grow geometrically, so all of them together hold at most a fixed multiple of the value."""
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


@given(WRITES, st.lists(st.integers(0, 8), max_size=3))
def test_channel_value_does_not_depend_on_how_writes_are_batched(drawn: list[Any], cuts: list[int]) -> None:
    """LangGraph replays the writes of many steps at once, starting at any snapshot."""
    writes, channel = accepted_writes(drawn), channel_of(Messages)
    bounds = [0, *sorted(min(cut, len(writes)) for cut in cuts), len(writes)]
    for start, end in pairwise(bounds):
        channel = channel.from_checkpoint(channel.get())
        channel.replay_writes([("task", "messages", write) for write in writes[start:end]])
    assert channel.get() == (after_each(writes) or [[]])[-1]
