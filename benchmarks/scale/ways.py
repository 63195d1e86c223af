"""The ways to make many concurrent runs in one process."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.scale.script import task

if TYPE_CHECKING:  # only the processes that make runs import mendgraph
    from mendgraph import AgentContext, RunResult

THREADS: Final = "threads"
LOOP: Final = "event loop"
BATCH: Final = "batch"
"""A batch uses several processes: see `batches.py`."""


class End(NamedTuple):
    """The end of a run: the kind of its outcome, its answer or error, and its workspace."""

    kind: str
    message: str
    root: str


@dataclass(frozen=True)
class Place:
    """The address of the model, and the folder of the workspaces."""

    url: str
    folder: str

    def workspace(self, name: str) -> str:
        """Return the workspace of a run."""
        return os.path.join(self.folder, "workspaces", name)


def in_threads(place: Place, names: Sequence[str]) -> dict[str, End]:
    """Make each run in a thread, and return the ends of the runs by name."""
    from mendgraph import run_task

    ends: dict[str, End] = {}

    def work(name: str) -> None:
        try:
            result = run_task(task(name), _context(place, name), thread_id=name)
            ends[name] = _end(place, name, result)
        except Exception as error:  # noqa: BLE001 - the end of the run reports any exception
            ends[name] = End("raised", f"{type(error).__name__}: {error}", place.workspace(name))

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def in_event_loop(place: Place, names: Sequence[str]) -> dict[str, End]:
    """Make all runs in one event loop, and return the ends of the runs by name."""
    from mendgraph import arun_task

    async def work(name: str) -> End:
        result = await arun_task(task(name), _context(place, name), thread_id=name)
        return _end(place, name, result)

    async def work_all() -> list[End]:
        return await asyncio.gather(*map(work, names))

    ends = asyncio.run(work_all())
    return dict(zip(names, ends, strict=True))


WAYS: Final[Mapping[str, Callable[[Place, Sequence[str]], dict[str, End]]]] = {
    THREADS: in_threads,
    LOOP: in_event_loop,
}


def _context(place: Place, name: str) -> "AgentContext":
    from mendgraph import AgentContext

    return AgentContext(
        workspace=place.workspace(name),
        base_url=f"{place.url}/v1",
        model="scripted",
        protocol="native",
    )


def _end(place: Place, name: str, result: "RunResult") -> End:
    message = result.answer or result.outcome.message
    return End(result.outcome.kind.value, message, place.workspace(name))
