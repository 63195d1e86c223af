"""Every sequence of replies on the real graph: to depth three in `make test`, six in CI, seven in `make sweep`."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from langchain_core.messages import HumanMessage

from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.routes import TRANSITIONS
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import JsonMap, ModelReply, ProviderFailure, StopReason
from tests.doubles.call_model import CallModel
from tests.doubles.scripted_model import ScriptedModel
from tests.extent import LEVEL, sampled, slow
from tests.machine.exploration import tally
from tests.machine.exploration.alphabet import (
    ALIKE,
    ALPHABET,
    CLAIM,
    DENIED,
    ERROR,
    FINAL,
    INVALID_ARGUMENTS,
    INVALID_JSON,
    LOOP,
    MADE,
    MIXED,
    OVERSIZED,
    READ,
    REPRESENTATIVES,
    Letter,
    letters_of,
)
from tests.machine.exploration.explorer import TASK, Edge, Ended, Explored, Explorer, NodeRecord, Standing, explore
from tests.machine.exploration.invariants import check_edge
from tests.vocabulary import Protocol

SEVERAL_AT_ONCE = (READ, LOOP, DENIED, MIXED, CLAIM, INVALID_JSON, FINAL)
TIGHT: dict[str, JsonMap] = {
    "calls": {"max_calls_per_turn": 3},
    "steps": {"max_steps": 2},
    "session": {"max_calls_per_session": 4},
    "tokens": {"max_output_tokens_per_session": 25, "max_output_tokens_per_call": 20},
    "mending": {"max_healing_attempts": 1, "max_schema_repairs": 1, "loop_repeat_threshold": 2},
}
STOP_OF = {
    "calls": StopReason.MAX_CALLS_PER_TURN,
    "steps": StopReason.MAX_STEPS,
    "session": StopReason.MAX_CALLS_PER_SESSION,
    "tokens": StopReason.MAX_OUTPUT_TOKENS,
    "mending": StopReason.HEALING_EXHAUSTED,
}
NOT_BY_REPLIES = {
    ("begin_turn", "SYSTEM_ERROR"),
    ("guard", "BUDGET_STOP"),
    ("call_model", "guard"),
    ("guard", "call_model"),
    ("__start__", "begin_turn"),
    ("begin_turn", "call_model"),
}
"""Edges that no reply leads over: the request was wrong, a person stopped or raised a limit, and how a turn begins."""


def to_depth(
    depth: int, protocol: Protocol, folder: Path, letters: tuple[Letter, ...], limits: JsonMap | None = None
) -> Explored:
    """All states to depth `depth` in one protocol, with each edge checked."""
    with Explorer(protocol, folder / protocol.value, letters_of(protocol, letters), limits or {}) as explorer:
        explored = explore(explorer, depth, check_edge)
        tally.count(explorer.transitions, explorer.steps)
    return explored


def explore_protocols(
    folder: Path, letters: tuple[Letter, ...], depth: int, limits: JsonMap | None = None
) -> list[Explored]:
    return [to_depth(depth, protocol, folder, letters, limits) for protocol in (Protocol.TEXT, Protocol.NATIVE)]


def explore_alike(
    folder: Path, letters: tuple[Letter, ...], depths: tuple[int, int, int], limits: JsonMap | None = None
) -> Explored:
    """What there is to a depth in the text protocol, which is given for each extent.

    The native protocol leads to the same, as far as three replies lead (two in `make test`), and in `make sweep` one
    less than the text.
    """
    deep = depths[LEVEL]
    text = to_depth(deep, Protocol.TEXT, folder, letters, limits)
    native = to_depth(deep - 1 if LEVEL == 2 else min(deep, 2 + LEVEL), Protocol.NATIVE, folder, letters, limits)
    assert native.start == text.start
    assert native.edges.items() <= text.edges.items()
    return text


def in_both(explored: Explored, letters: tuple[Letter, ...]) -> dict[tuple[Standing, str], Edge]:
    """The edges of the letters that both protocols can spell."""
    names = {letter.name for letter in letters if letter.only is None}
    return {where: edge for where, edge in explored.edges.items() if where[1] in names}


def walked_edges(explored: list[Explored]) -> set[tuple[str, str]]:
    """The edges of the table that were walked, within a step and to the next model call."""
    walked = set()
    for exploration in explored:
        for edge in exploration.edges.values():
            path = (*edge.path, *(() if isinstance(edge.to, Ended) else ("call_model",)))
            walked |= {*pairwise(path)}
    return walked


@sampled
def test_every_sequence_of_reply_classes_has_the_same_path_in_both_protocols(tmp_path: Path) -> None:
    """All sequences of nine classes; sequences that lead to the same state are continued once."""
    text = explore_alike(tmp_path, REPRESENTATIVES, (3, 6, 7))
    ends = {edge.to for edge in text.edges.values() if isinstance(edge.to, Ended)}
    after_four = {StopReason.HEALING_EXHAUSTED, StopReason.LOOP_PERSISTED} if LEVEL else set()
    errors = {StopReason.REFUSED, StopReason.PROVIDER_FAILED, StopReason.SCHEMA_REPAIR_EXHAUSTED, *after_four}
    assert ends == {Ended("FINISHED", StopReason.ANSWERED), *(Ended("SYSTEM_ERROR", reason) for reason in errors)}


@sampled
def test_equivalent_replies_lead_to_the_same_state(tmp_path: Path) -> None:
    """Each letter in each state; letters declared alike lead to the same state, or to the same end."""
    text, native = explore_protocols(tmp_path, ALPHABET, (1, 2, 3)[LEVEL])
    assert in_both(text, ALPHABET) == in_both(native, ALPHABET)
    for explored in (text, native):
        for standing, name in explored.edges:
            for letter, others in ALIKE.items():
                if name == letter.name:
                    edges = {other.name: explored.edges.get((standing, other.name)) for other in others}
                    expected = _end(explored.edges[standing, name])
                    assert {_end(edge) for edge in edges.values() if edge} == {expected}, (standing, edges)


def _end(edge: Edge) -> Standing | str:
    """Where the edge leads; the reasons of an end may differ."""
    return edge.to.kind if isinstance(edge.to, Ended) else edge.to


@sampled
def test_several_calls_and_claims_have_the_same_path_in_both_protocols(tmp_path: Path) -> None:
    explore_alike(tmp_path, SEVERAL_AT_ONCE, (2, 3, 4))


@sampled
@pytest.mark.parametrize("limits", TIGHT)
def test_no_sequence_of_replies_exceeds_a_tight_limit(tmp_path: Path, limits: str) -> None:
    """Here every count is a part of the state's name."""
    letters = (READ, DENIED, INVALID_JSON, FINAL, *((LOOP, INVALID_ARGUMENTS) if LEVEL else ()))
    text = explore_alike(tmp_path, letters, (4, 5, 6) if limits == "session" else (3, 4, 5), TIGHT[limits])
    stops = {edge.to.reason for edge in text.edges.values() if isinstance(edge.to, Ended)}
    assert STOP_OF[limits] in stops


