"""The ways in which one process makes many runs at once; each gives the end of every run by its name."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.scale.script import task
from mendgraph.nodes.records import ToolError

if TYPE_CHECKING:  # what a run needs is loaded in the processes that make runs
    from mendgraph import AgentContext, RunResult
    from mendgraph.graph.fleet.batch.tasks import TaskResult

THREADS: Final = "threads"
LOOP: Final = "event loop"
BATCH: Final = "batch"
BATCH_PROCESSES: Final = "batch over processes"
PROCESSES: Final = 4
"""Worker processes of a batch over processes."""


class End(NamedTuple):
    """How a run ended: its kind, its answer or why there is none, and the folder that it worked in."""

    kind: str
    said: str
    root: str


@dataclass(frozen=True)
class Place:
    """Where the runs find their model and their files. A `limited` run has a limit of the day, which ends none."""

    url: str
    folder: str
    limited: bool = False

    def workspace(self, name: str) -> str:
        """The workspace of a run."""
        return os.path.join(self.folder, "workspaces", name)


def in_threads(place: Place, names: Sequence[str]) -> dict[str, End]:
    """A thread for each run."""
    from mendgraph import run_task

    ended: dict[str, End] = {}

    def work(name: str) -> None:
        try:
            ended[name] = _end(place, name, run_task(task(name), _context(place, name), thread_id=name))
        except Exception as error:  # noqa: BLE001 - a run that raises has not done its work, which is told
            ended[name] = End("raised", f"{type(error).__name__}: {error}", place.workspace(name))

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def in_a_loop(place: Place, names: Sequence[str]) -> dict[str, End]:
    """All in one event loop."""
    from mendgraph import arun_task

    async def work(name: str) -> End:
        return _end(place, name, await arun_task(task(name), _context(place, name), thread_id=name))

    async def all_of_them() -> list[End]:
        return await asyncio.gather(*map(work, names))

    return dict(zip(names, asyncio.run(all_of_them()), strict=True))


def in_a_batch(place: Place, names: Sequence[str], processes: int = 1) -> dict[str, End]:
    """As `run_batch` makes them, each on a copy of its workspace; without its patch a run has not done its work."""
    from mendgraph.graph.fleet.batch.batch import run_batch
    from mendgraph.graph.fleet.batch.tasks import BatchTask

    results: list[TaskResult] = []
    batch = run_batch(
        [BatchTask(id=name, prompt=task(name), workspace=place.workspace(name)) for name in names],
        out=os.path.join(place.folder, f"batch-{names[0]}"),
        context=_context(place, names[0]),
        workers=len(names),
        processes=processes,
        on_result=results.append,
    )
    if isinstance(batch, ToolError):
        return {name: End("refused", batch.message, "") for name in names}
    return {each.id: _end_of_task(each) for each in results}


def in_a_batch_over_processes(place: Place, names: Sequence[str]) -> dict[str, End]:
    """The same, spread over worker processes."""
    return in_a_batch(place, names, PROCESSES)


WAYS: Final[Mapping[str, Callable[[Place, Sequence[str]], dict[str, End]]]] = {
    THREADS: in_threads,
    LOOP: in_a_loop,
    BATCH: in_a_batch,
    BATCH_PROCESSES: in_a_batch_over_processes,
}


def _context(place: Place, name: str) -> "AgentContext":
    from mendgraph import AgentContext

    return AgentContext(
        workspace=place.workspace(name),
        base_url=f"{place.url}/v1",
        model="scripted",
        protocol="native",
        max_tokens_per_day=10**12 if place.limited else None,
    )


def _end(place: Place, name: str, result: "RunResult") -> End:
    said = result.answer or result.outcome.message
    return End(result.outcome.kind.value, said, place.workspace(name))


def _end_of_task(result: "TaskResult") -> End:
    if result.error is not None or not result.patch:
        said = result.error.message if result.error else result.message
        return End(f"{result.kind.value} without a patch", said, result.copy_path)
    return End(result.kind.value, result.answer or result.message, result.copy_path)
