"""Some processes that make runs at once, in a folder of their own, and what all of it took together."""

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Self

import httpx2

from benchmarks.scale.database import Server
from benchmarks.scale.figures import Point
from benchmarks.scale.script import CALLS
from benchmarks.scale.server import COUNTS
from benchmarks.scale.ways import Place
from benchmarks.scale.work import BOOKED, Job, Took, serve
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE

STORE_VARIABLE: Final = "MENDGRAPH_STORE_URL"
_LONGEST_END_S: Final = 30
MOST_TOLD: Final = 5


class NotDoneError(RuntimeError):
    """Runs did not do their work, so that there is nothing to measure."""


@dataclass(frozen=True)
class Series:
    """A way to make many runs, over how many processes, with which store: one of `WAYS`, or a batch of tasks.

    A batch is over processes of its own, or `on_ray`; where it is `killed` some of them are, at random.
    """

    name: str
    way: str
    processes: int = 1
    shared: bool = False
    on_ray: bool = False
    killed: bool = False


class Crew:
    """The processes of one measurement, warm, as a context manager."""

    def __init__(self, series: Series, url: str, store_url: str | None = None) -> None:
        """`url` is the model's, `store_url` that of an empty database of the shared store."""
        self._series, self._url, self._store_url = series, url, store_url
        self._stack = ExitStack()
        self._pipes: list[Connection] = []

    def __enter__(self) -> Self:
        """Start them, and wait until all have loaded what a run loads."""
        with ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mendgraph-scale-"))
            self._server = stack.enter_context(Server(self._store_url)) if self._store_url else None
            self._data = os.path.join(self._folder, "data")
            added = {DATA_DIR_VARIABLE: self._data, "HOME": self._folder}
            added |= {STORE_VARIABLE: self._store_url} if self._store_url else {}
            job = Job(self._series.way, Place(self._url, self._folder), added)
            context = multiprocessing.get_context("spawn")
            for _ in range(self._series.processes):
                ours, its = context.Pipe()
                process = context.Process(target=serve, args=(its, job))
                process.start()
                its.close()
                stack.callback(_end, process)
                self._pipes.append(stack.enter_context(ours))
            for pipe in self._pipes:
                if problem := _received(pipe):
                    raise NotDoneError(problem)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End them, and remove what they have made."""
        self._stack.close()

    def measure(self, runs: int) -> Point:
        """Make so many runs at once; nothing else may be at work.

        Raises:
            NotDoneError: a run did not do all of its work, or a call of it is not in the spending database.
        """
        names = [f"{token_hex(4)}-{number}" for number in range(runs)]  # the endpoint counts by name
        store, book = self._store_bytes(), self._booked()
        done = self._server.done() if self._server else None
        for place, pipe in enumerate(self._pipes):
            pipe.send(names[place :: len(self._pipes)])
        took: list[Took] = [_received(pipe) for pipe in self._pipes]
        if wrong := [*(said for each in took for said in each.problems), *self._miscounted(names)]:
            raise NotDoneError("; ".join(wrong[:MOST_TOLD]) + (" ..." if len(wrong) > MOST_TOLD else ""))
        after = self._server.done() if self._server else None
        booked = [now - before for now, before in zip(self._booked(), book, strict=True)]
        if booked[0] != CALLS * runs:
            raise NotDoneError(f"{booked[0]} of {CALLS * runs} model calls are in the spending book")
        return Point(
            runs=runs,
            wall_s=max(each.ended for each in took) - min(each.began for each in took),
            cpu_s=sum(each.cpu_s for each in took),
            base=sum(each.base for each in took),
            memory=sum(each.memory for each in took),
            threads=sum(each.threads for each in took),
            handles=sum(each.handles for each in took),
            store_bytes=self._store_bytes() - store + (after.size - done.size if after and done else 0),
            calls=booked[0],
            input_tokens=booked[1],
            output_tokens=booked[2],
            connections=self._server.connections if self._server else 0,
            database_cpu_s=after.cpu_s - done.cpu_s if after and done else 0,
            commits=after.commits - done.commits if after and done else 0,
            log_bytes=after.log_bytes - done.log_bytes if after and done else 0,
        )

    def _miscounted(self, names: Sequence[str]) -> list[str]:
        """What the endpoint says of runs that have asked it too often or too seldom."""
        asked = httpx2.get(f"{self._url}{COUNTS}", trust_env=False).json()
        return [
            f"{name} asked its model {made} times instead of {CALLS}"
            for name in names
            if (made := asked.get(name, 0)) != CALLS
        ]

    def _booked(self) -> tuple[int, int, int]:
        self._pipes[0].send(BOOKED)
        booked: tuple[int, int, int] = _received(self._pipes[0])
        return booked

    def _store_bytes(self) -> int:
        """What the runs keep on this machine's disk, as it is allocated there."""
        return sum(path.stat().st_blocks * 512 for path in Path(self._data).rglob("*") if path.is_file())


def _received(pipe: Connection) -> Any:
    try:
        answer = pipe.recv()
    except EOFError:
        raise NotDoneError("a process has died") from None
    if isinstance(answer, str) and answer:
        raise NotDoneError(answer)
    return answer


def _end(process: Any) -> None:
    """It ends with its pipe."""
    process.join(_LONGEST_END_S)
    if process.is_alive():
        process.kill()
        process.join()
