"""Visit the points at which a play may be killed or failed, with as many servers as there are cores.

    trace = servers[0].run("play", argument).trace
    sweep([Point("kill_before", at) for at in visited(trace)], one_point, servers)

where `one_point(server, point)` plays to that point, resumes, and raises AssertionError where something was lost.

Of 546 calls of the run that is killed, 362 are the pages that its database writes. A transaction is there when its last
page is, so of the pages that are written one after the other the last stands for all that a kill may leave out, and the
first for all that may fail. A sync changes nothing that a killed process leaves, as the page cache outlives it; it can
fail, though. Of these turning points `make test` visits every 96th and CI every second; `make sweep` visits all calls.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeVar

import pytest

from tests import extent
from tests.crash.fork_server import ForkServer, ServerError
from tests.crash.shim import How

VARIABLE: Final = "MENDGRAPH_CRASH_POINT"
REPEATED: Final = os.environ.get(VARIABLE, "")
"""The one point to play. It is read when the tests are collected: each test's own environment has no such variables."""
EXTENT: Final[extent.Extent] = "all" if REPEATED else extent.EXTENT
MOST_FAILURES: Final = 40
"""After so many failing points a sweep stops: a hung point takes a minute."""
SHOWN: Final = 3
"""So many of them are shown with their traces."""


class Point(NamedTuple):
    """What happens, and at which call, counted from 1."""

    how: How
    at: int

    def __str__(self) -> str:
        return f"{self.how}:{self.at}"


P = TypeVar("P")
Failures = dict[int, tuple[str, BaseException]]


@contextmanager
def servers_of(library: Path, module: str) -> Iterator[list[ForkServer]]:
    """A server for each core; for the few points of `make test` one, as each imports the product."""
    with ExitStack() as exits:
        yield [exits.enter_context(ForkServer(library, module)) for _ in range(1 if EXTENT == "some" else 2)]


def calls_to_visit(trace: Sequence[str], *, failing: bool = False) -> list[int]:
    """The numbers of the calls of a play to visit, counted from 1; `failing` are calls that fail, not kills."""
    if EXTENT == "all":
        return [*range(1, len(trace) + 1)]
    return _turning_points(trace, failing=failing)[:: 96 if EXTENT == "some" else 2]


def _turning_points(trace: Sequence[str], *, failing: bool) -> list[int]:
    chosen: list[int] = []
    for call, group in groupby(enumerate(trace, 1), lambda numbered: numbered[1]):
        numbers = [number for number, _ in group]
        if "sync" in call.partition(" ")[0] and not failing:
            continue
        if call.startswith("pwrite") and "sqlite" in call:
            chosen.append(numbers[0] if failing else numbers[-1])
        else:
            chosen += numbers
    return chosen


def sweep(points: Iterable[P], play: Callable[[ForkServer, P], object], servers: Sequence[ForkServer]) -> None:
    """Play each point once, on whichever server is free. A point is named by its `str`.

    With `MENDGRAPH_CRASH_POINT` set only the point of that name is played; a sweep that has none is skipped.

    Raises:
        AssertionError: some points fail. It names all of them, shows the first, and says how to repeat one.
    """
    __tracebackhide__ = True  # the message says it all
    chosen = [point for point in points if REPEATED in {"", str(point)}]
    if REPEATED and not chosen:
        pytest.skip(f"{VARIABLE}={REPEATED} is no point of this sweep")
    assert chosen, "a sweep of no points shows nothing"

    failures: Failures = {}
    queue = SimpleQueue[tuple[int, P]]()
    for numbered in enumerate(chosen):
        queue.put(numbered)

    def work(server: ForkServer) -> None:
        while len(failures) < MOST_FAILURES:
            try:
                number, point = queue.get_nowait()
            except Empty:
                return
            try:
                play(server, point)
            except BaseException as error:  # noqa: BLE001 - pytest's own are no Exceptions; the sweep says all at its end
                failures[number] = (str(point), error)
                if isinstance(error, ServerError):
                    return

    threads = [threading.Thread(target=work, args=(server,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, _report(failures, len(chosen))
    assert queue.empty()


def _report(failures: Failures, points: int) -> str:
    ordered = [failures[number] for number in sorted(failures)]
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    traces = [f"--- {name}\n{''.join(traceback.format_exception(error)).rstrip()}" for name, error in ordered[:SHOWN]]
    lines = [
        f"{len(failures)} of {points} points fail: {' '.join(name for name, _ in ordered)}",
        *traces,
        f"--- repeat one: {VARIABLE}={ordered[0][0]} .venv/bin/pytest '{test}'",
    ]
    return "\n".join(lines)
