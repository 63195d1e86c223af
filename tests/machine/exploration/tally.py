"""How many transitions of the real machine a test session has checked, in all of its processes together.

A test that plays the machine calls `count`. Under pytest-xdist each worker hands its numbers to the controller, which
adds them up; `tests/conftest.py` calls the other three functions.
"""

from typing import Any, Final

KEY: Final = "machine_tally"
"""Where a worker's numbers are in what it hands over."""

_CHECKED = {"transitions": 0, "runs": 0}


def count(transitions: int, runs: int) -> None:
    """Add what was checked in this process: executions of nodes, and the runs that they were part of."""
    _CHECKED["transitions"] += transitions
    _CHECKED["runs"] += runs


def hand_over(config: Any) -> None:
    """At the end of a session, in a worker of pytest-xdist: give its numbers to the controller."""
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output[KEY] = dict(_CHECKED)


def take_over(output: object) -> None:
    """In the controller, when a worker has ended: add its numbers; a worker that crashed has none."""
    if isinstance(output, dict) and KEY in output:
        count(**output[KEY])


def tell(reporter: Any) -> None:
    if _CHECKED["transitions"]:
        failed = len(reporter.stats.get("failed", ()))
        verdict = f"{failed} tests failed" if failed else "no violation"
        checked = f"{_CHECKED['runs']:,} ({_CHECKED['transitions']:,} transitions)"
        reporter.write_line(f"machine runs checked: {checked}, {verdict}")
