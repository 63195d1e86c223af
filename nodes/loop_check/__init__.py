"""Loop control: a repeated action gets one typed override, and further repeats end the run (spec 3)."""

from mendgraph.nodes.loop_check.repetition import (
    LOOP_OVERRIDE_MAX_RETRIES,
    LOOP_REPEAT_THRESHOLD,
    REPEAT_WINDOW,
    action_signature,
)
from mendgraph.nodes.records import OverrideConstraint

__all__ = [
    "LOOP_OVERRIDE_MAX_RETRIES",
    "LOOP_REPEAT_THRESHOLD",
    "REPEAT_WINDOW",
    "OverrideConstraint",
    "action_signature",
]
