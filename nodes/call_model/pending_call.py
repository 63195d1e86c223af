"""The state of a model call between two visits of its node."""

from typing import Final, Literal

from mendgraph.nodes.records import Record


class PendingCall(Record):
    """The state of a call for the next visit of the node; the defaults are those of a first attempt.

    Attributes:
        edge: the edge that leads to the next visit.
        model: index of the model to try next.
        attempt: attempts of this model so far.
        wait_s: seconds to wait before the next attempt.
        reason: the failure that caused the wait.
        waited_s: seconds of all waits of this request.
        failures: descriptions of the models that failed.
        summaries: summaries that were requested so far.
        overflow: the endpoint's refusal of a prompt longer than its window.
        is_too_long: whether the conversation still has to be shortened after that refusal.
        compacts: whether the conversation is only shortened, as a person wants it, and no reply is requested.
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
    compacts: bool = False


FIRST_TRY: Final = PendingCall()

MOST_ROUNDS: Final = 3
"""The most compactions before one request; usually one is enough."""
