"""A stream of the machine that is left early."""

from collections.abc import Generator

import pytest
from hypothesis import given, strategies as st

from graph.left_stream import Part, Parts
from nodes.records import StopCause, StopReason

SAID: Part = ("custom", "a word")
ENDED: Part = ("updates", {"call_model": {"reply": "x", "stop": None}})
ASKS: Part = ("updates", {"__interrupt__": ("approve?",)})
STOPPED: Part = ("updates", {"call_model": {"stop": StopCause(reason=StopReason.CANCELLED, message="x")}})
VALUES: Part = ("values", {})
TERMINAL: Part = ("updates", {"BUDGET_STOP": {"outcome": "x"}})


def played(closed: list[bool], *parts: Part) -> Generator[Part, None, None]:
    try:
        yield from parts
    finally:
        closed.append(True)


@pytest.mark.parametrize(
    ("heard", "to_come", "expected"),
    [
        ([], [SAID, ENDED], []),
        ([SAID], [SAID, ENDED, VALUES, SAID, ENDED], [SAID, ENDED]),
        ([SAID], [ENDED, SAID], [ENDED]),
        ([SAID], [ASKS, VALUES], [ASKS]),
        ([SAID, ENDED], [VALUES, SAID, ENDED], []),
        ([SAID, ENDED, VALUES], [SAID, ENDED], []),
        ([SAID], [STOPPED, VALUES, SAID, TERMINAL, VALUES], [STOPPED, VALUES, SAID, TERMINAL, VALUES]),
        ([SAID], [SAID], [SAID]),
    ],
    ids=["not begun", "at work", "as it ends", "asks", "has ended", "between two nodes", "ends the run", "broke off"],
)
def test_the_node_at_work_ends_and_no_other_begins(
    heard: list[Part], to_come: list[Part], expected: list[Part]
) -> None:
    closed: list[bool] = []
    parts = Parts(played(closed, *heard, *to_come))
    assert [next(parts) for _ in heard] == heard
    assert list(parts.rest()) == expected
    parts.close()
    assert list(parts) == []
    assert closed == ([True] if heard else [])


@given(st.lists(st.sampled_from([SAID, ENDED, STOPPED, VALUES, TERMINAL])))
def test_nobody_who_stays_misses_a_part(parts: list[Part]) -> None:
    assert list(Parts(played([], *parts))) == parts
