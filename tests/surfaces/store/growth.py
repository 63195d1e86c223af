"""Runs that grow: how large the database of a workspace is after each turn, or each step, of a long piece of work."""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, linear_regression
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.graph.message import add_messages

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import Machine, build_graph
from mendgraph.graph.machine.routes import recursion_limit
from mendgraph.graph.persistence.store import Store
from mendgraph.nodes.records import OutcomeKind
from mendgraph.nodes.workspace.store.database import open_database
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_model import ScriptedModel

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CONFIG: Any = {"configurable": {"thread_id": "t"}}
MOST = 10**9


def prose(size: int, chance: random.Random) -> str:
    """New words, about as compressible as a normal text."""
    words = ["".join(chance.choices(LETTERS, k=chance.randint(2, 9))) for _ in range(size // 3)]
    return " ".join(words)[:size]


@dataclass(frozen=True)
class Growth:
    """The sizes of a database in bytes, after as many units of work as their places say, counted from 1."""

    sizes: tuple[int, ...]

    @property
    def r_squared(self) -> float:
        """How well a straight line fits."""
        return correlation(range(1, len(self.sizes) + 1), self.sizes) ** 2

    def after(self, units: int) -> float:
        """The size in bytes that the line gives for as many units."""
        slope, start = linear_regression(range(1, len(self.sizes) + 1), self.sizes)
        return start + slope * units


def context(root: Path, calls: int) -> AgentContext:
    """A context whose limits do not end the run."""
    return AgentContext(
        workspace=str(root),
        audit=False,
        protocol="native",
        max_calls_per_turn=min(calls, 1_000),
        max_calls_per_session=MOST,
        max_input_tokens_per_session=MOST,
        max_output_tokens_per_session=MOST,
    )


def talk(store: Store, root: Path, turns: int, machine_of: Any = build_graph) -> Growth:
    """So many turns of a question and an answer, 1 kB each."""
    chance = random.Random(1)
    machine: Machine = machine_of(store.saver, model=ScriptedModel([Say(prose(1_000, chance)) for _ in range(turns)]))
    return Growth(tuple(_run_conversation(store, machine, context(root, 10), turns, chance)))


def _run_conversation(
    store: Store, machine: Machine, settings: AgentContext, turns: int, chance: random.Random
) -> Iterator[int]:
    for _ in range(turns):
        request: Any = {"messages": [HumanMessage(prose(1_000, chance))]}
        ended = machine.invoke(request, CONFIG, context=settings, durability="sync")
        assert ended["outcome"].kind is OutcomeKind.FINISHED
        yield size_of(store)


def edit(store: Store, root: Path, edits: int, machine_of: Any = build_graph) -> Growth:
    """One turn of so many edits, each of which replaces 1 kB of a file by another one: a diff of 2 kB."""
    chance = random.Random(2)
    blocks = [(prose(1_000, chance), prose(1_000, chance)) for _ in range(edits)]
    (root / "a.txt").write_text("\n\n\n\n\n\n".join(old for old, _ in blocks))
    script = [
        Calls([("edit_file", json.dumps({"path": "a.txt", "old_str": old, "new_str": new}))]) for old, new in blocks
    ]
    machine: Machine = machine_of(store.saver, model=ScriptedModel(script))
    config: Any = {**CONFIG, "recursion_limit": recursion_limit(edits + 1)}
    request: Any = {"messages": [HumanMessage("Go on.")]}
    parts = machine.stream(request, config, context=context(root, edits + 1), durability="sync", stream_mode="updates")
    sizes = [size_of(store) for part in parts if "loop_check" in part]
    ended = machine.get_state(CONFIG).values
    assert (ended["outcome"].kind, len(ended["changes"])) == (OutcomeKind.FINISHED, edits)
    return Growth(tuple(sizes))


def with_add_messages(*arguments: Any, **named: Any) -> Machine:
    """The same machine with LangGraph's own channel for the history."""
    machine = build_graph(*arguments, **named)
    machine.channels["messages"] = BinaryOperatorAggregate(list[AnyMessage], add_messages)
    return machine


def size_of(store: Store) -> int:
    """The bytes of the database, once its log has been written into it."""
    with closing(open_database(store.folder)) as database:
        pages, bytes_each = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * bytes_each)
