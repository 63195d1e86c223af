"""A model call between two visits of its node."""

from typing import Final, Literal

from mendgraph.nodes.records import Record


class PendingCall(Record):
    """What the next visit of the node has to know.

    The defaults are those of a first try.

    Attributes:
        edge: the edge that leads to the next visit.
        model: index of the model to try next.
        attempt: tries that it has had.
        wait_s: seconds to wait before the next try.
        reason: why it waits.
        waited_s: seconds of all waits of this request.
        failures: the models that were given up, in words.
        summaries: summaries that were requested so far.
        overflow: the endpoint's refusal of a prompt longer than its window.
        is_too_long: whether the conversation still has to be shortened for it.
    """

    edge: Literal["retry", "next model", "conversation shortened"] = "retry"
    model: int = 0
    attempt: int = 0
    wait_s: float = 0.0
    reason: str = ""
    waited_s: float = 0.0
    failures: tuple[str, ...] = ()
    summaries: int = 0
    overflow: str = ""
    is_too_long: bool = False


FIRST_TRY: Final = PendingCall()

MOST_ROUNDS: Final = 3
"""Compactions before one request: one brings the view far below the window, unless its estimate was far off."""
