"""A slice asks for channels that there are, under the types that they have, and reduces nothing."""

from inspect import getmembers, isclass
from typing import Annotated, get_origin, get_type_hints

import pytest

from mendgraph.graph.machine import state as slices
from mendgraph.graph.machine.state import AgentState

SLICES = [member for name, member in getmembers(slices, isclass) if name.endswith("Slice")]
CHANNELS = get_type_hints(AgentState)


def test_every_node_but_the_terminals_has_a_slice_of_its_own() -> None:
    rooms = {"BeginTurn", "CallModel", "Parse", "Heal", "Guard", "ExecuteTools", "LoopCheck", "Stop"}
    assert {member.__name__.removesuffix("Slice") for member in SLICES} == rooms


@pytest.mark.parametrize("asked", SLICES, ids=lambda asked: asked.__name__)
def test_a_slice_names_channels_of_the_state_without_reducers(asked: type) -> None:
    wanted = get_type_hints(asked, include_extras=True)
    assert set(wanted) <= set(CHANNELS)
    assert not [name for name, kind in wanted.items() if get_origin(kind) is Annotated]
    assert "context" in wanted