@sampled
def test_every_transition_that_a_reply_can_cause_is_explored(tmp_path: Path) -> None:
    """A few letters are enough to reach all these transitions of the table."""
    walked = walked_edges(explore_protocols(tmp_path / "a", ALPHABET, 1))
    walked |= walked_edges(explore_protocols(tmp_path / "b", (LOOP, INVALID_JSON), 5))
    walked |= walked_edges(explore_protocols(tmp_path / "c", (READ, INVALID_JSON), 2, {"max_calls_per_turn": 2}))
    walked |= walked_edges(explore_protocols(tmp_path / "d", (READ,), 2, TIGHT["tokens"]))
    table = {(transition.source, transition.target) for transition in TRANSITIONS if transition.target != "__end__"}
    assert table - walked == NOT_BY_REPLIES


@slow
@pytest.mark.parametrize("protocol", [Protocol.TEXT, Protocol.NATIVE])
def test_megabyte_of_arguments_is_a_malformed_call(tmp_path: Path, protocol: Protocol) -> None:
    with Explorer(protocol, tmp_path, (OVERSIZED,)) as explorer:
        place, _ = explorer.begin()
        edge, place = explorer.say(place, 1, OVERSIZED)
        check_edge(explorer, edge)
    assert edge.path == ("call_model", "parse", "heal")


