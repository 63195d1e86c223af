"""The plays that kill themselves, imported by one `ForkServer`."""

from tests.crash.lost_calls_play import work
from tests.surfaces.runs.approval_play import taken_up

__all__ = ["taken_up", "work"]
