"""What a contestant is told to do. Runs in the environments of all of them: the standard library alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

KEY = "not-needed"
TASK = "Read all files."
"""It names no file, so that none of the agents reads one ahead."""
MODEL = "m"
MOST_STEPS = 100_000
"""For the limits of frameworks that count steps: none may end a run."""


@dataclass(frozen=True)
class Job:
    """One run, or `count` of them at once in one event loop; the endpoint at `url` says when a run is over.

    `folder` holds the files. `keep` is an empty folder for what the run stores: nothing is stored without `stored`.
    """

    url: str
    folder: str
    keep: str
    stream: bool = False
    stored: bool = False
    count: int = 1


class Contestant(Protocol):
    """An agent, imported and ready."""

    def run(self, job: Job) -> None:
        """Do the job in this thread."""

    async def arun(self, job: Job) -> None:
        """Do it `count` times at once."""


async def drain(graph: Any, job: Job, request: Any, config: Any, modes: Any = "messages", **options: Any) -> None:
    """Run a compiled graph in the event loop; where the job is streamed, somebody listens."""
    if not job.stream:
        await graph.ainvoke(request, config, **options)
        return
    async for _ in graph.astream(request, config, stream_mode=modes, **options):
        pass


def read_file(folder: str, path: str) -> str:
    """What the tool of every contestant but the coding agents does, which have one of their own."""
    return (Path(folder) / path).read_text("utf-8")
