"""The ways in which one process makes many runs at once; each gives the end of every run by its name."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.scale.script import task

if TYPE_CHECKING:  # what a run needs is loaded in the processes that make runs
    from mendgraph import AgentContext, RunResult

THREADS: Final = "threads"
LOOP: Final = "event loop"
BATCH: Final = "batch"
"""No way of one process: see `batches.py`."""


class End(NamedTuple):
    """How a run ended: its kind, its answer or why there is none, and the folder that it worked in."""

    kind: str
    said: str
    root: str


@dataclass(frozen=True)
class Place:
    """Where the runs find their model and their files."""

    url: str
    folder: str

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


WAYS: Final[Mapping[str, Callable[[Place, Sequence[str]], dict[str, End]]]] = {
    THREADS: in_threads,
    LOOP: in_a_loop,
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
    said = result.answer or result.outcome.message
    return End(result.outcome.kind.value, said, place.workspace(name))
