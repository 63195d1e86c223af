"""Visit every point at which a play may be killed or failed, with as many servers as there are cores.

    calls = servers[0].run("play", argument).calls
    sweep(points(calls, "kill_before", "kill_after"), one_point, servers)

where `one_point(server, point)` plays to that point, resumes, and raises AssertionError where something was lost.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeVar

import pytest

from tests.crash.fork_server import ForkServer, ServerError
from tests.crash.shim import How

VARIABLE: Final = "MENDGRAPH_CRASH_POINT"
REPEATED: Final = os.environ.get(VARIABLE, "")
"""The one point to play. It is read when the tests are collected: each test's own environment has no such variables."""
FAILURES: Final = 40
"""After so many failing points a sweep stops: that is no slip at some point, and a hung point takes a minute."""
TOLD: Final = 3
"""So many of them are shown with their traces."""


class Point(NamedTuple):
    """What happens, and at which call, counted from 1."""

    how: How
    at: int

    def __str__(self) -> str:
        """As it is said and repeated."""
        return f"{self.how}:{self.at}"


P = TypeVar("P")


def points(calls: int, *hows: How) -> list[Point]:
    """Every point of a play that makes so many calls."""
    return [Point(how, at) for at in range(1, calls + 1) for how in hows]


@dataclass
class _Findings:
    failures: dict[int, tuple[str, BaseException]] = field(default_factory=dict)
    played: list[int] = field(default_factory=list)
    stopped: bool = False


def sweep(
    swept: Iterable[P], play: Callable[[ForkServer, P], object], servers: Sequence[ForkServer], repeated: str = REPEATED
) -> int:
    """Play each point once, on whichever server is free, and return how many points there are.

    A point is named by its `str`. With `MENDGRAPH_CRASH_POINT` set only the point of that name is played; a sweep that
    has none is skipped.

    Raises:
        AssertionError: some points fail. It names all of them, shows the first, and says how to repeat one.
    """
    __tracebackhide__ = True  # the message says it all
    every = list(swept)
    assert every, "a sweep of no points shows nothing"
    assert servers, "a sweep without servers plays nothing"
    chosen = [point for point in every if not repeated or str(point) == repeated]
    if repeated and not chosen:
        pytest.skip(f"{VARIABLE}={repeated} is none of the {len(every)} points of this sweep")
    findings, queue = _Findings(), SimpleQueue[tuple[int, P]]()
    for numbered in enumerate(chosen):
        queue.put(numbered)
    threads = [threading.Thread(target=_work, args=(queue, play, server, findings)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        findings.stopped = True  # a Ctrl-C comes here
        for thread in threads:
            thread.join()
    if findings.failures:
        raise AssertionError(_told(findings, len(chosen)))
    return len(every)


def _work(
    queue: "SimpleQueue[tuple[int, P]]",
    play: Callable[[ForkServer, P], object],
    server: ForkServer,
    findings: _Findings,
) -> None:
    while not findings.stopped:
        try:
            number, point = queue.get_nowait()
        except Empty:
            return
        try:
            play(server, point)
        except BaseException as error:  # noqa: BLE001 - pytest's own are no Exceptions; the sweep says all at its end
            findings.failures[number] = (str(point), error)
            findings.stopped = findings.stopped or len(findings.failures) >= FAILURES
            if isinstance(error, ServerError):
                return
        findings.played.append(number)


def _told(findings: _Findings, chosen: int) -> str:
    """The failing points, the first of them with their traces, and how to repeat one."""
    failures = [failure for _, failure in sorted(findings.failures.items())]
    names = [name for name, _ in failures]
    left = chosen - len(findings.played)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    traces = "\n".join(
        f"--- {name}\n{''.join(traceback.format_exception(error)).rstrip()}" for name, error in failures[:TOLD]
    )
    return (
        f"{len(names)} of {len(findings.played)} points fail{f' ({left} were not played)' if left > 0 else ''}: "
        f"{' '.join(names)}\n{traces}\n--- repeat one: {VARIABLE}={names[0]} .venv/bin/pytest '{test}'"
    )
