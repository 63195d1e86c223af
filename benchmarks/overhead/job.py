"""The job of a contestant. The environments of all contestants import this module: standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

KEY = "not-needed"
TASK = "Read all files."
"""It names no file, so that no agent reads one in advance."""
MODEL = "m"
MOST_STEPS = 100_000
"""The step limit of the frameworks, which no run reaches."""


@dataclass(frozen=True)
class Job:
    """`count` concurrent runs in one event loop. The endpoint at `url` ends a run with an answer without calls.

    `folder` has the files. With `stored`, the run stores its data in the empty folder `keep`.
    """

    url: str
    folder: str
    keep: str
    stream: bool = False
    stored: bool = False
    count: int = 1


class Contestant(Protocol):
    """An imported agent."""

    def run(self, job: Job) -> None:
        """Run the job in this thread."""

    async def arun(self, job: Job) -> None:
        """Run the job `count` times concurrently."""


async def drain(graph: Any, job: Job, request: Any, config: Any, modes: Any = "messages", **options: Any) -> None:
    """Run a compiled graph in the event loop, and consume its events if the job streams."""
    if not job.stream:
        await graph.ainvoke(request, config, **options)
        return

    async for _ in graph.astream(request, config, stream_mode=modes, **options):
        pass


def read_file(folder: str, path: str) -> str:
    """Read a file: the tool of all contestants except the coding agents, which have their own."""
    return (Path(folder) / path).read_text("utf-8")
