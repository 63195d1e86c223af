"""A model call between two visits of its node."""

from typing import Final, Literal

from mendgraph.nodes.records import Record


class PendingCall(Record):
    """A model call between two visits of its node, and the `edge` that leads to the next one.

    The next try is of the model at this place, which had `attempt` tries. It comes after `wait_s`, because of `reason`;
    `waited_s` are all waits of the request with that one. `failures` name the models that were given up. `overflow` is
    what the endpoint said of a prompt longer than its window, and `is_too_long` whether that is still to be shortened.
    `summaries` counts the requests for one. The defaults are those of a first try.
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
