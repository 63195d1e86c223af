"""Is this progress? Repeated actions get one typed override; repeating on ends the run (spec 3)."""

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
