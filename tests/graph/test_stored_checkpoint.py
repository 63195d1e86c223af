from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from graph.state import channel_types
from graph.stored_checkpoint import checked, undamaged
from nodes.execute_tools.environment.database import StoreError, UnreadableValueError
from nodes.records import Plan


def stored(namespace: str = "", /, **values: Any) -> CheckpointTuple:
    config = RunnableConfig(configurable={"thread_id": "r", "checkpoint_ns": namespace})
    return CheckpointTuple(config, {**empty_checkpoint(), "channel_values": values}, {"step": 1})


def test_what_fits_its_channels_is_given_back() -> None:
    found = stored(step=1, plan=Plan(), outcome=None, items=[], changes=_DeltaSnapshot([]), __start__=5)
    assert checked(found, channel_types()) is found


@pytest.mark.parametrize("values", [{"step": "x"}, {"plan": {}}, {"items": [1]}, {"changes": _DeltaSnapshot([1])}])
def test_what_does_not_is_damage_of_its_run(values: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=r"^The run r cannot be read\. It is damaged"), undamaged("r", "It"):
        checked(stored(**values), channel_types())


def test_channels_of_a_graph_that_a_tool_runs_are_its_own() -> None:
    found = stored("execute_tools:1", plan=["look"])._replace(pending_writes=[("task", "step", "first")])
    assert checked(found, channel_types()) is found
    with pytest.raises(ValueError, match="holds a list"):
        checked(stored(plan=["look"]), channel_types())
    with pytest.raises(ValueError, match="has no id"):
        checked(found._replace(checkpoint={**found.checkpoint, "id": None}), channel_types())  # type: ignore[typeddict-item]


def test_another_version_is_no_damage() -> None:
    with pytest.raises(StoreError, match=r"^The run r cannot be read\. Update\.$"), undamaged("r", "It"):
        raise UnreadableValueError("Update.", is_damage=False)
