"""The processes of one measurement, and their total cost."""

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

from benchmarks.scale.database import Server, ServerCounters
from benchmarks.scale.figures import Point
from benchmarks.scale.script import CALLS
from benchmarks.scale.server import COUNTS
from benchmarks.scale.ways import Place
from benchmarks.scale.work import SPENDING, Job, ProcessCost, serve
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE

STORE_VARIABLE: Final = "MENDGRAPH_STORE_URL"
_LONGEST_END_S: Final = 30
_MOST_PROBLEMS: Final = 5
_BLOCK_BYTES: Final = 512


class IncompleteRunError(RuntimeError):
    """A run did not do its work, so the figures are invalid."""


def join_problems(problems: Sequence[str]) -> str:
    """Return the first problems as one text."""
    text = "; ".join(problems[:_MOST_PROBLEMS])
    if len(problems) > _MOST_PROBLEMS:
        text += " ..."
    return text


@dataclass(frozen=True)
class Series:
    """A way to make many runs: one of `WAYS`, or a batch of tasks; with the shared store or with a local one.

    A batch runs on its own processes, or `on_ray`. If it is `killed`, some of its processes are killed at random.
    """

    name: str
    way: str
    processes: int = 1
    shared: bool = False
    on_ray: bool = False
    killed: bool = False


class Crew:
    """A context manager with the processes of one measurement, each of which has made a run that is not counted."""

    def __init__(self, series: Series, url: str, store_url: str | None = None) -> None:
        """`url` is the address of the model, `store_url` that of an empty database of the shared store."""
        self._series = series
        self._url = url
        self._store_url = store_url
        self._stack = ExitStack()
        self._pipes: list[Connection] = []

    def __enter__(self) -> Self:
        """Start the processes, and wait for their first runs."""
        with ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mendgraph-scale-"))
            self._server = stack.enter_context(Server(self._store_url)) if self._store_url else None
            self._data = os.path.join(self._folder, "data")
            variables = {DATA_DIR_VARIABLE: self._data, "HOME": self._folder}
            if self._store_url:
                variables[STORE_VARIABLE] = self._store_url

            job = Job(self._series.way, Place(self._url, self._folder), variables)
            for _ in range(self._series.processes):
                self._pipes.append(_start(job, stack))
            for pipe in self._pipes:
                if problem := _receive(pipe):
                    raise IncompleteRunError(problem)

            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the processes and remove their folder."""
        self._stack.close()

    def measure(self, runs: int) -> Point:
        """Make this number of concurrent runs, and return their figures. The machine must be idle otherwise.

        Raises:
            IncompleteRunError: A run did not do its work, or the spending database lacks one of its calls.
        """
        names = [f"{token_hex(4)}-{number}" for number in range(runs)]  # the endpoint counts by name
        store_bytes = self._store_bytes()
        calls, input_tokens, output_tokens = self._spending()
        counters = self._server.counters() if self._server else ServerCounters()

        costs = self._run(names)
        problems = [problem for cost in costs for problem in cost.problems]
        problems += self._call_problems(names)
        if problems:
            raise IncompleteRunError(join_problems(problems))

        growth = self._server.counters() - counters if self._server else ServerCounters()
        total_calls, total_input_tokens, total_output_tokens = self._spending()
        if total_calls - calls != CALLS * runs:
            raise IncompleteRunError(f"the spending database has {total_calls - calls} of {CALLS * runs} model calls")

        return Point(
            runs=runs,
            wall_s=max(cost.end for cost in costs) - min(cost.start for cost in costs),
            cpu_s=sum(cost.cpu_s for cost in costs),
            base=sum(cost.base for cost in costs),
            memory=sum(cost.memory for cost in costs),
            threads=sum(cost.threads for cost in costs),
            handles=sum(cost.handles for cost in costs),
            store_bytes=self._store_bytes() - store_bytes + growth.size,
            calls=total_calls - calls,
            input_tokens=total_input_tokens - input_tokens,
            output_tokens=total_output_tokens - output_tokens,
            connections=self._server.connections if self._server else 0,
            database_cpu_s=growth.cpu_s,
            commits=growth.commits,
            log_bytes=growth.log_bytes,
        )

    def _run(self, names: Sequence[str]) -> list[ProcessCost]:
        """Distribute the runs to the processes, and return the cost of each process."""
        for index, pipe in enumerate(self._pipes):
            pipe.send(names[index :: len(self._pipes)])
        return [_receive(pipe) for pipe in self._pipes]

    def _call_problems(self, names: Sequence[str]) -> list[str]:
        """Return a sentence for each run with a wrong number of model calls."""
        counts = httpx2.get(f"{self._url}{COUNTS}", trust_env=False).json()
        problems = []
        for name in names:
            calls = counts.get(name, 0)
            if calls != CALLS:
                problems.append(f"{name} made {calls} model calls instead of {CALLS}")
        return problems

    def _spending(self) -> tuple[int, int, int]:
        """Return the calls, input tokens and output tokens in the spending database."""
        self._pipes[0].send(SPENDING)
        totals: tuple[int, int, int] = _receive(self._pipes[0])
        return totals

    def _store_bytes(self) -> int:
        """Return the allocated bytes of the local store."""
        files = [path for path in Path(self._data).rglob("*") if path.is_file()]
        return sum(path.stat().st_blocks * _BLOCK_BYTES for path in files)


def _start(job: Job, stack: ExitStack) -> Connection:
    """Start a process, register its end, and return its pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, job))
    process.start()
    theirs.close()
    stack.callback(_stop, process)
    return stack.enter_context(ours)


def _receive(pipe: Connection) -> Any:
    try:
        response = pipe.recv()
    except EOFError:
        raise IncompleteRunError("a process exited") from None
    if isinstance(response, str) and response:
        raise IncompleteRunError(response)
    return response


def _stop(process: Any) -> None:
    """Wait for the process, which exits when its pipe closes; kill it after the time limit."""
    process.join(_LONGEST_END_S)
    if process.is_alive():
        process.kill()
        process.join()
