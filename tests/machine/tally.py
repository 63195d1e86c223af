"""How many transitions of the real machine a test session has checked, in all of its processes together.

A test that plays the machine calls `count`. Under pytest-xdist each worker hands its numbers to the controller, which
adds them up; `tests/conftest.py` calls the three hooks below.
"""

from dataclasses import dataclass
from typing import Any, Final

from mendgraph.nodes.records import JsonMap

KEY: Final = "machine_tally"
"""Where a worker's numbers are in what it hands over."""


@dataclass
class Tally:
    """Runs that were played, and the executions of nodes in them that were checked."""

    transitions: int = 0
    runs: int = 0

    def add(self, transitions: int, runs: int) -> None:
        """Add these to it."""
        self.transitions += transitions
        self.runs += runs

    def line(self, failed: int) -> str:
        """What is told at the end, "" where nothing was checked; `failed` tests of the session failed."""
        if not self.transitions:
            return ""
        verdict = f"{failed} tests failed" if failed else "no violation"
        return f"machine runs checked: {self.runs:,} ({self.transitions:,} transitions), {verdict}"


_CHECKED = Tally()


def count(transitions: int, runs: int) -> None:
    """Add what was checked in this process: executions of nodes, and the runs that they were part of."""
    _CHECKED.add(transitions, runs)


def counted() -> JsonMap:
    """The numbers of this process so far."""
    return {"transitions": _CHECKED.transitions, "runs": _CHECKED.runs}


def hand_over(config: Any) -> None:
    """At the end of a session, in a worker of pytest-xdist: give its numbers to the controller."""
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output[KEY] = counted()


def take_over(output: object) -> None:
    """In the controller, when a worker has ended: add its numbers; a worker that crashed has none."""
    numbers = output.get(KEY) if isinstance(output, dict) else None
    if numbers is not None:
        count(**numbers)


def tell(reporter: Any) -> None:
    """Print the sum."""
    if line := _CHECKED.line(len(reporter.stats.get("failed", ()))):
        reporter.write_line(line)
