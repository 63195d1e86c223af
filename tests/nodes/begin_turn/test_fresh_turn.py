import pytest

from nodes.begin_turn.fresh_turn import FRESH_TURN
from nodes.records import LoopRecord


def test_nothing_of_the_last_turn_is_left() -> None:
    assert {name: value for name, value in FRESH_TURN.items() if value} == {"loop": LoopRecord()}


def test_it_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        FRESH_TURN["stop"] = "now"  # type: ignore[index] # what mypy forbids is what is shown