# --- Proof that sequences with the same state need to be continued only once


class World(CallModel):
    """All states to some depth in one protocol and context, and a machine that plays whole runs in them."""

    def __init__(self, folder: Path, protocol: Protocol, letters: tuple[Letter, ...], limits: JsonMap) -> None:
        self.protocol, self.letters = protocol, letters
        self.explorer = Explorer(protocol, folder / "played", letters, limits)
        self.machine = build_graph(model=self)
        with Explorer(protocol, folder / "explored", letters, limits) as explorer:
            self.explored = explore(explorer, (1, 3, 4)[LEVEL], check_edge)
            tally.count(explorer.transitions, explorer.steps)

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        return self.model.complete(call, on_text)

    def edges(self, words: list[Letter]) -> list[Edge]:
        """The edges of these letters, as far as they were explored."""
        edges: list[Edge] = []
        standing: Standing | Ended = self.explored.start
        for word in words:
            edge = self.explored.edges.get((standing, word.name)) if isinstance(standing, Standing) else None
            if edge is None:
                break
            edges.append(edge)
            standing = edge.to
        return edges

    def played(self, words: list[Letter]) -> NodeRecord:
        """A whole run in one call, without checkpoints, in which these letters are said, and then an answer."""
        script = [word.spoken(number, self.protocol) for number, word in enumerate(words, 1)]
        last = script[-1] if words[-1] is ERROR else FINAL.spoken(0, self.protocol)
        self.model = ScriptedModel(script, last)
        shutil.rmtree(self.explorer.folder / MADE, ignore_errors=True)
        noted = NodeRecord()
        request: Any = {"messages": [HumanMessage(TASK)]}
        for part in self.machine.stream(request, context=self.explorer.context, stream_mode="updates"):
            for node, update in part.items():
                noted.note(node, update or {})
        tally.count(len(noted.path), 1)
        return noted


WORLDS: dict[str, tuple[Protocol, tuple[Letter, ...], JsonMap]] = {
    "text": (Protocol.TEXT, REPRESENTATIVES, {}),
    "native": (Protocol.NATIVE, REPRESENTATIVES, {}),
    "several at once": (Protocol.TEXT, SEVERAL_AT_ONCE, {}),
    "few calls": (Protocol.NATIVE, (READ, LOOP, DENIED, INVALID_JSON, FINAL), {"max_calls_per_turn": 4}),
    "little patience": (Protocol.TEXT, (READ, LOOP, INVALID_JSON, INVALID_ARGUMENTS, FINAL), TIGHT["mending"]),
}


@sampled
@pytest.mark.parametrize("name", WORLDS)
def test_random_runs_follow_the_explored_transitions(name: str, tmp_path: Path) -> None:
    """As far as the states of a run were explored, it takes the recorded edges, whatever led to them."""
    world = World(tmp_path, *WORLDS[name])

    @settings(max_examples=(3, 25, 60)[LEVEL], suppress_health_check=[HealthCheck.too_slow])
    @given(words=st.lists(st.sampled_from([*world.letters, *world.letters[:-1] * 3]), min_size=4, max_size=10))
    def check(words: list[Letter]) -> None:
        edges = world.edges(words)
        noted = world.played(words[: len(edges)])
        path = [node for edge in edges for node in edge.path]
        last = edges[-1].to
        ending = [] if isinstance(last, Ended) else ["call_model", "parse", "FINISHED"]
        assert noted.path == ["begin_turn", *path, *ending]
        assert noted.verdicts == [edge.verdicts for edge in edges if edge.verdicts]
        assert noted.results == [edge.results for edge in edges if edge.verdicts]
        assert noted.ends == [last if isinstance(last, Ended) else Ended("FINISHED", StopReason.ANSWERED)]

    try:
        check()
    finally:
        world.explorer.nodes.close()
